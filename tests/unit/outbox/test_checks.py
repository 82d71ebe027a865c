"""The check call on the wire, against what the bridge itself writes and reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.transaction import show_time
from checker.call import Check as AskedCheck
from checker.call import CheckerConfig, decode_answers, encode_call
from outbox.client.checks import Check, decode_call, encode_answer
from outbox.client.errors import CallRefused
from outbox.client.listener import Remarked, Resolution

NONCE = "1-abcdefghijklmnopqrst"
IDS = st.text("0123456789abcdefghijklmnopqrstuv", min_size=28, max_size=28)


def make_entry(transaction_id: str = "a" * 28, **members: Any) -> dict[str, Any]:
    return {
        "transaction_id": transaction_id,
        "check_number": 1,
        "nonce": NONCE,
        "born_time": "2026-01-31T12:00:00.123Z",
        "idempotency_key": None,
        "messages": [{"topic": "orders", "key": "42", "value": {"n": 1.10}, "headers": []}],
        **members,
    }


def make_call(*entries: Any, **members: Any) -> bytes:
    call = {"type": "transaction.check", "producer_group": "orders", "checks": list(entries), **members}
    return json.dumps(call).encode()


@given(st.dictionaries(IDS, st.sampled_from(Resolution), max_size=20), st.integers(0, 4_000_000_000_000))
def test_answer_counts_as_it_was_meant(words: dict[str, Resolution], born_ms: int) -> None:
    """What the bridge sends is read, and what is answered is what the bridge then takes for the answer."""
    asked = [AskedCheck(name, 1, NONCE, json.dumps(make_entry(name, born_time=show_time(born_ms)))) for name in words]
    call = decode_call(encode_call("orders", asked).encode())
    assert [(check.transaction_id, check.born_ms) for check in call.checks] == [(name, born_ms) for name in words]
    reply = encode_answer([(check, words[check.transaction_id]) for check in call.checks])
    answers = decode_answers(reply, dict.fromkeys(words, NONCE))
    assert (answers.is_well_formed, answers.strange) == (True, 0)
    assert {name: word.name for name, word in answers.resolutions.items()} == {
        name: word.name for name, word in words.items()
    }


def test_remarks_are_kept_by_the_bridge_and_never_cost_an_answer() -> None:
    """Cut, without what no record can hold, and left out where an answer would become too large for the bridge."""
    names = [f"{number:028}" for number in range(1_000)]
    checks = [Check(name, "orders", 1, NONCE, 0) for name in names]
    reply = encode_answer([(check, Remarked(Resolution.ROLLBACK, "no\x01stock " + "é" * 600)) for check in checks])
    assert len(reply) <= CheckerConfig().max_answer_bytes(len(checks))
    answers = decode_answers(reply, dict.fromkeys(names, NONCE))
    assert (len(answers.resolutions), answers.strange) == (1_000, 0)
    kept = set(answers.remarks.values())
    assert kept == {"no stock " + "é" * 503}
    with pytest.raises(TypeError):
        encode_answer([(checks[0], "COMMIT")])  # type: ignore[list-item]


def test_newer_bridge_may_say_more() -> None:
    """Additions are no changes: an endpoint that refused them would fall silent at an upgrade of the bridge."""
    call = decode_call(make_call(make_entry(more=1), version=2))
    assert call.checks == (Check("a" * 28, "orders", 1, NONCE, 1_769_860_800_123, None, call.checks[0].messages),)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"type":"transaction.check","producer_group":"orders","checks":[],"checks":[]}',
        make_call(type="other"),
        make_call(producer_group=""),
        make_call(producer_group="g" * 121),
        make_call(checks={}),
        make_call(1),
        make_call(make_entry(), make_entry()),
        make_call(make_entry("a" * 65)),
        make_call(make_entry("a\n")),
        make_call(make_entry(transaction_id=1)),
        make_call(make_entry(check_number=True)),
        make_call(make_entry(check_number=0)),
        make_call(make_entry(nonce=None)),
        make_call(make_entry(born_time="2026-01-31T12:00:00")),
        make_call(make_entry(born_time="yesterday")),
        make_call(make_entry(idempotency_key=1)),
        make_call(make_entry(messages=None)),
        make_call(make_entry(messages=[1])),
    ],
)
def test_malformed_call_is_refused_whole(body: bytes) -> None:
    """One error, never another exception: half a call is not answered."""
    with pytest.raises(CallRefused):
        decode_call(body)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    """Any bytes are a call or are refused."""
    with pytest.raises(CallRefused):
        decode_call(body)
