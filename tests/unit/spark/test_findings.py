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
from tests.support.envelope_rows import NOW_MS, SCOPE, TX, commit, half, op


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
        ([make_finding(kind="DUPLICATE", topic="metrics")], False, 0),
        ([make_finding(kind="DUPLICATE")], False, 1),
        (compare([], [make_finding()]), False, 0),
    ],
)
def test_exit_code_follows_the_thresholds(findings: list[Finding], is_strict: bool, code: int) -> None:
    """A topic's own threshold comes before that of the kind; cleared ones do not count."""
    thresholds = Thresholds({"STALE": 2}, {"metrics": {"DUPLICATE": 1}})
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
