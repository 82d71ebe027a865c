"""RocketMQ's TransactionProducer, for event loops."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeVar, Unpack

from outbox.async_bridge import AsyncBridge
from outbox.calls import PrepareOptions
from outbox.check_pool import MAX_CHECK_S, AsyncCheckPool
from outbox.config import BridgeConfig
from outbox.errors import Misuse
from outbox.listener import (
    AsyncTransactionListener,
    Check,
    CheckAnswer,
    HalfMessage,
    Resolution,
    TransactionSendResult,
)
from outbox.local_work import RecordWriter
from outbox.message import Message
from outbox.sending import send_in_transaction

C = TypeVar("C", bound=Check)


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
        """The same for an AsyncCheckHandler: tells each answer as soon as it is known."""
        async with aclosing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            async for check, resolution in answered:
                tell(check, resolution)

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return await self._listener.execute_local_transaction(half, arg)
