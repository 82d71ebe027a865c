"""What the bridge may do, seen from outside over HTTP. Pure. Source: design, api and records pages, not the code.

Every call gives `Branch`es: the answers that are allowed, each with the transaction as it is afterwards. What the
bridge does by itself, asking and parking, has an earliest and a latest time: in between both are allowed, and the
answer that is seen tells which it was. Times are Kafka's, in milliseconds.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

PREPARED, COMMITTED, ROLLED_BACK, PARKED = "PREPARED", "COMMITTED", "ROLLED_BACK", "PARKED"
FINAL = {"COMMIT": COMMITTED, "ROLLBACK": ROLLED_BACK}
SLACK_MS = 4_000  # within it the bridge does what is due, endpoints that hang included
JITTER = 0.2  # of the interval, after a round nobody answered


class Terms(NamedTuple):
    """When a transaction is asked about. `timeout_ms`: or its immunity. `is_callable`: there is an endpoint."""

    timeout_ms: int = 6_000
    interval_ms: int = 30_000
    max_checks: int = 15
    life_ms: int = 86_400_000
    is_callable: bool = False


class Body(NamedTuple):
    """One message as it must arrive; `partition` None: chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None


class Content(NamedTuple):
    """What makes a repeat: all that is written, and the kind of call."""

    messages: tuple[Body, ...]
    ordering_key: str | None = None
    is_published: bool = False


@dataclass(frozen=True)
class Transaction:
    """`due_ms`, `late_ms`: the next check or parking comes between them. `rank`: of its commit."""

    id: str
    group: str
    content: Content
    terms: Terms
    since_ms: int
    first_ms: int
    due_ms: int
    late_ms: int
    state: str = PREPARED
    by: str | None = None
    checks: int = 0
    base: int = 0
    round_id: str | None = None
    asked_ms: int | None = None
    rank: int = 0
    is_abandoned: bool = False

    @property
    def is_exhausted(self) -> bool:
        """Whether all checks of this life have been answered."""
        return self.checks - self.base >= self.terms.max_checks

    @property
    def ordering_key(self) -> tuple[str, str, bytes]:
        """The effective one: within the group, or within group and topic."""
        own, first = self.content.ordering_key, self.content.messages[0]
        if own is not None:
            return self.group, "", own.encode()
        return (self.group, first.topic, first.key) if first.key is not None else ("", "", self.id.encode())

    def may_park(self, now_ms: int) -> bool:
        """After the maximum; or after its life, and only once it was asked about, or there was nobody to ask."""
        was_asked = self.asked_ms is not None or (not self.terms.is_callable and now_ms >= self.due_ms)
        return self.is_exhausted or (was_asked and now_ms >= self.since_ms + self.terms.life_ms)

    def must_park(self, now_ms: int) -> bool:
        """The latest time for it."""
        if self.is_exhausted:
            return now_ms > self.late_ms
        first_ms = self.first_ms if self.asked_ms is None else self.asked_ms
        return self.may_park(now_ms) and now_ms > max(self.since_ms + self.terms.life_ms, first_ms) + SLACK_MS

    def may_be(self, now_ms: int) -> Iterator["Transaction"]:
        """What it can be by now."""
        if self.state != PREPARED or not self.must_park(now_ms):
            yield self
        if self.state == PREPARED and self.may_park(now_ms):
            yield replace(self, state=PARKED)


class Answer(NamedTuple):
    """What a caller hears. `problem`: its code."""

    status: int
    problem: str | None = None
    state: str | None = None
    by: str | None = None
    checks: int | None = None


class Branch(NamedTuple):
    """An allowed answer, and the transaction after it."""

    answer: Answer
    after: Transaction


MISSING = Answer(404, "unknown-transaction")  # whatever is asked about one that nobody has prepared


def make(id_: str, group: str, content: Content, terms: Terms, now_ms: int, rank: int) -> Transaction:
    """A new one, as it is after its prepare or publish."""
    first_ms = now_ms + terms.timeout_ms
    made = Transaction(id_, group, content, terms, now_ms, first_ms, first_ms, first_ms + SLACK_MS)
    return replace(made, state=COMMITTED, by="producer", rank=rank) if content.is_published else made


def repeat(known: Transaction, content: Content, now_ms: int) -> list[Branch]:
    """A prepare or publish under a key that is known: 201 for PREPARED only."""
    if content != known.content:
        return [Branch(Answer(422, "idempotency-key-reused"), known)]
    return [Branch(Answer(201 if t.state == PREPARED else 200, state=t.state), t) for t in known.may_be(now_ms)]


def end(
    known: Transaction, word: str, now_ms: int, rank: int, *, group: str | None = None, number: int | None = None,
    by: str = "producer",
) -> list[Branch]:  # fmt: skip
    """COMMIT, ROLLBACK or UNKNOWN; `number`: as the answer to that check. The first resolution wins."""
    if group not in {None, known.group}:
        return [Branch(Answer(409, "producer-group-mismatch"), known)]
    return [_end(t, word, now_ms, rank, number, by) for t in known.may_be(now_ms)]


def _end(t: Transaction, word: str, now_ms: int, rank: int, number: int | None, by: str) -> Branch:
    is_final, is_next = t.state in FINAL.values(), number == t.checks + 1
    if is_final and FINAL.get(word, t.state) != t.state:
        return Branch(Answer(409, "already-resolved", t.state), t)
    if not is_final and word != "UNKNOWN":
        source = by if number is None else "check"
        t = replace(t, state=FINAL[word], by=source, rank=rank, checks=t.checks + is_next)
    elif t.state == PREPARED and is_next:
        due_ms = now_ms + t.terms.interval_ms
        t = replace(t, checks=t.checks + 1, due_ms=due_ms, late_ms=due_ms + SLACK_MS)
    return Branch(Answer(200, None, t.state, t.by, t.checks), t)


def resume(t: Transaction, now_ms: int) -> Branch:
    """A parked one begins a new life: asked at once, numbers go on."""
    if t.state != PARKED:
        return Branch(Answer(409, "not-parked", t.state), t)
    times = {"since_ms": now_ms, "first_ms": now_ms, "due_ms": now_ms, "late_ms": now_ms + SLACK_MS}
    again = replace(t, state=PREPARED, base=t.checks, asked_ms=t.asked_ms and now_ms, round_id=None, **times)
    return Branch(Answer(200, None, PREPARED, None, t.checks), again)


def abandon(t: Transaction, _: int, *, is_blocked: bool = False) -> Branch:
    """A blocked commit is given up: it stays committed, and nothing of it is ever seen."""
    if not is_blocked:
        return Branch(Answer(409, "not-blocked", t.state), t)
    return Branch(Answer(200, None, t.state, t.by, t.checks), replace(t, is_abandoned=True))


def ask_now(t: Transaction, now_ms: int) -> Branch:
    """An operator wants a check now; before the first due time nobody may."""
    if t.state != PREPARED:
        return Branch(Answer(409, "already-resolved", t.state), t)
    if not t.checks and now_ms < t.first_ms:
        return Branch(Answer(409, "too-early", PREPARED), t)
    return Branch(Answer(202), replace(t, due_ms=min(t.due_ms, now_ms)))


def get(t: Transaction, _: int) -> Branch:
    """A look changes nothing, but tells."""
    return Branch(Answer(200, None, t.state, t.by, t.checks), t)


def asked(t: Transaction, number: int, round_id: str, now_ms: int) -> Transaction:
    """The group is asked. Raises AssertionError if it should not be. A round may try several endpoints."""
    assert t.state == PREPARED, f"asked about a {t.state} one"
    assert number == t.checks + 1, f"check {number} after {t.checks} answered ones"
    assert not t.is_exhausted, "asked more often than allowed"
    assert round_id == t.round_id or now_ms >= t.due_ms, f"asked {t.due_ms - now_ms} ms too early"
    due_ms, wait_ms = now_ms + t.terms.interval_ms, int(t.terms.interval_ms * (1 + JITTER))
    return replace(t, round_id=round_id, asked_ms=now_ms, due_ms=due_ms, late_ms=now_ms + wait_ms + SLACK_MS)


def is_overdue(t: Transaction, now_ms: int) -> bool:
    """Whether it should have been asked about by now."""
    return t.state == PREPARED and t.terms.is_callable and not t.may_park(now_ms) and now_ms > t.late_ms


def count(transactions: Iterable[Transaction], now_ms: int) -> dict[str, tuple[int, int]]:
    """How many there are at least and at most in each state."""
    seen = [{t.state for t in known.may_be(now_ms)} for known in transactions]
    return {
        state: (seen.count({state}), sum(state in s for s in seen)) for state in (PREPARED, PARKED, *FINAL.values())
    }


def visible(transactions: Iterable[Transaction]) -> list[Transaction]:
    """Whose messages are in the real topics, in the order of their commits; equal ranks in any order."""
    return sorted((t for t in transactions if t.state == COMMITTED and not t.is_abandoned), key=lambda t: t.rank)


def read_message(message: dict[str, Any]) -> Body:
    """A message of a request as the model sees it."""
    value = message.get("value")
    text = value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    headers = tuple((name, None if v is None else v.encode()) for name, v in message.get("headers", []))
    key = message.get("key")
    return Body(
        message["topic"], None if key is None else key.encode(), None if text is None else text.encode(), headers,
        message.get("partition"),
    )  # fmt: skip


def answer_of(status: int, heard: dict[str, Any]) -> Answer:
    """The part of an answer that the model speaks of."""
    slug = heard["type"].rpartition("/")[2] if "type" in heard else None
    if slug is not None:
        assert heard["outcome"] == "not_applied"
    return Answer(status, slug, heard.get("state"), heard.get("resolved_by"), heard.get("check_times"))


def agree(allowed: Answer, seen: Answer) -> bool:
    """What the model leaves open may be anything."""
    return all(a in {None, s} for a, s in zip(allowed, seen, strict=True)) and allowed.problem == seen.problem
