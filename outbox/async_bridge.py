"""The pythonic face for event loops: `async with bridge.transaction(session)`, and plain calls."""

from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar, Unpack

from outbox.block import TransactionBlock
from outbox.calls import PrepareOptions, check_group
from outbox.config import BridgeConfig
from outbox.endpoint_lease import AsyncEndpointLease, LeaseKeeper
from outbox.links import LoopLink
from outbox.listener import Resolution
from outbox.local_work import AsyncLocalSession, AsyncSessionWork, RecordWriter, default_record
from outbox.message import Message
from outbox.pull_worker import AsyncAnswer, AsyncPullWorker, PullConfig
from outbox.replies import Prepared, TransactionView
from outbox.verbs import Verbs

T = TypeVar("T")


class AsyncTransaction(TransactionBlock):
    """A block of `AsyncBridge.transaction`."""

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._leave(error)


class AsyncBridge:
    """A connection to the bridge for one producer group, used in one event loop by any number of tasks.

    `record`: as for Bridge; its `write` may be a coroutine function.
    """

    def __init__(
        self,
        url: str,
        producer_group: str,
        *,
        config: BridgeConfig | None = None,
        record: RecordWriter | None = None,
    ) -> None:
        self.producer_group = check_group(producer_group)
        self.config = config or BridgeConfig()
        self._record = record
        self._link = LoopLink(url, self.config)
        self._leases: list[AsyncEndpointLease] = []
        self._verbs = Verbs(producer_group, self._link.ask, are_prepares_keyed=self.config.are_prepares_keyed)

    def transaction(self, session: AsyncLocalSession, **options: Unpack[PrepareOptions]) -> AsyncTransaction:
        """A block at whose end the session is committed, and what was sent in it is published; as Bridge's."""
        if self._record is None:
            self._record = default_record(is_async=True)
        return AsyncTransaction(self._verbs, AsyncSessionWork(session, self._record), self._link.lifetime, options)

    async def publish(
        self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]
    ) -> TransactionView:
        """Publishes without a local transaction. Raises OutboxError."""
        return await self._run(self._verbs.publish(messages, options))

    async def prepare(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> Prepared:
        """Stores a half message, to be ended by `commit` or `rollback`. Raises OutboxError."""
        return (await self._run(self._verbs.prepare(messages, options)))[1]

    async def commit(self, transaction_id: str) -> TransactionView:
        """Publishes what was prepared. Raises OutboxError."""
        return await self._run(self._verbs.end(transaction_id, Resolution.COMMIT))

    async def rollback(self, transaction_id: str) -> TransactionView:
        """Drops what was prepared. Raises OutboxError."""
        return await self._run(self._verbs.end(transaction_id, Resolution.ROLLBACK))

    async def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded. Raises OutboxError."""
        return await self._run(self._verbs.get(transaction_id, with_messages=with_messages))

    def pull_worker(self, answer: AsyncAnswer, *, config: PullConfig | None = None) -> AsyncPullWorker:
        """Fetches this group's checks and answers them: for a service that cannot be called. Use its `run_forever`.

        `answer`: what an AsyncCheckHandler takes, such as `record.answers(engine)`, or a producer's own `answer`.
        """
        return AsyncPullWorker(self._link, self.producer_group, answer, config or PullConfig())

    def endpoint_lease(self, url: str, *, lease_seconds: int = 60) -> AsyncEndpointLease:
        """Registers this instance's check endpoint while it lives: `start` it, or use it in an `async with`."""
        lease = AsyncEndpointLease(self._link, LeaseKeeper(self.producer_group, url, lease_seconds))
        self._leases.append(lease)
        return lease

    async def close(self) -> None:
        """Takes nothing new, waits for what is under way (`close_timeout_s` at most), and disconnects."""
        for lease in self._leases:
            await lease.close()
        self._leases.clear()
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, flow: Coroutine[Any, Any, T]) -> T:
        try:
            with self._link.lifetime.use():
                return await flow
        finally:
            flow.close()
