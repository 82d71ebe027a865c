"""Checks and answers on the wire."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import Message, StoredMessage
from bridge.core.record import HalfMessage, Resolution
from bridge.core.transaction import Transaction, show_time
from bridge.store.message_store import LoadedHalf
from checker.call import Answers, decode_answers, encode_call, make_check

ASKED = {"tx-a": "1-nonce-a", "tx-b": "2-nonce-b"}
NOBODY = Answers({}, is_well_formed=False)


def answer(*entries: object) -> bytes:
    return json.dumps({"resolutions": list(entries)}).encode()


def entry(transaction_id: str = "tx-a", resolution: object = "COMMIT", **more: object) -> dict[str, object]:
    made = {"transaction_id": transaction_id, "nonce": ASKED.get(transaction_id, "?"), "resolution": resolution}
    return made | more


def carrying(half: HalfMessage, messages: Sequence[Message]) -> LoadedHalf:
    return LoadedHalf(half, StoredMessage(0, None, None, (), 0), 0, None, messages)


@pytest.mark.parametrize(
    ("remark", "kept"),
    [
        ("no such order", "no such order"),
        ("x" * 600, "x" * 512),
        ("a\x01b", None),
        ("\ud800", None),
        (7, None),
        ("", None),
    ],
)
def test_remark_never_costs_its_answer(remark: object, kept: str | None) -> None:
    """What cannot be kept of it is left out."""
    answers = decode_answers(answer(entry() | {"remark": remark}), ASKED)
    assert answers.resolutions == {"tx-a": Resolution.COMMIT}
    assert answers.remarks.get("tx-a") == kept


def test_call_has_exactly_the_shape_of_the_contract() -> None:
    """Every member, in its order, nothing else. Born is when it was stored: the clock of an api process may be days
    ahead, and a record written since would seem another run's."""
    transaction = Transaction("tx-a", "orders", 1, 1_750_000_000_123, 3, check_times=2)
    half = HalfMessage("tx-a", "orders", 1, 1_750_000_000_123 + 3 * 86_400_000, idempotency_key="k-1")
    message = Message("orders.created", b"42", b'{"total": 12.50}', [("source", b"shop")])
    check = make_check(transaction, carrying(half, [message]), lambda of, number: f"{number}-{of}-" + "r" * 22)
    assert encode_call("orders", [check]) == (
        '{"type":"transaction.check","producer_group":"orders","checks":[{"transaction_id":"tx-a","check_number":3,'
        '"nonce":"3-tx-a-rrrrrrrrrrrrrrrrrrrrrr","born_time":"2025-06-15T15:06:40.123Z","idempotency_key":"k-1",'
        '"messages":[{"topic":"orders.created","key":"42","value":{"total": 12.50},"headers":[["source","shop"]]}]}]}'
    )


def test_one_strange_message_does_not_spoil_the_call() -> None:
    """Bytes that are no text, JSON that is none: the document stays valid."""
    bodies = [b"\xff\xfe", b'{"a":1,"a":2}', b'["\\ud800"]', b"[" * 5_000, None, b""]
    transaction = Transaction("tx-a", "g", 1, 2, 3)
    half = HalfMessage("tx-a", "g", len(bodies), 0)
    check = make_check(
        transaction,
        carrying(half, [Message("t", None, body) for body in bodies]),
        lambda _, number: f"{number}-" + "r" * 22,
    )
    shown = json.loads(encode_call("g", [check, check]))
    assert len(shown["checks"][0]["messages"]) == len(bodies)


@pytest.mark.parametrize(
    ("time_ms", "shown"),
    [
        (-5, "1970-01-01T00:00:00.000Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_750_000_000_007, "2025-06-15T15:06:40.007Z"),
        (10**18, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_out_of_range_are_shown_as_the_nearest(time_ms: int, shown: str) -> None:
    """A clock gone wrong at the producer's side spoils no round."""
    assert show_time(time_ms) == shown


def test_times_are_utc_wherever_the_bridge_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Z behind local time would be hours wrong."""
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            assert show_time(0) == "1970-01-01T00:00:00.000Z"
    finally:
        time.tzset()


def test_known_words_and_numbers_count() -> None:
    """COMMIT, ROLLBACK, UNKNOWN and RocketMQ's 8, 12, 0."""
    for said, meant in [("COMMIT", 8), ("ROLLBACK", 12), ("UNKNOWN", 0), (8, 8), (12, 12), (0, 0)]:
        assert decode_answers(answer(entry(resolution=said)), ASKED).resolutions == {"tx-a": Resolution(meant)}


@pytest.mark.parametrize(
    "word", ["commit", "Commit", " COMMIT", "COMMITTED", "", 1, -8, 8.0, False, True, None, [8], {}]
)
def test_unknown_words_are_no_answer_for_that_one(word: object) -> None:
    """And leave the other alone."""
    answers = decode_answers(answer(entry(resolution=word), entry("tx-b", "ROLLBACK")), ASKED)
    assert answers == Answers({"tx-b": Resolution.ROLLBACK}, strange=1)


@pytest.mark.parametrize(
    "broken",
    [
        entry(nonce="2-nonce-b"),
        entry(nonce=None),
        entry(more=1),
        {"transaction_id": "tx-a", "resolution": "COMMIT"},
        {"transaction_id": "tx-a", "nonce": "1-nonce-a"},
        entry("tx-other"),
        entry() | {"transaction_id": ["tx-a"]},
        "tx-a",
        None,
        [],
        7,
    ],
)
def test_entries_of_another_shape_are_no_answer(broken: object) -> None:
    """Other id, other nonce, missing or further members."""
    answers = decode_answers(answer(broken, entry("tx-b")), ASKED)
    assert answers == Answers({"tx-b": Resolution.COMMIT}, strange=1)


def test_every_entry_that_does_not_count_is_counted() -> None:
    """Three nobody knows, and two of transactions that were asked about."""
    said = answer("tx-a", None, entry("tx-other"), entry(nonce="?"), entry("tx-b", "MAYBE"))
    assert decode_answers(said, ASKED) == Answers({}, strange=5)


def test_a_transaction_named_twice_is_not_answered() -> None:
    """Not even when both say the same: nobody knows what was meant."""
    assert decode_answers(answer(entry(), entry(resolution="ROLLBACK")), ASKED).resolutions == {}
    assert decode_answers(answer(entry(), entry(), entry()), ASKED).resolutions == {}


def test_left_out_is_not_answered() -> None:
    """An empty list is well formed and answers nobody."""
    assert decode_answers(answer(), ASKED) == Answers({})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>200 OK</html>",
        b"null",
        b"[]",
        b'"COMMIT"',
        b"{}",
        b'{"resolutions":{}}',
        b'{"resolutions":null}',
        b'{"resolutions":[],"more":1}',
        b'{"resolutions":[],"resolutions":[]}',
        b'{"resolutions":[{"transaction_id":"tx-a","transaction_id":"tx-a","nonce":"1-nonce-a","resolution":"COMMIT"}]}',
        b'{"resolutions":[]} x',
        b'{"resolutions":[NaN]}',
        b"\xef\xbb\xbf" + b'{"resolutions":[]}',
        b'{"resolutions":["\xff"]}',
        '{"resolutions":[]}'.encode("utf-16"),
        b"[" * 60_000,
        b'{"resolutions":[' + b"9" * 5_000 + b"]}",
    ],
)
def test_bodies_of_another_shape_answer_nobody(body: bytes) -> None:
    """HTML, nothing, wrong JSON, duplicate keys."""
    assert decode_answers(body, ASKED) == NOBODY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["tx-a", "1-nonce-a", "COMMIT", "transaction_id"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["transaction_id", "nonce", "resolution", "resolutions"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_document_answers_by_accident(document: object) -> None:
    """Never raises; what counts names a transaction asked about, with its nonce and a known word."""
    answers = decode_answers(json.dumps(document).encode(), ASKED)
    for transaction_id, resolution in answers.resolutions.items():
        assert isinstance(document, dict)
        assert any(
            said["transaction_id"] == transaction_id and said["nonce"] == ASKED[transaction_id]
            for said in document["resolutions"]
            if isinstance(said, dict) and said.keys() == {"transaction_id", "nonce", "resolution"}
        )
        assert resolution in set(Resolution)


@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    """Whatever an endpoint sends."""
    assert decode_answers(body, ASKED).resolutions == {}


ENTRIES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "transaction_id": st.sampled_from(["tx-a", "tx-b", "tx-c", "TX-A", None, 7]),
            "nonce": st.sampled_from(["1-nonce-a", "1-nonce-a", "2-nonce-b", "1-nonce-a ", None]),
            "resolution": st.sampled_from(["COMMIT", 12, "UNKNOWN", "commit", 8.0, True, None]),
            "more": st.none(),
        },
    ),
    max_size=4,
)


@given(ENTRIES)
def test_one_whole_entry_alone_answers_a_transaction(entries: list[dict[str, object]]) -> None:
    """Its id was asked about and is named once, its nonce is that check's, its word is known, nothing else is there."""
    meant = {json.dumps(word.name): word for word in Resolution} | {json.dumps(int(word)): word for word in Resolution}
    expected = {}
    for transaction_id, nonce in ASKED.items():
        named = [said for said in entries if said.get("transaction_id") == transaction_id]
        if len(named) == 1 and len(named[0]) == 3 and named[0].get("nonce") == nonce:
            with suppress(KeyError):
                expected[transaction_id] = meant[json.dumps(named[0]["resolution"])]
    assert decode_answers(answer(*entries), ASKED).resolutions == expected


@given(st.data())
def test_changed_bytes_never_turn_an_answer_into_another(data: st.DataObject) -> None:
    """Bytes lost, added or changed on the way: what still counts carries the nonce that was sent, and its own word."""
    body = answer(entry(), entry("tx-b", "ROLLBACK"))
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, min(len(body), start + 4)))
    changed = body[:start] + data.draw(st.binary(max_size=4)) + body[end:]
    found = decode_answers(changed, ASKED).resolutions
    assert found.items() <= {"tx-a": Resolution.COMMIT, "tx-b": Resolution.ROLLBACK}.items()
    assert all(ASKED[transaction_id].encode() in changed for transaction_id in found)
