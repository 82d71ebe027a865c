"""Findings as they are reported: compared with the last run's, weighed against thresholds. Pure.

Nothing that would publish is proposed unless it is proved that nothing of the transaction was ever published: what
is missing, for whatever reason, proves nothing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from spark.errors import BadUsage
from spark.judge.history import TransactionHistory, replay, why_not_unpublished
from spark.judge.rules import FindingKind, Found
from spark.read.envelope import EMPTY, OTHER_VERSION, Event, Evidence, OpState, Scope

NEW, STILL, CLEARED = "NEW", "STILL", "CLEARED"
FINDINGS_FILE = "findings.jsonl"
PASS, FINDINGS, WARNINGS = 0, 1, 4  # exit codes; 2 and 3 are those of errors
_UNREADABLE = {EMPTY: "is empty", OTHER_VERSION: "is of a version that nobody here knows: it halts its queue"}
_THRESHOLDS_REMEDY = 'Write it as {"kinds": {"STALE": 5}, "topics": {"orders": {"DUPLICATE": 1}}}.'
_WARNINGS_ONLY = frozenset({FindingKind.UNPROVABLE})


@dataclass(frozen=True, slots=True)
class ReportedEvidence:
    """A record that proves something."""

    leg: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of finding about one transaction. `topic`: a real topic it concerns, if any is known."""

    transaction_id: str
    kind: str
    detail: str
    group: str | None
    topic: str | None
    legs: Sequence[ReportedEvidence]
    first_seen: str
    state: str = NEW

    @property
    def name(self) -> tuple[str, str]:
        """What makes it the same finding in another run."""
        return (self.kind, self.transaction_id)


def report(tx: str, events: Sequence[Event], found: Found, now_ms: int) -> Finding:
    """A finding of the rules with what a reader wants to know besides."""
    legs = [ReportedEvidence(Evidence(e.leg).name.lower(), e.topic, e.part, e.off) for e in found.legs]
    return Finding(
        tx, found.kind.value, found.detail, replay(tx, events).group, _topic_of(events), legs, show_time(now_ms)
    )


def report_unreadable(event: Event, now_ms: int) -> Finding:
    """A record that cannot be read, named by its place; its transaction, if one can be seen, is in the text."""
    what = _UNREADABLE.get(event.code or 0, "is not of the format")
    detail = what + (f", of transaction {event.tx}" if event.tx else "")
    leg = ReportedEvidence(Evidence.UNREADABLE.name.lower(), event.topic, event.part, event.off)
    place = f"{event.topic}-{event.part}@{event.off}"
    return Finding(place, FindingKind.UNREADABLE.value, detail, event.grp, None, [leg], show_time(now_ms))


def compare(now: Iterable[Finding], before: Iterable[Finding]) -> list[Finding]:
    """The present findings as NEW or STILL, then those that are CLEARED; sorted, so that equal runs are equal."""
    known = {finding.name: finding for finding in before if finding.state != CLEARED}
    found = {finding.name: finding for finding in now}
    here = [
        replace(finding, state=STILL, first_seen=known[name].first_seen) if name in known else finding
        for name, finding in found.items()
    ]
    gone = [replace(finding, state=CLEARED) for name, finding in known.items() if name not in found]
    return sorted([*here, *gone], key=lambda finding: (finding.state == CLEARED, *finding.name))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How many findings are let pass: by kind, and by topic and kind, which comes first. Everything else: none."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def limit_of(self, kind: str, topic: str | None) -> int:
        """The number that is let pass."""
        return self.topics.get(topic or "", {}).get(kind, self.kinds.get(kind, 0))


def parse_thresholds(document: Mapping[str, Any]) -> Thresholds:
    """`{"kinds": {"STALE": 5}, "topics": {"orders": {"DUPLICATE": 1}}}`. Raises BadUsage."""
    unknown = sorted(document.keys() - {"kinds", "topics"})
    if unknown:
        raise BadUsage(f"thresholds: there is no {unknown[0]!r}", _THRESHOLDS_REMEDY)
    kinds, topics = document.get("kinds", {}), document.get("topics", {})
    if not isinstance(topics, Mapping):
        raise BadUsage(f"thresholds: topics are {topics!r}, no object", _THRESHOLDS_REMEDY)
    for place, limits in (("kinds", kinds), *((f"topic {name}", limits) for name, limits in topics.items())):
        if not isinstance(limits, Mapping):
            raise BadUsage(f"thresholds: {place} are {limits!r}, no object", _THRESHOLDS_REMEDY)
        for kind, limit in limits.items():
            _check_limit(place, kind, limit)
    return Thresholds(kinds, topics)


def _check_limit(place: str, kind: str, limit: object) -> None:
    if kind not in FindingKind.__members__:
        raise BadUsage(f"thresholds: {place}: there is no kind {kind!r}", f"Kinds are {', '.join(FindingKind)}.")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise BadUsage(f"thresholds: {place}: {kind} is {limit!r}", "Numbers are whole, from 0.")


def decide_exit(findings: Iterable[Finding], thresholds: Thresholds, *, is_strict: bool) -> int:
    """0 pass, 1 more findings than a threshold lets pass, 4 warnings only, where they count."""
    standing = Counter((one.kind, one.topic) for one in findings if one.state != CLEARED)
    over = {kind for (kind, topic), count in standing.items() if count > thresholds.limit_of(kind, topic)}
    if over - _WARNINGS_ONLY:
        return FINDINGS
    return WARNINGS if over and is_strict else PASS


def encode_lines(documents: Iterable[Mapping[str, Any]]) -> str:
    """JSON, a line each."""
    return "".join(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n" for document in documents)


def encode_findings(findings: Iterable[Finding]) -> str:
    """`findings.jsonl`."""
    return encode_lines(asdict(finding) for finding in findings)


def decode_findings(text: str) -> list[Finding]:
    """Findings of an earlier run. Raises BadUsage."""
    try:
        read = [json.loads(line) for line in text.splitlines() if line]
        return [Finding(**{**one, "legs": [ReportedEvidence(**leg) for leg in one["legs"]]}) for one in read]
    except (ValueError, KeyError, TypeError) as error:
        raise BadUsage(f"findings of the last run cannot be read: {error!r}") from error


def show_time(ms: int) -> str:
    """RFC 3339 with milliseconds."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _topic_of(events: Sequence[Event]) -> str | None:
    """The first real topic that is named, from what was asked for to what was seen."""
    asked = [message.topic for event in events for message in event.messages or ()]
    seen = [event.topic for event in events if event.leg == Evidence.VISIBLE]
    told = [receipt.topic for event in events for receipt in event.receipts or ()]
    return next(iter(asked), None) or min(seen, default=None) or next(iter(told), None)


def propose_repair(finding: Finding, events: Sequence[Event], scope: Scope) -> dict[str, Any] | None:
    """A call with what must be true before it; or nothing: what was published is for people to look at."""
    call = _call_for(finding, replay(finding.transaction_id, events), scope)
    if call is None:
        return None
    verb, body = call
    return {
        "transaction_id": finding.transaction_id,
        "kind": finding.kind,
        "method": "POST",
        "path": f"/v1/transactions/{finding.transaction_id}/{verb}",
        "body": body,
        "precondition": {"state": ["PREPARED"], "published": False},
        "evidence": [asdict(leg) for leg in finding.legs],
    }


def _call_for(finding: Finding, story: TransactionHistory, scope: Scope) -> tuple[str, dict[str, str] | None] | None:
    if finding.kind not in {FindingKind.STALE, FindingKind.UNSETTLED} or why_not_unpublished(story, scope) is not None:
        return None
    if finding.kind == FindingKind.STALE:
        return ("check", None) if story.decision is None else None
    if story.decision is None:
        return None
    resolution = "COMMIT" if story.decision == OpState.COMMITTED else "ROLLBACK"
    return "force", {"resolution": resolution, "reason": f"reconciliation: {finding.detail}"}
