"""What callers get: views of op messages, refusals of puts and of states. Pure."""

from bridge.core.moment import show_time
from bridge.core.op_message import AnswerCode
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import EndCall, Outcome, RefusalCode, Refused
from bridge.service.replies import ReceivedReply
from bridge.store.message_store import PutResult, PutStatus, Refusal

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})

# Python finds a member of an enum, and its hash, only slowly.
_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
_COMMIT, _UNKNOWN = Resolution.COMMIT, Resolution.UNKNOWN
_PUT_OK = PutStatus.PUT_OK


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
