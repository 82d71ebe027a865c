"""RocketMQ's TransactionProducer, for threads."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar, Unpack

from outbox.calls import PrepareOptions
from outbox.check_pool import MAX_CHECK_S, CheckPool
from outbox.config import BridgeConfig
from outbox.errors import Misuse
from outbox.listener import (
    Check,
    CheckAnswer,
    HalfMessage,
    Resolution,
    TransactionListener,
    TransactionSendResult,
)
from outbox.local_work import RecordWriter
from outbox.message import Message
from outbox.sending import send_in_transaction
from outbox.sync_bridge import Bridge

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
        """The same for a CheckHandler: tells each answer as soon as it is known."""
        with closing(self._checks.answer(checks, MAX_CHECK_S)) as answered:
            for check, resolution in answered:
                tell(check, resolution)

    def close(self) -> None:
        """As Bridge; checks that still run are not waited for."""
        self._checks.close()
        super().close()

    async def _execute(self, half: HalfMessage, arg: object) -> object:
        return self._listener.execute_local_transaction(half, arg)
