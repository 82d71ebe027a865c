"""Membership of a consumer group: a consumer that shares out queues and never fetches, in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import Consumer, TopicPartition

from bridge.core.errors import StoreError, StoreTimeout, StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.store.kafka.client_thread import CLOSE_TIMEOUT_S
from bridge.store.kafka.errors import CLIENT_ERRORS, describe, error_of, make_store_error
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, member_options
from bridge.store.message_store import GroupChange

_NONE: frozenset[int] = frozenset()
_LEAVE_POLLS = 40
_LOG = structlog.get_logger()


class _Commit(NamedTuple):
    places: list[TopicPartition]
    future: "asyncio.Future[None]"


class KafkaGroupMember:
    """GroupMember, classic protocol with the cooperative-sticky assignor."""

    def __init__(self, config: KafkaConfig, group: str, topic: str) -> None:
        self.errors = ClientErrors()
        self.group = group
        self._config = config
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._changes: asyncio.Queue[GroupChange | StoreError] = asyncio.Queue()
        self._commits: list[_Commit] = []
        self._owned = _NONE
        self._is_closing = False
        self._unreleased: set[int] = set()
        self._released = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kafka-member-{group}", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether it has left its group, or is about to."""
        return self._is_closing

    async def next_change(self) -> GroupChange:
        change = await self._changes.get()
        if isinstance(change, StoreError):
            self._changes.put_nowait(change)  # for whoever asks next
            raise change
        return change

    def release(self, queue_ids: Collection[int]) -> None:
        with self._released:
            self._unreleased.difference_update(queue_ids)
            self._released.notify_all()

    def is_owned(self, queue_id: int) -> bool:
        return queue_id in self._owned

    async def put_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commits plainly, as a member: while a group has members Kafka takes it from nobody else."""
        if self._is_closing:
            raise StoreUnavailable("the member has left its group")
        future: asyncio.Future[None] = self._loop.create_future()
        self._commits.append(_Commit([TopicPartition(queue.topic, queue.queue_id, offset)], future))
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                await future
        except TimeoutError:
            raise StoreTimeout(f"no answer to the consume offset of {self.group}") from None

    async def close(self) -> None:
        self._is_closing = True
        with self._released:
            self._released.notify_all()
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _LOG.error("kafka_client_abandoned", client=self._thread.name)
            self._changes.put_nowait(StoreUnavailable("the member does not answer"))

    # --- in the member's thread ---

    def _run(self) -> None:
        """However the thread ends, nobody waits for a change that cannot come."""
        try:
            consumer = Consumer(member_options(self._config, self.errors, self.group))
            consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            self._follow(consumer)
            self._leave(consumer)
        except CLIENT_ERRORS as raised:
            self._tell(make_store_error(error_of(raised)))
        finally:
            self._is_closing = True
            self._lose_all()
            self._tell(StoreUnavailable("the member has left its group"))

    def _follow(self, consumer: Consumer) -> None:
        while not self._is_closing:
            try:
                record = consumer.poll(POLL_S)
                error = None if record is None else record.error()
                if error is not None:
                    self.errors.note(error)
                    _LOG.warning("kafka_member_error", group=self.group, error=describe(error))
                self._commit(consumer)
            except CLIENT_ERRORS as raised:
                self.errors.note(error_of(raised))
            if self.errors.fatal is not None:
                self._is_closing = True
                self._lose_all()
                self._tell(StoreUnavailable(describe(self.errors.fatal)))

    def _leave(self, consumer: Consumer) -> None:
        """Unsubscribes first: with a `group.instance.id` closing alone leaves the queues to a session's end."""
        with contextlib.suppress(*CLIENT_ERRORS):
            consumer.unsubscribe()
            for _ in range(_LEAVE_POLLS):
                if not consumer.assignment():
                    break
                consumer.poll(POLL_S)
        for commit in self._commits:
            self._answer(commit.future, StoreUnavailable("the member has left its group"))
        consumer.close()

    def _on_assign(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """With an explicit offset nothing is looked up, and paused at once nothing is fetched."""
        targets = [TopicPartition(place.topic, place.partition, 0) for place in places]
        consumer.incremental_assign(targets)
        if targets:
            consumer.pause(targets)
            gained = frozenset([place.partition for place in targets])
            self._owned |= gained
            self._tell(GroupChange(gained, _NONE, _NONE))

    def _on_revoke(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """The rebalance waits in here for `release`; heartbeats go on in the client's own thread."""
        revoked = frozenset([place.partition for place in places])
        self._owned -= revoked
        if revoked and not self._is_closing:
            with self._released:
                self._unreleased |= revoked
                self._tell(GroupChange(_NONE, revoked, _NONE))
                is_released = self._released.wait_for(
                    lambda: self._is_closing or not self._unreleased, self._config.release_timeout_ms / 1000
                )
                self._unreleased.clear()
            if not is_released:
                _LOG.warning("kafka_queues_not_released", group=self.group, queues=sorted(revoked))
        consumer.incremental_unassign(list(places))

    def _on_lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        lost = frozenset([place.partition for place in places])
        self._owned -= lost
        if lost:
            self._tell(GroupChange(_NONE, _NONE, lost))
        consumer.incremental_unassign(list(places))

    def _lose_all(self) -> None:
        lost, self._owned = self._owned, _NONE
        if lost:
            self._tell(GroupChange(_NONE, _NONE, lost))

    def _commit(self, consumer: Consumer) -> None:
        while self._commits:
            commit = self._commits.pop(0)
            try:
                consumer.commit(offsets=commit.places, asynchronous=False)
            except CLIENT_ERRORS as raised:
                self._answer(commit.future, make_store_error(error_of(raised)))
            else:
                self._answer(commit.future, None)

    def _tell(self, change: GroupChange | StoreError) -> None:
        self._call_loop(lambda: self._changes.put_nowait(change))

    def _answer(self, future: "asyncio.Future[None]", error: StoreError | None) -> None:
        def answer() -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._call_loop(answer)

    def _call_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everybody who waits
            self._loop.call_soon_threadsafe(call)
