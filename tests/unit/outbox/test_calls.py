"""Requests, held against the bridge's own parsers."""

import json
from typing import Any

import pytest

from api.web.parse import NoncedEnd, parse_prepare, parse_prepare_batch, parse_resolutions
from bridge.core.record import Resolution as Recorded
from outbox.client.calls import (
    END,
    PREPARE,
    PUBLISH,
    PrepareOptions,
    check_group,
    end_call,
    get_call,
    is_batch,
    join,
    leave_call,
    prepare_call,
    register_call,
)
from outbox.client.errors import InvalidMessage, OutboxConfigError
from outbox.client.listener import Resolution
from outbox.client.message import Message

MAX_HEADERS = 64
ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"


def test_options_arrive_as_given() -> None:
    """Every one of them; those left out are not sent."""
    options: PrepareOptions = {
        "ordering_key": 'a"b',
        "idempotency_key": "order 42",
        "check_immunity_seconds": 0,
        "max_checks": 1_000,
        "max_lifetime_seconds": 1,
    }
    call = parse_prepare(prepare_call("shop", [Message("orders")], options).item, MAX_HEADERS)
    assert (call.group, call.ordering_key, call.idempotency_key) == ("shop", 'a"b', "order 42")
    assert (call.immunity_s, call.max_checks, call.max_lifetime_s) == (0, 1_000, 1)
    plain = json.loads(prepare_call("shop", [Message("orders")], {"ordering_key": None}).item)
    assert plain == {"producer_group": "shop", "messages": [{"topic": "orders"}]}


def test_only_a_keyed_call_is_repeatable() -> None:
    """Without a key a repeat would be a second transaction."""
    assert not prepare_call("shop", [Message("orders")], {}).is_repeatable
    assert prepare_call("shop", [Message("orders")], {"idempotency_key": "k"}).is_repeatable
    assert end_call(ID, Resolution.COMMIT, "shop").is_repeatable


@pytest.mark.parametrize(
    "options",
    [
        {"ordering_key": ""},
        {"ordering_key": "a\x01"},
        {"ordering_key": "x" * 1_001},
        {"ordering_key": "\ud800"},
        {"idempotency_key": ""},
        {"idempotency_key": "ü"},
        {"idempotency_key": "x" * 201},
        {"check_immunity_seconds": -1},
        {"max_checks": 0},
        {"max_checks": True},
        {"max_lifetime_seconds": 604_801},
    ],
)
def test_option_outside_its_bounds_is_refused(options: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidMessage):
        prepare_call("shop", [Message("orders")], options)


def test_single_call_goes_alone_and_many_as_a_list() -> None:
    """A list's items are the bodies of single calls."""
    items = [prepare_call("shop", [Message("orders", key=str(n))], {}).item for n in range(3)]
    alone = join(PREPARE, items[:1], 1.0)
    together = join(PUBLISH, items, 0.25)
    assert (alone.target, alone.body) == ("/v1/transactions?wait_seconds=1.000", items[0])
    assert together.target == "/v1/messages/batch?wait_seconds=0.250"
    assert together.body is not None
    assert len(parse_prepare_batch(together.body, MAX_HEADERS)) == 3
    assert (is_batch(PREPARE, 1), is_batch(PREPARE, 2), is_batch(END, 1)) == (False, True, True)


def test_ends_and_answers_to_checks_are_read_as_such() -> None:
    """A nonce makes an answer of an end."""
    calls = [
        end_call(ID, Resolution.COMMIT, "shop"),
        end_call(ID, Resolution.ROLLBACK, None),
        end_call(ID, Resolution.UNKNOWN, "shop", "1-abc"),
    ]
    body = join(END, [call.item for call in calls], 1.0).body
    assert body is not None
    plain, bare, nonced = parse_resolutions(body)
    assert (plain.transaction_id, plain.resolution, plain.group) == (ID, Recorded.COMMIT, "shop")
    assert (bare.resolution, bare.group) == (Recorded.ROLLBACK, None)
    assert isinstance(nonced, NoncedEnd)
    assert (nonced.call.resolution, nonced.nonce) == (Recorded.UNKNOWN, "1-abc")


@pytest.mark.parametrize("text", ["", "../x", "a b", "a?b", "x" * 65, None])
def test_what_cannot_be_an_id_gets_into_no_path(text: Any) -> None:
    """It would be another request."""
    with pytest.raises(InvalidMessage):
        get_call(text)
    with pytest.raises(InvalidMessage):
        end_call(text, Resolution.COMMIT, None)


def test_endpoint_is_registered_and_left_by_its_url() -> None:
    """Escaped where it stands in the query."""
    url = "https://shop.example/check?a=1&b=2"
    register, leave = register_call("shop", url, 60), leave_call("shop", url)
    assert (register.method, register.target) == ("POST", "/v1/producer-groups/shop/endpoints")
    assert json.loads(register.body or b"") == {"url": url, "lease_seconds": 60}
    expected = "/v1/producer-groups/shop/endpoints?url=https%3A%2F%2Fshop.example%2Fcheck%3Fa%3D1%26b%3D2"
    assert (leave.method, leave.target) == ("DELETE", expected)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 121, "ü", None])
def test_illegal_group_name_is_refused(name: Any) -> None:
    """When the face is made."""
    with pytest.raises(OutboxConfigError):
        check_group(name)
