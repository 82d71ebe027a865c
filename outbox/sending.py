"""RocketMQ's `sendMessageInTransaction`: prepare, local transaction, end. Source: DefaultMQProducerImpl."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from outbox.calls import PrepareOptions
from outbox.ending import end_or_leave, result_of
from outbox.errors import NotPrepared, OutcomeUnknown
from outbox.listener import HalfMessage, LocalTransactionState, TransactionSendResult, as_local_state
from outbox.message import Message
from outbox.replies import Prepared
from outbox.verbs import Verbs

_LOG = logging.getLogger(__name__)

Execute: TypeAlias = Callable[[HalfMessage, object], Awaitable[object]]


async def send_in_transaction(
    verbs: Verbs, execute: Execute, messages: Message | Sequence[Message], arg: object, options: PrepareOptions
) -> TransactionSendResult:
    """The local transaction runs only once the half message is stored; whatever it does, its end is told.

    Raises OutboxError if it did not run.
    """
    half, prepared = await _prepare(verbs, messages, options)
    local, error = LocalTransactionState.UNKNOWN, None
    try:
        local = _read_local(half, await execute(half, arg))
    except Exception as raised:  # noqa: BLE001 - the user's code; RocketMQ takes any exception for UNKNOW
        error = raised
        _LOG.warning("transaction %s: local transaction raised %s", half.transaction_id, type(raised).__name__)
    told = await end_or_leave(verbs, half, local.resolution)
    return result_of(half, prepared, local, told, error)


async def _prepare(
    verbs: Verbs, messages: Message | Sequence[Message], options: PrepareOptions
) -> tuple[HalfMessage, Prepared]:
    try:
        return await verbs.prepare(messages, options)
    except OutcomeUnknown as error:
        raise NotPrepared(f"whether the half message is stored is unknown: {error}") from error


def _read_local(half: HalfMessage, answer: object) -> LocalTransactionState:
    local = as_local_state(answer)
    if local is not answer:
        _LOG.warning("transaction %s: the listener returned %s", half.transaction_id, type(answer).__name__)
    return local
