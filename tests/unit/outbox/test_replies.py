"""Answers: only the bridge's own count, and only about what was asked."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.problems import PROBLEMS, Problem, encode_problem
from bridge.service.contract import Outcome as Recorded
from outbox.client.block import result_of
from outbox.client.calls import Call, end_call, get_call, leave_call, prepare_call
from outbox.client.errors import Outcome
from outbox.client.errors import Problem as Told
from outbox.client.listener import HalfMessage, LocalTransactionState, Resolution, TransactionState
from outbox.client.message import Message
from outbox.client.replies import (
    Answer,
    BatchRejected,
    NoReply,
    Reply,
    read_answer,
    read_answers,
    read_prepared,
    read_retry_after,
    read_view,
)

ID, OTHER = "0206k8e9s5ta7vo3q1m4c8b2h6dg", "0306k8e9s5ta7vo3q1m4c8b2h6dg"
PREPARE = prepare_call("shop", [Message("orders")], {"idempotency_key": "k"})
END = end_call(ID, Resolution.COMMIT, "shop")
NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from(["results", "status", "transaction_id", "state", "type"]), inner)
))  # fmt: skip


def said(status: int, document: object) -> Answer:
    return Answer(status, json.dumps(document).encode())


def committed(**members: Any) -> dict[str, Any]:
    return {"transaction_id": ID, "state": "COMMITTED", **members}


@pytest.mark.parametrize("slug", sorted(PROBLEMS))
def test_every_problem_of_the_bridge_is_understood(slug: str) -> None:
    """As the bridge itself writes it: code, status, request id, places, outcome."""
    kind = PROBLEMS[slug]
    written = Problem(kind, "what happened", Recorded.UNKNOWN, ID, "ROLLED_BACK", [("/a/0", "why"), ("?b", "who")], 7)
    told = read_answer(Answer(kind.status, encode_problem(written, "r-1")), END)
    assert told == Told(
        slug, kind.status, kind.title, "what happened", "r-1", Outcome.UNKNOWN, ID, "ROLLED_BACK",
        (("/a/0", "why"), ("b", "who")), 7.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b""),
        Answer(200, b"<html>"),
        Answer(200, b'{"transaction_id":"x","state":"COMM'),
        Answer(502, b"<html>"),
        Answer(404, b"Not Found"),
        Answer(307, b""),
        said(200, []),
        said(200, {}),
        said(200, {"transaction_id": ID}),
        said(200, {"transaction_id": ID, "state": "DONE"}),
        said(200, {"transaction_id": OTHER, "state": "COMMITTED"}),
        said(200, {"transaction_id": 5, "state": "COMMITTED"}),
        said(409, {"type": "about:blank", "status": 409}),
        said(409, {"type": "https://outbox-bridge.dev/problems/already-resolved", "status": 422}),
        said(409, {"type": 7, "status": 409}),
        said(200, {"transaction_id": ID, "state": []}),
        Answer(200, b"[" * 100_000),
    ],
)
def test_what_the_bridge_did_not_say_is_no_reply(answer: Answer) -> None:
    """And it may have done it all the same."""
    told = read_answer(answer, END)
    assert isinstance(told, NoReply)
    assert told.is_sent


@given(st.integers(100, 599), JUNK | st.binary())
def test_no_answer_breaks_the_reader(status: int, document: Any) -> None:
    """Whatever comes, alone or for a batch, each call hears something."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    answer = Answer(status, body)
    assert not isinstance(read_answer(answer, END), Told)
    told = read_answers(answer, [END, END])
    assert len(told) == 2
    assert not any(isinstance(one, Told) for one in told)


def test_outcome_that_is_no_word_is_none() -> None:
    """The rest of the problem counts."""
    problem = {"type": "https://outbox-bridge.dev/problems/illegal-topic", "status": 422, "outcome": {}}
    told = read_answer(said(422, problem), END)
    assert isinstance(told, Told)
    assert (told.code, told.outcome) == ("illegal-topic", None)


def test_each_call_of_a_batch_hears_its_own() -> None:
    """In order; one that cannot be read says nothing of its neighbours."""
    problem = {"type": "https://outbox-bridge.dev/problems/illegal-topic", "status": 422, "title": "t", "detail": "d"}
    results = [
        {"status": 201, "transaction_id": ID, "state": "PREPARED"},
        {"status": 422, "problem": problem},
        {"status": 422, "problem": {**problem, "status": 409}},
        {"status": "201"},
        17,
    ]
    told = read_answers(said(200, {"results": results}), [PREPARE] * 5)
    assert [type(one) for one in told] == [Reply, Told, NoReply, NoReply, NoReply]


@pytest.mark.parametrize("document", [{"results": [committed(status=200)]}, {"results": {}}, {}, []])
def test_batch_answer_of_another_length_is_none(document: object) -> None:
    """Which result belongs to which call would be a guess."""
    assert [type(one) for one in read_answers(said(200, document), [END, END])] == [NoReply, NoReply]


@pytest.mark.parametrize(("status", "kind"), [(413, BatchRejected), (400, BatchRejected), (503, Told), (429, Told)])
def test_refusal_of_a_batch_is_not_that_of_its_calls(status: int, kind: type) -> None:
    """One of them spoils it, unless the bridge is only busy."""
    document = {"type": "https://outbox-bridge.dev/problems/body-too-large", "status": status}
    assert {type(one) for one in read_answers(said(status, document), [PREPARE, PREPARE])} == {kind}
    assert type(read_answers(said(status, document), [PREPARE])[0]) is Told


@pytest.mark.parametrize(
    ("status", "kind"), [(413, BatchRejected), (403, BatchRejected), (502, NoReply), (429, NoReply)]
)
def test_what_a_proxy_refuses_may_be_the_fault_of_one_call(status: int, kind: type) -> None:
    """Of its size, or of what a firewall reads in it; the others are asked alone."""
    assert {type(one) for one in read_answers(Answer(status, b"<html>"), [PREPARE, PREPARE])} == {kind}


def test_body_too_large_for_a_proxy_says_nothing_of_the_bridge() -> None:
    """It comes no further however often it is sent, and others do."""
    told = read_answer(Answer(413, b"<html>"), PREPARE)
    assert isinstance(told, NoReply)
    assert (told.is_sent, told.is_final, told.is_away) == (True, True, False)
    assert "client_max_body_size" in told.why


def test_transaction_is_read_whole() -> None:
    """With what a later version may add."""
    members = committed(
        producer_group="shop", blocked=True, reason="r", resolved_by="check", resolved_at="2026-01-31T12:00:00.000Z",
        receipts=[{"topic": "orders", "partition": 1, "offset": None}], check_times=3, queue_id=1, queue_offset=9,
        born_time="2026-01-31T12:00:00.000Z", ordering_key="o", messages=[{"topic": "orders", "value_bytes": 3}], new=1,
    )  # fmt: skip
    view = read_view(members)
    assert (view.state, view.is_blocked, view.resolved_by, view.resolved_at) == (
        TransactionState.COMMITTED,
        True,
        "check",
        NOW,
    )
    assert [(r.topic, r.partition, r.offset) for r in view.receipts] == [("orders", 1, None)]
    assert (view.check_times, view.queue_id, view.queue_offset, view.ordering_key) == (3, 1, 9, "o")
    assert view.messages == ()
    assert read_prepared(members).born_time == NOW


@pytest.mark.parametrize(("member", "flags"), [("blocked", (True, False)), ("abandoned", (False, True))])
def test_result_of_a_send_says_why_nothing_is_published(member: str, flags: tuple[bool, bool]) -> None:
    """Not yet, or never: committed both times, without receipts."""
    half = HalfMessage(ID, "shop", (Message("orders"),))
    view = read_view(committed(receipts=[], **{member: True}))
    result = result_of(half, read_prepared(committed()), LocalTransactionState.COMMIT_MESSAGE, view)
    assert (result.is_settled, result.state, result.receipts) == (True, TransactionState.COMMITTED, ())
    assert (result.is_blocked, result.is_abandoned) == flags == (view.is_blocked, view.is_abandoned)


def test_answers_without_a_transaction_are_taken_where_none_is_asked_for() -> None:
    """Endpoint leases."""
    leave = leave_call("shop", "https://shop.example/check")
    assert read_answer(Answer(204, b""), leave) == Reply(204, {})
    assert isinstance(read_answer(said(200, {"leased_until": "x"}), leave), Reply)
    assert isinstance(read_answer(Answer(204, b""), get_call(ID)), NoReply)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("99999999", 3_600.0),
        ("Sat, 31 Jan 2026 12:00:05 GMT", 5.0),
        ("Sat, 31 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("Sat, 31 Jan 99999999999 12:00:05 GMT", None),
        ("Sat, 31 Jan 2026 12:00:05 +99999999999999", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    """All else is nothing, and no error."""
    assert read_retry_after(value, NOW) == seconds


def test_call_type_of_a_batch_item_is_checked() -> None:
    """An end's result that names another transaction is not its answer."""
    calls: list[Call] = [END, END]
    results = [committed(status=200), {**committed(status=200), "transaction_id": OTHER}]
    assert [type(one) for one in read_answers(said(200, {"results": results}), calls)] == [Reply, NoReply]
