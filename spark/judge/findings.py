"""Findings as a run tells them: since when, how sure, and what each kind means to whoever is woken by it.

Nothing that would publish is proposed unless it is proved that nothing of the transaction was ever published: what
is missing, for whatever reason, proves nothing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from spark.errors import BadUsage
from spark.judge.history import TransactionHistory, replay, why_not_unpublished
from spark.judge.rules import FindingKind, Found
from spark.read.envelope import EMPTY, OTHER_VERSION, Event, Evidence, OpState, Scope

# --- findings as they are reported: compared with the last run's, weighed against thresholds ---

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
    """One kind of finding about one transaction. `topic`: a real topic it concerns, if any is known; `remark`: what
    its producer said last, with an end or the answer to a check."""

    transaction_id: str
    kind: str
    detail: str
    group: str | None
    topic: str | None
    legs: Sequence[ReportedEvidence]
    first_seen: str
    state: str = NEW
    remark: str | None = None

    @property
    def name(self) -> tuple[str, str]:
        """What makes it the same finding in another run."""
        return (self.kind, self.transaction_id)


def report(tx: str, events: Sequence[Event], found: Found, now_ms: int) -> Finding:
    """A finding of the rules with what a reader wants to know besides."""
    legs = [ReportedEvidence(Evidence(e.leg).name.lower(), e.topic, e.part, e.off) for e in found.legs]
    story, at = replay(tx, events), show_time(now_ms)
    return Finding(tx, found.kind.value, found.detail, story.group, _topic_of(events), legs, at, remark=story.remark)


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
    """How many findings are let pass: by kind in all topics together, but for topics that have a number of their own.
    Everything else: none."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def find_exceeded(self, findings: Iterable[tuple[str, str | None]]) -> set[str]:
        """Kinds of which there are more than are let pass; `findings`: kind and topic of each."""
        counts = Counter(
            (kind, topic if kind in self.topics.get(topic or "", {}) else None) for kind, topic in findings
        )
        return {kind for (kind, topic), count in counts.items() if count > self._limit_of(kind, topic)}

    def _limit_of(self, kind: str, topic: str | None) -> int:
        return self.kinds.get(kind, 0) if topic is None else self.topics[topic][kind]


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
            if kind not in FindingKind.__members__:
                raise BadUsage(
                    f"thresholds: {place}: there is no kind {kind!r}", f"Kinds are {', '.join(FindingKind)}."
                )
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
                raise BadUsage(f"thresholds: {place}: {kind} is {limit!r}", "Numbers are whole, from 0.")
    return Thresholds(kinds, topics)


def decide_exit(findings: Iterable[Finding], thresholds: Thresholds, *, is_strict: bool) -> int:
    """0 pass, 1 more findings than a threshold lets pass, 4 warnings only, where they count."""
    over = thresholds.find_exceeded((one.kind, one.topic) for one in findings if one.state != CLEARED)
    if over - _WARNINGS_ONLY:
        return FINDINGS
    return WARNINGS if over and is_strict else PASS


def encode_lines(documents: Iterable[Mapping[str, Any]]) -> str:
    """JSON, a line each."""
    return "".join(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n" for document in documents)


def encode_findings(findings: Iterable[Finding]) -> str:
    """`findings.jsonl`."""
    return encode_lines(_members_of(finding) for finding in findings)


def _members_of(finding: Finding) -> dict[str, Any]:
    """A remark only where there is one."""
    members = asdict(finding)
    if finding.remark is None:
        del members["remark"]
    return members


def decode_findings(text: str) -> list[Finding]:
    """Findings of an earlier run. Raises BadUsage."""
    try:
        # a text may hold what `splitlines` takes for the end of a line
        read = [json.loads(line) for line in text.split("\n") if line]
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
        **({} if finding.remark is None else {"remark": finding.remark}),
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


# --- what each kind of finding means to whoever is woken by it, and what to look at first ---


class Advice(NamedTuple):
    """Two sentences for people: what has happened, what to do first."""

    meaning: str
    first_step: str


ADVICE: Mapping[FindingKind, Advice] = {
    FindingKind.MISSING: Advice(
        "Committed, but none of its messages can be read.",
        "Consumers never had it. Look what happened at the offsets of the receipt: records deleted, an unclean "
        "leader election, a topic made anew. The half message in the journal still holds the message.",
    ),
    FindingKind.PARTIAL: Advice(
        "Committed, but only some of its messages can be read.",
        "Consumers of the rest never had theirs. Look at the offsets of the receipts, as for MISSING.",
    ),
    FindingKind.DUPLICATE: Advice(
        "A message can be read more than once.",
        "Consumers that do not drop repeats by the header transaction-id have acted twice: inform their owners. Then "
        "look for whoever copies records: a restore, a mirror, a second writer.",
    ),
    FindingKind.PHANTOM: Advice(
        "Readable, although it was rolled back, parked or never decided.",
        "Consumers have seen what did not happen: inform their owners. Find who wrote the record; nothing but the "
        "bridge may set the header transaction-id.",
    ),
    FindingKind.ORPHAN: Advice(
        "Names a transaction that nobody has prepared.",
        "A commit alone is a producer that commits what it never prepared (it was answered 404). A record or an op "
        "message means that somebody else writes to these topics, or that the journal has lost records.",
    ),
    FindingKind.CORRUPT: Advice(
        "Key, value, headers or timestamp are not what was prepared.",
        "Compare the record with the half message at the offsets below, and look for whatever rewrites records: "
        "an interceptor, a transformation, a restore.",
    ),
    FindingKind.WRONG_PLACE: Advice(
        "Published to another topic or partition than asked for, or than its key belongs to.",
        "Consumers of the right one did not have it, or not in the order of its key. Was it moved or copied by hand?",
    ),
    FindingKind.WRONG_RECEIPT: Advice(
        "The message is there; its receipt points elsewhere.",
        "Consumers are right, the API's receipts are not. Was the topic restored or copied?",
    ),
    FindingKind.CONTRADICTION: Advice(
        "The op topic says something else than the first recorded end, or two things.",
        "The journal is right. Do not act on what the API says of these, keep the records below, and report it.",
    ),
    FindingKind.UNREADABLE: Advice(
        "A record of an internal topic cannot be read, or is empty where none may be.",
        "Of another version, it halts its queue: `outbox-bridge doctor` shows it. All others are passed over. Nobody "
        "but the bridge may write these topics: look who did, and take the right away. An empty op message lets "
        "compaction remove a state: the next owner then takes what has ended for undecided.",
    ),
    FindingKind.UNSETTLED: Advice(
        "Ended by its producer, but nothing has followed.",
        "Does a settler own the queue? `outbox-bridge doctor` looks. Where nothing can have been published, "
        "`outbox-bridge report repair` sends the same end once more. Where a record is visible, the op message was "
        "lost: do not commit it again, and look what has removed records of the op topic.",
    ),
    FindingKind.STALE: Advice(
        "Undecided for longer than its longest life.",
        "It is not asked about, or not parked when its time was over: look at the settler and the group's "
        "endpoints. `outbox-bridge report repair` asks again.",
    ),
    FindingKind.BAD_PARK: Advice(
        "Parked, but its parked copy is missing, or is another message.",
        "Do not take the message from the parked topic; the half message in the journal is the right one.",
    ),
    FindingKind.BAD_CHECK: Advice(
        "Asked about too often, too early, or after its end.",
        "Nothing is lost. Was a limit of the group changed inside the window? Else compare the machines' clocks.",
    ),
    FindingKind.WRONG_GROUP: Advice(
        "Ended by another producer group than its own.",
        "Two producers share ids, or one has a wrong group name: look which of them wrote the end.",
    ),
    FindingKind.OUT_OF_ORDER: Advice(
        "Published before an earlier commit of the same ordering key, or before an earlier message of its own.",
        "Consumers may have kept the older of two states of one thing: look at both records, then report it.",
    ),
    FindingKind.TABLE_MISMATCH: Advice(
        "The producer's own table and the topics do not agree.",
        "The row is what the producer has committed: compare it with the transaction's timeline.",
    ),
    FindingKind.UNPROVABLE: Advice(
        "Retention, compaction, or the owner of a topic that was deleted and made anew, has removed the proof.",
        "Nothing is known to be wrong, and nothing can be shown to be right. Reconcile more often than the topics "
        "forget, or keep them longer. What a deleted topic held, and consumers still need, the half messages in the "
        "journal still hold.",
    ),
}
