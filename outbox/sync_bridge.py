"""The pythonic face for threads: `with bridge.transaction(session)`, and plain calls."""

from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar, Unpack

from outbox.block import TransactionBlock
from outbox.calls import PrepareOptions, check_group
from outbox.config import BridgeConfig
from outbox.endpoint_lease import EndpointLease, LeaseKeeper
from outbox.flows import run_now
from outbox.links import ThreadLink
from outbox.listener import Resolution
from outbox.local_work import LocalSession, RecordWriter, SessionWork, default_record
from outbox.message import Message
from outbox.pull_worker import Answer, PullConfig, PullWorker
from outbox.replies import Prepared, TransactionView
from outbox.verbs import Verbs

T = TypeVar("T")


class Transaction(TransactionBlock):
    """A block of `Bridge.transaction`."""

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        run_now(self._leave(error))


class Bridge:
    """A connection to the bridge for one producer group; threads share it. Close it, or use it in a `with`.

    `record`: what is written in local transactions so that checks can be answered; by default the ready-made one.
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
        self._link = ThreadLink(url, self.config)
        self._leases: list[EndpointLease] = []
        self._verbs = Verbs(producer_group, self._link.ask, are_prepares_keyed=self.config.are_prepares_keyed)

    def transaction(self, session: LocalSession, **options: Unpack[PrepareOptions]) -> Transaction:
        """A block at whose end the session is committed, and what was sent in it is published.

        Do not commit inside it: those rows would be there without their messages. An exception in it rolls the
        session back, and nothing is sent. Leaving it raises
        NotPrepared, Unavailable, Refused or AlreadyEnded: rolled back, nothing will be published;
        what the session raises: not committed; LocalCommitUnknown: the back-check will find out;
        Contradicted: committed, but the bridge has recorded otherwise.
        """
        if self._record is None:
            self._record = default_record(is_async=False)
        return Transaction(self._verbs, SessionWork(session, self._record), self._link.lifetime, options)

    def publish(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> TransactionView:
        """Publishes without a local transaction. Raises OutboxError."""
        return self._run(self._verbs.publish(messages, options))

    def prepare(self, messages: Message | Sequence[Message], **options: Unpack[PrepareOptions]) -> Prepared:
        """Stores a half message, to be ended by `commit` or `rollback`. Raises OutboxError."""
        return self._run(self._verbs.prepare(messages, options))[1]

    def commit(self, transaction_id: str) -> TransactionView:
        """Publishes what was prepared. Raises OutboxError."""
        return self._run(self._verbs.end(transaction_id, Resolution.COMMIT))

    def rollback(self, transaction_id: str) -> TransactionView:
        """Drops what was prepared. Raises OutboxError."""
        return self._run(self._verbs.end(transaction_id, Resolution.ROLLBACK))

    def get(self, transaction_id: str, *, with_messages: bool = False) -> TransactionView:
        """A transaction as it is recorded. Raises OutboxError."""
        return self._run(self._verbs.get(transaction_id, with_messages=with_messages))

    def pull_worker(self, answer: Answer, *, config: PullConfig | None = None) -> PullWorker:
        """Fetches this group's checks and answers them: for a service that cannot be called. Use its `run_forever`.

        `answer`: what a CheckHandler takes, such as `record.answers(engine)`, or a producer's own `answer`.
        """
        return PullWorker(self._link, self.producer_group, answer, config or PullConfig())

    def endpoint_lease(self, url: str, *, lease_seconds: int = 60) -> EndpointLease:
        """Registers this instance's check endpoint while it lives: `start` it, or use it in a `with`."""
        lease = EndpointLease(self._link, LeaseKeeper(self.producer_group, url, lease_seconds))
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
            with self._link.lifetime.use():
                return run_now(flow)
        finally:
            flow.close()
