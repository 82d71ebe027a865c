"""Refusals that are the same wherever they are given: of what is asked, and of what a caller may not do. Pure."""

from bridge.core.grants import Rights, Verb
from bridge.core.measures import show_time
from bridge.core.transaction import TransactionState, TransactionView
from bridge.service.contract import Outcome, RefusalCode, Refused

# --- refusals of what is asked, and of states ---

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})


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


# --- what callers may do: the rules for every call, whichever way it came ---


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
