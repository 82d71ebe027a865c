"""History -> what clients asked and heard of each transaction."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from tests.support.history.claims import Claims
from tests.support.history.content import effective_key
from tests.support.history.events import COMMITTING, MAKING, ROLLING_BACK, Call, End, Event, Fail, Invoke, Ok
from tests.support.history.evidence import COMMITTED, PREPARED, ROLLED_BACK
from tests.support.history.facts import Facts, Heard
from tests.support.history.violation import Kind, Violation

_FOR_NOW = frozenset({0, 429, 503})  # a repeat may be taken; 0: nobody was reached
_OF_ENDS = frozenset({404, 409})  # what it says is judged by the transaction's state


class Refusal(NamedTuple):
    """A call that was not applied."""

    invoke: Invoke
    end: Fail


class Told(Struct):
    """What the clients tell. `nonces`: checks that were answered through the API. `refusals`: for a reason that a
    repeat does not do away with."""

    transactions: dict[str, Facts]
    claims: Claims
    nonces: set[str]
    violations: list[Violation]
    ids_of_keys: dict[tuple[str, str], str]
    unknown_keyed: list[Invoke]
    refusals: list[Refusal]
    calls: int = 0
    unknown_calls: int = 0

    def find(self, transaction_id: str) -> Facts:
        """The facts of a transaction, empty at first."""
        facts = self.transactions.get(transaction_id)
        if facts is None:
            facts = self.transactions[transaction_id] = Facts(transaction_id)
        return facts


def read_history(events: Iterable[Event]) -> Told:
    """Raises ValueError for an end without its invoke."""
    told = Told({}, Claims(), set(), [], {}, [], [])
    open_calls: dict[str, Invoke] = {}
    for event in events:
        if isinstance(event, Invoke):
            open_calls[event.call_id] = event
            continue
        invoke = open_calls.pop(event.call_id, None)
        if invoke is None:
            raise ValueError(f"{event.call_id} ended and was never invoked")
        _note(told, invoke, event)
    for invoke in open_calls.values():
        _note(told, invoke, None)
    _begin_with_the_first(told)
    return told


def _begin_with_the_first(told: Told) -> None:
    """A keyed call of unknown outcome may be what made the transaction that a repeat was told of."""
    for invoke in told.unknown_keyed:
        transaction_id = told.ids_of_keys.get((invoke.group or "", invoke.idempotency_key or ""))
        if transaction_id is None:
            continue
        facts = told.find(transaction_id)
        facts.asked_ms = min(facts.asked_ms, invoke.at_ms)
        if invoke.call in COMMITTING:
            facts.committing().may_begin(invoke.at_ms)


def _note(told: Told, invoke: Invoke, end: End | None) -> None:
    told.calls += 1
    told.unknown_calls += not isinstance(end, Ok | Fail)
    if invoke.nonce is not None:
        told.nonces.add(invoke.nonce)
    facts = _note_making(told, invoke, end) if invoke.call in MAKING else told.find(invoke.transaction_id or "")
    if facts is None:
        return
    if isinstance(end, Fail) and end.status not in _FOR_NOW | _OF_ENDS:
        told.refusals.append(Refusal(invoke, end))
    _note_sides(facts, invoke, end)
    if isinstance(end, Ok | Fail):
        _note_answer(facts, invoke, end)
    elif invoke.call is not Call.GET:
        facts.unknown = facts.unknown or invoke.call_id
    if invoke.call is Call.ABANDON and not isinstance(end, Fail):
        facts.given_up_by = facts.given_up_by or invoke.call_id
    if invoke.call in {Call.RESUME, Call.CHECK} and not isinstance(end, Fail):
        facts.is_hastened = True
        facts.resumes += invoke.call is Call.RESUME


def _note_making(told: Told, invoke: Invoke, end: End | None) -> Facts | None:
    transaction_id = None if end is None else end.transaction_id
    if isinstance(end, Fail) or transaction_id is None:
        if isinstance(end, Ok):
            told.violations.append(Violation(Kind.FALSE_ACCEPT, None, f"{invoke.call_id} got 2xx without an id"))
        told.claims.add(invoke, is_refused=isinstance(end, Fail))
        if isinstance(end, Fail) and end.status not in _FOR_NOW:
            told.refusals.append(Refusal(invoke, end))
        if invoke.idempotency_key is not None and not isinstance(end, Fail):
            told.unknown_keyed.append(invoke)
        return None
    facts = told.find(transaction_id)
    _check_mixture(told, facts, invoke)
    describe(facts, invoke)
    if isinstance(end, Ok):
        _note_key(told, facts, invoke)
        if facts.acked is None or end.at_ms < facts.acked_ms:
            facts.acked, facts.acked_ms = invoke.call_id, end.at_ms
    return facts


def describe(facts: Facts, invoke: Invoke) -> None:
    """What this call asked for is what the transaction should hold."""
    if facts.contents is not None:
        facts.asked_ms = min(facts.asked_ms, invoke.at_ms)
        return
    facts.group, facts.contents, facts.asked_ms = invoke.group, invoke.messages, invoke.at_ms
    facts.order = effective_key(invoke.group, invoke.ordering_key, invoke.messages)
    facts.immunity_s, facts.max_checks = invoke.immunity_s or 0, invoke.max_checks


def _check_mixture(told: Told, facts: Facts, invoke: Invoke) -> None:
    if facts.contents is not None and (facts.contents, facts.group) != (invoke.messages, invoke.group):
        text = f"{invoke.call_id} asked for other content and was given the same id"
        told.violations.append(Violation(Kind.MIXTURE, facts.transaction_id, text))


def _note_key(told: Told, facts: Facts, invoke: Invoke) -> None:
    if invoke.idempotency_key is None:
        return
    pair = (invoke.group or "", invoke.idempotency_key)
    known = told.ids_of_keys.setdefault(pair, facts.transaction_id)
    if known == facts.transaction_id:
        return
    is_same = told.find(known).contents == invoke.messages
    kind = Kind.TWICE_PREPARED if is_same else Kind.MIXTURE
    text = f"{invoke.call_id} used idempotency key {pair[1]!r} of {known} and was given another id"
    told.violations.append(Violation(kind, facts.transaction_id, text))


def _note_sides(facts: Facts, invoke: Invoke, end: End | None) -> None:
    is_refused = isinstance(end, Fail)
    if invoke.call in COMMITTING:
        is_told = isinstance(end, Ok) and end.state == COMMITTED
        facts.committing().note(invoke, end, is_told=is_told, is_refused=is_refused)
    elif invoke.call in ROLLING_BACK:
        is_told = isinstance(end, Ok) and end.state == ROLLED_BACK
        facts.rolling_back().note(invoke, end, is_told=is_told, is_refused=is_refused)


_STATE_OF = {
    Call.COMMIT: COMMITTED,
    Call.FORCE_COMMIT: COMMITTED,
    Call.ROLLBACK: ROLLED_BACK,
    Call.FORCE_ROLLBACK: ROLLED_BACK,
}


def _note_answer(facts: Facts, invoke: Invoke, end: Ok | Fail) -> None:
    if end.state is not None:
        receipts = tuple((r.topic, r.queue_id, r.queue_offset) for r in end.receipts)
        is_silent = isinstance(end, Fail) and end.state == COMMITTED
        blocked = None if is_silent or end.abandoned else end.blocked
        heard = Heard(end.call_id, invoke.at_ms, end.at_ms, end.state, blocked, receipts)
        facts.hear(heard, is_abandoned=end.abandoned)
    if end.problem == "unknown-transaction" and (facts.forgotten is None or facts.forgotten.asked_ms < invoke.at_ms):
        facts.forgotten = Heard(end.call_id, invoke.at_ms, end.at_ms, "", blocked=False, receipts=())
    lie = _find_lie(facts, invoke, end)
    if lie is not None:
        facts.lies = (*facts.lies, f"{end.call_id} ({invoke.call}) {lie}")


def _find_lie(facts: Facts, invoke: Invoke, end: Ok | Fail) -> str | None:
    """An answer that is wrong in itself, whatever else happened."""
    wanted = _STATE_OF.get(invoke.call)
    if isinstance(end, Fail):
        is_done = wanted is not None and end.problem == "already-resolved" and end.state == wanted
        return f"was refused as already resolved, and {end.state} is what it wanted" if is_done else None
    if wanted is not None and end.state not in {None, wanted}:
        return f"got {end.status} with {end.state}"
    if end.abandoned or invoke.call is Call.ABANDON:
        is_true = end.abandoned and end.state == COMMITTED and not (end.blocked or end.receipts)
        return None if is_true else f"got {end.status}, {end.state} that is not abandoned, or not only that"
    if end.status == 201 and end.state not in {None, PREPARED}:
        return f"got 201 with {end.state}"
    if invoke.call is not Call.GET and end.status == 200 and end.state == COMMITTED and end.blocked:
        return "got 200 for a commit that is blocked"
    is_whole = end.status == 200 and end.state == COMMITTED and invoke.call in COMMITTING and facts.contents is not None
    is_short = is_whole and len(end.receipts) != len(facts.contents or ())
    return f"got {len(end.receipts)} receipts for {len(facts.contents or ())} messages" if is_short else None
