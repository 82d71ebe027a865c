"""RocketMQ's TransactionProducer, for threads and for event loops. Source: DefaultMQProducerImpl."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from typing import TypeAlias, TypeVar, Unpack

from outbox.client.block import end_or_leave, prepare_or_fail, result_of
from outbox.client.bridge import AsyncBridge, Bridge
from outbox.client.caller import BridgeClient, CallTime
from outbox.client.calls import PrepareOptions
from outbox.client.check_pool import MAX_CHECK_S, AsyncCheckPool, CheckPool
from outbox.client.config import BridgeConfig
from outbox.client.errors import Misuse
from outbox.client.listener import (
    AsyncTransactionListener,
    Check,
    CheckAnswer,
    HalfMessage,
    LocalTransactionState,
    Resolution,
    TransactionListener,
    TransactionSendResult,
    as_local_state,
)
from outbox.client.local_transaction import RecordWriter
from outbox.client.message import Message

_LOG = logging.getLogger(__name__)

Execute: TypeAlias = Callable[[HalfMessage, object], Awaitable[object]]


async def send_in_transaction(
    verbs: BridgeClient, execute: Execute, messages: Message | Sequence[Message], arg: object, options: PrepareOptions
) -> TransactionSendResult:
    """The local transaction runs only once the half message is stored; its end is reported, whatever it does.

    Raises OutboxError if it did not run.
    """
    time = CallTime(verbs.config.block_timeout_s)
    half, prepared = await prepare_or_fail(verbs, messages, options, time)
    local, error = LocalTransactionState.UNKNOWN, None
    try:
        local = _read_local(half, await execute(half, arg))
    except Exception as raised:  # noqa: BLE001 - the user's code; RocketMQ takes any exception for UNKNOW
        error = raised
        _LOG.warning("transaction %s: local transaction raised %s", half.transaction_id, type(raised).__name__)
    remark = None if error is None else f"{type(error).__name__}: {error}"  # as RocketMQ's producer sends it
    told = await end_or_leave(verbs, half, local.resolution, time, remark=remark)
    return result_of(half, prepared, local, told, error)


def _read_local(half: HalfMessage, answer: object) -> LocalTransactionState:
    local = as_local_state(answer)
    if local is not answer:
        _LOG.warning("transaction %s: the listener returned %s", half.transaction_id, type(answer).__name__)
    return local


C = TypeVar("C", bound=Check)


class TransactionProducer(Bridge):
    """Sends messages with local transactions that a listener runs, and answers checks with it."""

    def __init__(
        self,
        producer_group: str,
        listener: TransactionListener,
        url: str,
        *,
        config: BridgeConfig | None = None,
        record: RecordWriter | None = None,
    ) -> None:
        super().__init__(url, producer_group, config=config, record=record)
        if not isinstance(listener, TransactionListener):
            raise Misuse("the listener must be a TransactionListener")
        self._listener = listener
        self._checks = CheckPool(
            listener.check_local_transaction, self.config.check_threads, self.config.max_waiting_checks
        )

    def send_message_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None, **options: Unpack[PrepareOptions]
    ) -> TransactionSendResult:
        """Stores the half message, runs the local transaction in this thread, ends the transaction.

        Raises OutboxError if the local transaction did not run. What the listener raises is UNKNOWN, and in the result.
        """
        return self._run(send_in_transaction(self._verbs, self._execute, message, arg, options))

    def answer_checks(self, checks: Sequence[Check], timeout_s: float) -> list[CheckAnswer]:
        """What the listener knows within the time; checks that found no place or took too long are left out."""
        with closing(self._checks.answer(checks, timeout_s)) as answered:
            return [CheckAnswer(check.transaction_id, check.nonce, resolution) for check, resolution in answered]

    def answer(self, checks: Sequence[C], tell: Callable[[C, Resolution], None]) -> None:
        """The same for a CheckHandler: sends each answer as soon as it is known."""
        with closing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            for check, resolution in answered:
                tell(check, resolution)

    def close(self) -> None:
        """As Bridge; checks that still run are not waited for."""
        self._checks.close()
        super().close()

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return self._listener.execute_local_transaction(half, arg)


class AsyncTransactionProducer(AsyncBridge):
    """Sends messages with local transactions that a listener runs, and answers checks with it."""

    def __init__(
        self,
        producer_group: str,
        listener: AsyncTransactionListener,
        url: str,
        *,
        config: BridgeConfig | None = None,
        record: RecordWriter | None = None,
    ) -> None:
        super().__init__(url, producer_group, config=config, record=record)
        if not isinstance(listener, AsyncTransactionListener):
            raise Misuse("the listener must be an AsyncTransactionListener")
        self._listener = listener
        self._checks = AsyncCheckPool(
            listener.check_local_transaction, self.config.check_threads, self.config.max_waiting_checks
        )

    async def send_message_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None, **options: Unpack[PrepareOptions]
    ) -> TransactionSendResult:
        """Stores the half message, runs the local transaction, ends the transaction.

        Raises OutboxError if the local transaction did not run. What the listener raises is UNKNOWN, and in the result.
        """
        return await self._run(send_in_transaction(self._verbs, self._execute, message, arg, options))

    async def answer_checks(self, checks: Sequence[Check], timeout_s: float) -> list[CheckAnswer]:
        """What the listener knows within the time; checks that found no place or took too long are left out."""
        async with aclosing(self._checks.answer(checks, timeout_s)) as answered:
            return [CheckAnswer(check.transaction_id, check.nonce, resolution) async for check, resolution in answered]

    async def answer(self, checks: Sequence[C], tell: Callable[[C, Resolution], None]) -> None:
        """The same for an AsyncCheckHandler: sends each answer as soon as it is known."""
        async with aclosing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            async for check, resolution in answered:
                tell(check, resolution)

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return await self._listener.execute_local_transaction(half, arg)
