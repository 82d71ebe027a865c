"""Findings against the last run's, against thresholds, and what is proposed to be done."""

import pytest

from spark.errors import BadUsage
from spark.judge.findings import (
    CLEARED,
    NEW,
    STILL,
    Finding,
    Thresholds,
    compare,
    decide_exit,
    decode_findings,
    encode_findings,
    parse_thresholds,
    report,
)
from spark.judge.rules import judge
from spark.read.envelope import EndSource, Event
from tests.support.envelope_rows import END_MS, NOW_MS, SCOPE, TX, check, commit, half, op, record, rollback


def make_finding(tx: str = "a", kind: str = "MISSING", topic: str = "orders", first_seen: str = "now") -> Finding:
    return Finding(tx, kind, "", "shop", topic, [], first_seen)


def test_finding_tells_what_an_operator_asks_first() -> None:
    """Group, topic, records by offset, and it survives its file."""
    events = [half(), commit(), op("COMMITTED")]
    (found,) = judge(TX, events, SCOPE)
    finding = report(TX, events, found, NOW_MS)
    assert (finding.group, finding.topic, finding.first_seen) == ("shop", "orders", "1970-01-12T14:03:20.000Z")
    assert [(leg.leg, leg.topic, leg.partition, leg.offset) for leg in finding.legs] == [
        ("half", "half", 0, 10),
        ("op", "op", 0, 30),
    ]
    assert decode_findings(encode_findings([finding])) == [finding]


BUSY, SOLD_OUT = check(1, 15, END_MS, remark="busy"), rollback(remark="sold out")


@pytest.mark.parametrize(
    ("events", "remark"),
    [
        pytest.param([half(), SOLD_OUT, op("ROLLED_BACK"), record()], "sold out", id="rolled back, but published"),
        pytest.param([half(), commit(remark="paid"), op("BLOCKED"), record()], "paid", id="blocked"),
        pytest.param([half(), BUSY, op("PARKED", cause=15)], "busy", id="parked"),
        pytest.param([half(), BUSY, check(2, 16, END_MS, remark="lost"), record()], "lost", id="undecided"),
        pytest.param([half(), BUSY, check(2, 16, END_MS), record()], "busy", id="the next answer has none"),
        pytest.param([half(), SOLD_OUT, BUSY, record()], "sold out", id="in the order of the journal"),
        pytest.param([half(), commit(), rollback(21, remark="late"), record(999)], "late", id="an end in vain"),
        pytest.param([commit(remark="gone")], "gone", id="without a half message"),
        pytest.param([rollback(9, remark="early"), half(), commit()], None, id="before the half message"),
        pytest.param([half(), commit(remark="no", src=EndSource.OPERATOR)], None, id="of an operator"),
        pytest.param([half(), rollback(part=1, remark="no")], None, id="in another queue"),
        pytest.param([half(), commit()], None, id="none"),
    ],
)
def test_finding_tells_what_the_producer_remarked_last(events: list[Event], remark: str | None) -> None:
    """With an end or the answer to a check, as the timeline has it; where there is none, there is no member."""
    findings = [report(TX, events, found, NOW_MS) for found in judge(TX, events, SCOPE)]
    assert {one.remark for one in findings} == {remark}
    assert ("remark" in encode_findings(findings)) is (remark is not None)
    assert decode_findings(encode_findings(findings)) == findings


def test_remark_of_any_signs_is_read_from_its_file() -> None:
    """Also those that some take for the end of a line; and the next run keeps it."""
    odd = "a\u2028b\u2029c\x85d\x0b\x0c\x1c\r\n\ud7ff\u202e<script>"
    finding = Finding("a", "MISSING", "", "shop", "orders", [], "then", remark=odd)
    assert decode_findings(encode_findings([finding, make_finding()])) == [finding, make_finding()]
    assert [one.remark for one in compare([], decode_findings(encode_findings([finding])))] == [odd]


def test_runs_are_compared() -> None:
    """New, still there since its first day, gone; what was gone before is not told again."""
    before = [make_finding("a", first_seen="then"), make_finding("b", first_seen="then")]
    second = compare([make_finding("a"), make_finding("c")], before)
    assert [(one.transaction_id, one.state, one.first_seen) for one in second] == [
        ("a", STILL, "then"),
        ("c", NEW, "now"),
        ("b", CLEARED, "then"),
    ]
    assert [(one.transaction_id, one.state) for one in compare([], second)] == [("a", CLEARED), ("c", CLEARED)]
    assert compare([], compare([], second)) == []


@pytest.mark.parametrize(
    ("findings", "is_strict", "code"),
    [
        ([], True, 0),
        ([make_finding()], False, 1),
        ([make_finding(kind="UNPROVABLE")], False, 0),
        ([make_finding(kind="UNPROVABLE")], True, 4),
        ([make_finding(kind="STALE")] * 2, True, 0),
        ([make_finding(kind="STALE")] * 3, False, 1),
        ([make_finding(kind="STALE", topic=topic) for topic in ("a", "b", "c")], False, 1),
        ([make_finding(kind="STALE", topic=topic) for topic in ("a", "b", "metrics")], False, 0),
        ([make_finding(kind="DUPLICATE", topic="metrics")], False, 0),
        ([make_finding(kind="DUPLICATE")], False, 1),
        (compare([], [make_finding()]), False, 0),
    ],
)
def test_exit_code_follows_the_thresholds(findings: list[Finding], is_strict: bool, code: int) -> None:
    """That of a kind is for all topics together, but for one that has its own; cleared ones do not count."""
    thresholds = Thresholds({"STALE": 2}, {"metrics": {"DUPLICATE": 1, "STALE": 1}})
    assert decide_exit(findings, thresholds, is_strict=is_strict) == code


@pytest.mark.parametrize(
    "document",
    [
        {"kind": {}},
        {"kinds": {"LOST": 1}},
        {"kinds": {"STALE": -1}},
        {"kinds": {"STALE": True}},
        {"kinds": []},
        {"topics": []},
        {"topics": {"a": {"STALE": "1"}}},
        {"topics": {"a": 5}},
    ],
)
def test_thresholds_that_cannot_be_are_refused(document: dict[str, object]) -> None:
    """A typing error would let everything, or nothing, pass; what to write instead is said."""
    with pytest.raises(BadUsage) as raised:
        parse_thresholds(document)
    assert raised.value.remedy
