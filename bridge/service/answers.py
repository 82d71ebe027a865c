"""What callers may do, and what they get: views of op messages, refusals. Pure."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from bridge.core.grants import Rights, Verb
from bridge.core.measures import show_time
from bridge.core.op_message import AnswerCode
from bridge.core.record import Resolution, Source
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import EndCall, Outcome, PrepareCall, RefusalCode, Refused
from bridge.service.replies import ReceivedReply
from bridge.store.message_store import PutResult, PutStatus, Refusal

# --- what callers get: views of op messages, refusals of puts and of states ---

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})

# Python finds a member of an enum, and its hash, only slowly.
_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
_COMMIT, _UNKNOWN = Resolution.COMMIT, Resolution.UNKNOWN
_BY_PRODUCER, _PREPARE, _DECIDE = Source.PRODUCER, Verb.PREPARE, Verb.DECIDE
_PUT_OK, _OTHER_GROUP = PutStatus.PUT_OK, RefusalCode.PRODUCER_GROUP_MISMATCH


def refuse_put(result: PutResult, transaction_id: str) -> Refused | None:
    """The refusal of a put that is certainly not, or perhaps, written; None if it is."""
    if result.status is _PUT_OK:
        return None
    if result.status is PutStatus.OUTCOME_UNKNOWN:
        return refuse_unknown(transaction_id)
    if result.refusal is Refusal.MESSAGE_TOO_LARGE:
        return Refused(RefusalCode.MESSAGE_TOO_LARGE, "the transaction is larger than the journal takes")
    if result.refusal is Refusal.HALTED:
        return Refused(RefusalCode.UNAVAILABLE, result.detail, transaction_id=transaction_id, retry_after_s=10)
    return Refused(RefusalCode.UNAVAILABLE, "the journal does not take records now", retry_after_s=1)


def refuse_unheard(transaction_id: str | None = None) -> Refused:
    """The settlers' decision would not arrive."""
    return refuse_unavailable("answers of the settlers cannot be heard now", transaction_id)


def refuse_unknown(transaction_id: str) -> Refused:
    """The outcome is unknown, and may still change: the same call again, or a look, gives the truth."""
    detail = "not known in time; repeat the call, or look the transaction up"
    return Refused(RefusalCode.OUTCOME_UNKNOWN, detail, Outcome.UNKNOWN, transaction_id)


def refuse_given_up(view: TransactionView) -> Refused:
    """No log says what became of it, and none will. The answer is neither "not applied" nor "unknown": a repeat of
    the call gets the same, and an earlier call may have been published."""
    given_up_at = show_time(view.given_up_ms or 0)
    detail = (
        f"the log that held this transaction was lost, and an operator gave it up at {given_up_at}; "
        f"it was last seen {view.state.value}, and this call has changed nothing"
    )
    return Refused(RefusalCode.GIVEN_UP, detail, None, view.transaction_id, view.state)


def refuse_unavailable(detail: str, transaction_id: str | None = None) -> Refused:
    """Nothing happened; the same call may succeed soon."""
    return Refused(RefusalCode.UNAVAILABLE, detail, transaction_id=transaction_id, retry_after_s=1)


def refuse_missing(transaction_id: str, lost_ms: int | None = None) -> Refused:
    """There is no such transaction. `lost_ms`: when a log was given up that may have held it, unknown to all others."""
    if lost_ms is not None:
        detail = (
            f"nobody knows this transaction; the log that may have held it was lost, and an operator gave it up at "
            f"{show_time(lost_ms)}; this call has changed nothing"
        )
        return Refused(RefusalCode.GIVEN_UP, detail, None, transaction_id)
    return Refused(RefusalCode.UNKNOWN_TRANSACTION, "no such transaction", transaction_id=transaction_id)


def refuse_group(group: str) -> Refused:
    """Nobody created the group."""
    detail = f"producer group {group} does not exist: `outbox-bridge group put` makes it"
    return Refused(RefusalCode.UNKNOWN_PRODUCER_GROUP, detail)


def answer_end(call: EndCall, heard: ReceivedReply) -> TransactionView | Refused | None:
    """The answer to an end that its queue's owner has decided; None if the owner does not know the transaction."""
    view, code = heard.view, heard.code
    if view is None or code is AnswerCode.UNKNOWN_TRANSACTION:
        return None
    if code is AnswerCode.GROUP_MISMATCH:
        return _refuse_group(call.transaction_id)
    if code is AnswerCode.BODY_EXPIRED:
        detail = "no log has the messages of this transaction any more"
        return Refused(RefusalCode.BODY_EXPIRED, detail, transaction_id=call.transaction_id, state=view.state)
    return compare_end(call, view)


def compare_end(call: EndCall, view: TransactionView) -> TransactionView | Refused:
    """The recorded state as the answer to an end: a repeat gets the same answer, a contradiction the recorded state."""
    if call.group is not None and call.group != view.group:
        return _refuse_group(call.transaction_id)
    if view.is_unproven:
        return refuse_given_up(view)
    resolution, state = call.resolution, view.state
    if state is (_COMMITTED if resolution is _COMMIT else _ROLLED_BACK) or resolution is _UNKNOWN:
        return view
    if state is _COMMITTED or state is _ROLLED_BACK:
        detail = f"the transaction is {view.state.value}"
        return Refused(RefusalCode.ALREADY_RESOLVED, detail, transaction_id=view.transaction_id, state=view.state)
    return refuse_unknown(call.transaction_id)


def _refuse_group(transaction_id: str) -> Refused:
    detail = "the transaction belongs to another producer group"
    return Refused(RefusalCode.PRODUCER_GROUP_MISMATCH, detail, transaction_id=transaction_id)


# --- what callers may do: the rules for every call, whichever way it came ---

_ANY_GROUP = "for any producer group"


def refuse_prepare(rights: Rights, call: PrepareCall) -> Refused | None:
    """Why this may not be prepared, whatever else is said of it."""
    may, group = rights.may, call.group
    for message in call.messages:
        if not may(_PREPARE, group, message.topic):
            return refuse_right(_PREPARE, f"for producer group {group} and topic {message.topic}")
    return None


T = TypeVar("T")


def scope_ends(rights: Rights, calls: Iterable[EndCall]) -> list[EndCall | Refused]:
    """Each as `scope_end` has it."""
    only = rights.find_only_group(_DECIDE)
    return [
        replace(call, group=only)
        if only is not None and call.group is None and call.source is _BY_PRODUCER
        else scope_end(rights, call)
        for call in calls
    ]


def scope_end(rights: Rights, call: EndCall) -> EndCall | Refused:
    """The end in the name of a group that the caller may decide for. For him there are no transactions of others."""
    verb = Verb.CHECK if call.source is Source.CHECK else _DECIDE
    if call.group is None:
        only = rights.find_only_group(verb)
        return replace(call, group=only) if only is not None else _refuse_unscoped(rights, verb) or call
    if rights.may(verb, call.group):
        return call
    return refuse_missing(call.transaction_id) if rights.may_somewhere(verb) else refuse_right(verb, _ANY_GROUP)


def _refuse_unscoped(rights: Rights, verb: Verb) -> Refused | None:
    """Why an end that names no group may not be made."""
    if rights.may_everywhere(verb):
        return None
    if not rights.may_somewhere(verb):
        return refuse_right(verb, _ANY_GROUP)
    detail = "which group's? this caller may not decide for all of them"
    return Refused(RefusalCode.INVALID_REQUEST, detail, errors=(("/producer_group", detail),))


def hide_others(rights: Rights, answer: T) -> T | Refused:
    """The answer to an end, to somebody who must not learn that another group has such a transaction."""
    if not isinstance(answer, Refused) or answer.code is not _OTHER_GROUP:
        return answer
    is_all_known = rights.may_everywhere(Verb.READ) or answer.transaction_id is None
    return answer if is_all_known else refuse_missing(answer.transaction_id or "")


def refuse_view(rights: Rights, verb: Verb, view: TransactionView) -> Refused | None:
    """Why this may not be done to a transaction that was found; who may not even read it learns nothing of it."""
    if rights.may(verb, view.group):
        return None
    if verb is Verb.READ or not rights.may(Verb.READ, view.group):
        return refuse_missing(view.transaction_id)
    return refuse_right(verb, f"for producer group {view.group}")


def refuse_for_group(rights: Rights, verb: Verb, group: str) -> Refused | None:
    """Why this may not be done to a producer group; to somebody with no right to it, it does not exist."""
    if rights.may(verb, group):
        return None
    is_known = any(rights.may(other, group) for other in Verb)
    return refuse_right(verb, f"for producer group {group}") if is_known else refuse_group(group)


def refuse_right(verb: Verb, what: str) -> Refused:
    """The caller is known, and was not granted this."""
    return Refused(RefusalCode.FORBIDDEN, f"this caller was not granted `{verb.value}` {what}")
