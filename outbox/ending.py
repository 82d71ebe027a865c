"""The end of a transaction whose local part is over: what cannot be told the bridge now, it will ask."""

import logging

from outbox.errors import Conflict, GivenUp, OutboxError, Refused
from outbox.listener import (
    HalfMessage,
    LocalTransactionState,
    Receipt,
    Resolution,
    TransactionSendResult,
    TransactionState,
)
from outbox.replies import Prepared, TransactionView
from outbox.verbs import Verbs

_LOG = logging.getLogger(__name__)


async def end_or_leave(verbs: Verbs, half: HalfMessage, resolution: Resolution) -> TransactionView | OutboxError:
    """The transaction as it is recorded; or why the back-check must find out, which is logged."""
    try:
        return await verbs.end(half.transaction_id, resolution)
    except OutboxError as error:
        why = error.code if isinstance(error, Refused) else type(error).__name__
        level = logging.ERROR if is_contradiction(error) or isinstance(error, GivenUp) else logging.WARNING
        _LOG.log(level, "transaction %s: %s not acknowledged (%s)", half.transaction_id, resolution.name, why)
        return error


def is_contradiction(error: object) -> bool:
    """Whether the bridge has recorded the opposite, or can no longer do what it is told."""
    return isinstance(error, Conflict) and error.code in {"already-resolved", "body-expired"}


def result_of(
    half: HalfMessage,
    prepared: Prepared,
    local: LocalTransactionState,
    told: TransactionView | OutboxError,
    error: BaseException | None = None,
) -> TransactionSendResult:
    """What became of a send."""
    state, receipts, is_blocked = _recorded(told)
    return TransactionSendResult(
        half.transaction_id,
        local,
        is_settled=state is not None and state is not TransactionState.PREPARED,
        state=state,
        is_blocked=is_blocked,
        receipts=receipts,
        queue_id=prepared.queue_id,
        queue_offset=prepared.queue_offset,
        error=error,
    )


def _recorded(told: TransactionView | OutboxError) -> tuple[TransactionState | None, tuple[Receipt, ...], bool]:
    if isinstance(told, TransactionView):
        return told.state, told.receipts, told.is_blocked
    state = told.problem.state if is_contradiction(told) and isinstance(told, Refused) else None
    return (TransactionState(state) if state in set(TransactionState) else None), (), False
