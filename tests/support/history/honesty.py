"""A, S, T: answers are true, nothing acknowledged is forgotten, and everything ends."""

from collections.abc import Iterator

from tests.support.history.clients import Refusal
from tests.support.history.evidence import COMMITTED, PARKED, PREPARED, ROLLED_BACK, Trouble
from tests.support.history.facts import Facts, Side
from tests.support.history.joined import Joined
from tests.support.history.violation import Kind, Violation

Found = Iterator[Violation]


def find_false_refusals(joined: Joined, facts: Facts) -> Found:
    """A call that was refused and took effect all the same; an end that nobody asked for."""
    if facts.refused is not None and (facts.state is not None or facts.records):
        text = f"{facts.refused} was refused, and the transaction is {facts.state}"
        yield Violation(Kind.FALSE_REFUSAL, facts.transaction_id, text)
    if "checks" not in joined.has or facts.contents is None or facts.refused is not None:
        return
    for state, side in ((COMMITTED, facts.commit), (ROLLED_BACK, facts.rollback)):
        if facts.state == state and (side is None or side.first_ms is None):
            yield _blame(facts, state, side)


def _blame(facts: Facts, state: str, side: Side | None) -> Violation:
    if side is not None and side.refused is not None:
        text = f"{side.refused} was refused, and it is {state}"
        return Violation(Kind.FALSE_REFUSAL, facts.transaction_id, text)
    kind = Kind.PHANTOM if state == COMMITTED else Kind.CONTRADICTION
    return Violation(kind, facts.transaction_id, f"it is {state}, and nobody said so")


def find_groundless_refusals(joined: Joined) -> Found:
    """Refused for good, though nothing was wrong with a topic that it asked for."""
    troubles = joined.rules.troubles
    for refusal in joined.told.refusals if troubles is not None else ():
        if not any(_explains(trouble, refusal, joined.rules.clock_slack_ms) for trouble in troubles or ()):
            topics = ", ".join(sorted({content.topic for content in refusal.invoke.messages}))
            text = f"{refusal.end.call_id} was refused at {refusal.end.at_ms} with {refusal.end.problem} for {topics}"
            yield Violation(Kind.FALSE_REFUSAL, None, text)


def _explains(trouble: Trouble, refusal: Refusal, slack_ms: int) -> bool:
    return (
        refusal.end.problem in trouble.problems
        and any(content.topic == trouble.topic for content in refusal.invoke.messages)
        and refusal.invoke.at_ms <= trouble.until_ms + slack_ms
        and refusal.end.at_ms >= trouble.from_ms - slack_ms
    )


def find_false_accepts(_: Joined, facts: Facts) -> Found:
    """A 2xx that is not true."""
    for lie in facts.lies:
        yield Violation(Kind.FALSE_ACCEPT, facts.transaction_id, lie)
    for state, side in ((COMMITTED, facts.commit), (ROLLED_BACK, facts.rollback)):
        if side is not None and side.ok is not None and facts.state != state:
            text = f"{side.ok} was told {state} at {side.ok_ms}, the truth is {facts.state}"
            yield Violation(Kind.FALSE_ACCEPT, facts.transaction_id, text)


def find_unrecovered(joined: Joined, facts: Facts) -> Found:
    """After an unknown outcome there is one truth that all views share, or nothing at all."""
    if facts.unknown is None:
        return
    views = {"truth": facts.state}
    for name, row in (("op", facts.op), ("sql", facts.sql), ("shown", facts.shown)):
        if row is not None or (name in joined.has and name != "op"):
            views[name] = None if row is None else row.state
    if len(set(views.values())) > 1:
        shown = ", ".join(f"{name} {state}" for name, state in views.items())
        yield Violation(Kind.UNRECOVERED, facts.transaction_id, f"after {facts.unknown} was unknown: {shown}")


def find_forgotten(joined: Joined, facts: Facts) -> Found:
    """An acknowledged prepare is in every view, and was whenever anybody asked."""
    if facts.acked is None:
        return
    told = f"{facts.acked} was acknowledged at {facts.acked_ms}"
    for part, row in (("journal", facts.half), ("sql", facts.sql)):
        if part in joined.has and row is None:
            yield Violation(Kind.FORGOTTEN, facts.transaction_id, f"{told}, and the {part} does not know it")
    forgotten = facts.forgotten
    if forgotten is not None and forgotten.asked_ms > facts.acked_ms + joined.rules.clock_slack_ms:
        text = f"{told}, and {forgotten.call_id} heard 404 at {forgotten.heard_ms}"
        yield Violation(Kind.FORGOTTEN, facts.transaction_id, text)


def find_bad_parks(joined: Joined, facts: Facts) -> Found:
    """Parked with its messages, in one Kafka transaction."""
    if "parked" not in joined.has or "op" not in joined.has:
        return
    if facts.state == PARKED and facts.parked is None:
        yield Violation(Kind.BAD_PARK, facts.transaction_id, "it is PARKED, and the parked topic has no record of it")
    elif facts.parked is not None and (facts.op is None or facts.op.parked is None):
        text = f"offset {facts.parked.offset} of the parked topic is its record, and no op message says so"
        yield Violation(Kind.BAD_PARK, facts.transaction_id, text)


def find_unsettled(joined: Joined, facts: Facts) -> Found:
    """Everything that is due has been decided and published."""
    if facts.state == PREPARED and facts.contents is not None and not joined.rules.may_pend:
        text = "it is still PREPARED"
        yield Violation(Kind.UNSETTLED, facts.transaction_id, text)
    if facts.op is not None and facts.op.blocked and not joined.rules.may_block:
        yield Violation(Kind.UNSETTLED, facts.transaction_id, "its commit is still blocked")
