"""`Bridge` and `AsyncBridge`: transactions in a block, and plain calls."""

from collections.abc import Coroutine, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from outbox.client.block import (
    AsyncLocalSession,
    LocalSession,
    LocalWork,
    RecordWriter,
    TransactionBlock,
    default_record,
    load_guards,
    name_kind,
)
from outbox.client.caller import BridgeClient
from outbox.client.calls import PrepareOptions, check_group, check_options
from outbox.client.check_source import (
    AsyncEndpointLease,
    AsyncPullWorker,
    EndpointLease,
    LeaseKeeper,
    PullConfig,
    PullWorker,
)
from outbox.client.checks import Answer, AsyncAnswer
from outbox.client.config import BridgeConfig
from outbox.client.connection import LoopConnection, ThreadConnection, run_now
from outbox.client.errors import Misuse, OutboxConfigError
from outbox.client.listener import Resolution
from outbox.client.message import Message
from outbox.client.replies import Prepared, TransactionView

T = TypeVar("T")


class _Blocking:
    """`async with` is for the other face."""

    if not TYPE_CHECKING:  # so that mypy and pyright say it before it is run

        async def __aenter__(self) -> NoReturn:
            raise Misuse(f"{type(self).__name__} is entered by `with`; AsyncBridge is for `async with`")

        async def __aexit__(self, *_: object) -> None:
            """Never entered."""


class _Awaited:
    """`with` is for the other face."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise Misuse(f"{type(self).__name__} is entered by `async with`")

        def __exit__(self, *_: object) -> None:
            """Never entered."""


class Transaction(_Blocking, TransactionBlock):
    """A block of `Bridge.transaction`."""

    def prepare_early(self) -> None:
        """Stores what was sent up to here; nothing can be sent in the block any more.

        Call it before the session's first statement: then no database connection waits for the bridge. Raises
        NotPrepared, Unavailable or Refused.
        """
        run_now(self._prepare_now())

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        run_now(self._leave(error))


class Bridge(_Blocking):
    """A connection to the bridge for one producer group; threads share it. Close it, or use it in a `with`.

    `record`: what is written in local transactions so that checks can be answered; by default the ready-made one.
    """

    def __init__(
        self, url: str, producer_group: str, *, config: BridgeConfig | None = None, record: RecordWriter | None = None
    ) -> None:
        self.producer_group = check_group(producer_group)
        self.config = _checked_config(config)
        self._record = _checked_record(record)
        load_guards()
        self._link = ThreadConnection(url, self.config)
        self._leases: list[EndpointLease] = []
        self._verbs = BridgeClient(producer_group, self._link.ask, self.config)

    def transaction(
        self, session: LocalSession, *, respond_async: bool = False, **options: Unpack[PrepareOptions]
    ) -> Transaction:
        """A block at whose end the session is committed, and what was sent in it is published.

        Do not commit inside it: those rows would be there without their messages. An exception in it rolls the
        session back, and nothing is sent. Leaving it raises
        NotPrepared, Unavailable, Refused or AlreadyEnded: rolled back, nothing will be published;
        what the session raises: not committed; LocalCommitUnknown: the back-check will find out;
        Contradicted: committed, but the bridge has recorded otherwise.

        `respond_async`: it is left once the bridge has stored the commit, before consumers can read the messages;
        nothing is raised then of what the bridge has recorded otherwise.
        """
        if iscoroutinefunction(getattr(session, "commit", None)):
            raise Misuse("a session of asyncio needs an AsyncBridge")
        check_options(options)
        if self._record is None:
            self._record = default_record(is_async=False)
        work = LocalWork(session, self._record)
        return Transaction(self._verbs, work, self._link.lifetime, options, is_awaited=not respond_async)

    def publish(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> TransactionView:
        """Publishes without a local transaction. Raises OutboxError."""
        return self._run(self._verbs.publish(messages, options))

    def prepare(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> Prepared:
        """Stores a half message, to be ended by `commit` or `rollback`. Raises OutboxError."""
        return self._run(self._verbs.prepare(messages, options))[1]

    def commit(self, transaction_id: str, *, remark: str | None = None) -> TransactionView:
        """Publishes what was prepared. `remark`: why, for the timeline. Raises OutboxError."""
        return self._run(self._verbs.end(transaction_id, Resolution.COMMIT, remark=remark))

    def rollback(self, transaction_id: str, *, remark: str | None = None) -> TransactionView:
        """Drops what was prepared. `remark`: why, for the timeline. Raises OutboxError."""
        return self._run(self._verbs.end(transaction_id, Resolution.ROLLBACK, remark=remark))

    def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded. Raises OutboxError."""
        return self._run(self._verbs.get(transaction_id, with_messages=with_messages))

    def pull_worker(self, answer: Answer, *, config: PullConfig | None = None) -> PullWorker:
        """Fetches this group's checks and answers them: for a service that cannot be called. Use its `run_forever`.

        `answer`: what a CheckHandler takes, such as `record.answers(engine)`, or a producer's own `answer`.
        """
        return PullWorker(self._link, self.producer_group, answer, config or PullConfig())

    def endpoint_lease(self, url: str, *, lease_seconds: int = 60, is_shared: bool = False) -> EndpointLease:
        """Registers this instance's check endpoint while it lives: `start` it, or use it in a `with`.

        `is_shared`: with other processes, which the first one that closes must not take it from; it then runs out.
        """
        lease = EndpointLease(self._link, LeaseKeeper(self.producer_group, url, lease_seconds, is_shared=is_shared))
        self._leases.append(lease)
        return lease

    def close(self) -> None:
        """Takes nothing new, waits for what is under way (`close_timeout_s` at most), and disconnects."""
        for lease in self._leases:
            lease.close()
        self._leases.clear()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: Coroutine[Any, Any, T]) -> T:
        try:
            with self._link.lifetime:
                return run_now(flow)
        finally:
            flow.close()


class AsyncTransaction(_Awaited, TransactionBlock):
    """A block of `AsyncBridge.transaction`."""

    async def prepare_early(self) -> None:
        """As Transaction.prepare_early."""
        await self._prepare_now()

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._leave(error)


class AsyncBridge(_Awaited):
    """A connection to the bridge for one producer group, used in one event loop by any number of tasks.

    `record`: as for Bridge; its `write` may be a coroutine function.
    """

    def __init__(
        self, url: str, producer_group: str, *, config: BridgeConfig | None = None, record: RecordWriter | None = None
    ) -> None:
        self.producer_group = check_group(producer_group)
        self.config = _checked_config(config)
        self._record = _checked_record(record)
        load_guards()
        self._link = LoopConnection(url, self.config)
        self._leases: list[AsyncEndpointLease] = []
        self._verbs = BridgeClient(producer_group, self._link.ask, self.config)

    def transaction(
        self, session: AsyncLocalSession, *, respond_async: bool = False, **options: Unpack[PrepareOptions]
    ) -> AsyncTransaction:
        """A block at whose end the session is committed, and what was sent in it is published; as Bridge's."""
        if not iscoroutinefunction(getattr(session, "commit", None)):
            raise Misuse("an AsyncBridge needs a session of asyncio; Bridge takes others")
        check_options(options)
        if self._record is None:
            self._record = default_record(is_async=True)
        work = LocalWork(session, self._record)
        return AsyncTransaction(self._verbs, work, self._link.lifetime, options, is_awaited=not respond_async)

    async def publish(
        self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]
    ) -> TransactionView:
        """Publishes without a local transaction. Raises OutboxError."""
        return await self._run(self._verbs.publish(messages, options))

    async def prepare(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> Prepared:
        """Stores a half message, to be ended by `commit` or `rollback`. Raises OutboxError."""
        return (await self._run(self._verbs.prepare(messages, options)))[1]

    async def commit(self, transaction_id: str, *, remark: str | None = None) -> TransactionView:
        """Publishes what was prepared. `remark`: why, for the timeline. Raises OutboxError."""
        return await self._run(self._verbs.end(transaction_id, Resolution.COMMIT, remark=remark))

    async def rollback(self, transaction_id: str, *, remark: str | None = None) -> TransactionView:
        """Drops what was prepared. `remark`: why, for the timeline. Raises OutboxError."""
        return await self._run(self._verbs.end(transaction_id, Resolution.ROLLBACK, remark=remark))

    async def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded. Raises OutboxError."""
        return await self._run(self._verbs.get(transaction_id, with_messages=with_messages))

    def pull_worker(self, answer: AsyncAnswer, *, config: PullConfig | None = None) -> AsyncPullWorker:
        """Fetches this group's checks and answers them: for a service that cannot be called. Use its `run_forever`.

        `answer`: what an AsyncCheckHandler takes, such as `record.answers(engine)`, or a producer's own `answer`.
        """
        return AsyncPullWorker(self._link, self.producer_group, answer, config or PullConfig())

    def endpoint_lease(self, url: str, *, lease_seconds: int = 60, is_shared: bool = False) -> AsyncEndpointLease:
        """Registers this instance's check endpoint while it lives: `start` it, or use it in an `async with`.

        `is_shared`: with other processes, which the first one that closes must not take it from; it then runs out.
        """
        lease = AsyncEndpointLease(
            self._link, LeaseKeeper(self.producer_group, url, lease_seconds, is_shared=is_shared)
        )
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
            with self._link.lifetime:
                return await flow
        finally:
            flow.close()


def _checked_config(config: BridgeConfig | None) -> BridgeConfig:
    if config is not None and not isinstance(config, BridgeConfig):
        raise OutboxConfigError(f"config is a BridgeConfig, not {type(config).__name__}")
    return config or BridgeConfig()


def _checked_record(record: RecordWriter | None) -> RecordWriter | None:
    if record is not None and (isinstance(record, type) or not callable(getattr(record, "write", None))):
        raise OutboxConfigError(f"record is a TransactionRecord, or has a `write` like it, not {name_kind(record)}")
    return record
