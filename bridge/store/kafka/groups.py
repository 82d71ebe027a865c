"""Consumer groups on Kafka: membership, and offsets of queues and of groups."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from bridge.core.errors import BridgeError, ConfigError, StoreError, StoreTimeout, StoreUnavailable
from bridge.core.message import MessageQueue
from bridge.store.kafka.admin import Asker
from bridge.store.kafka.client import (
    CLIENT_ERRORS,
    CLOSE_TIMEOUT_S,
    COORDINATOR_AWAY,
    SILENCE,
    describe,
    error_of,
    make_store_error,
)
from bridge.store.kafka.options import POLL_S, ClientErrors, KafkaConfig, group_options, member_options
from bridge.store.message_store import Consumed, GroupChange, QueueOffsets
from bridge.turns import take_error

# --- offsets of queues and of groups ---

_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LEADERS_S = 300.0  # the client forgets them after three times that
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class OffsetClient:
    """Asks Kafka anew each time; half a millisecond when the three requests go out together."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._asker = Asker(config)
        self.errors = self._asker.errors
        self._led: frozenset[MessageQueue] = frozenset()
        self._led_until = 0.0
        self._led_by = 0  # the client that knows these leaders: a new one knows none
        self._look: asyncio.Task[None] | None = None
        self._running: dict[MessageQueue, asyncio.Task[QueueOffsets]] = {}
        self._waiting: dict[MessageQueue, asyncio.Task[QueueOffsets]] = {}

    async def get_offsets(self, queue: MessageQueue) -> QueueOffsets:
        """Minimum, last stable and maximum offset. Raises StoreError.

        While a queue is being asked about, all who come wait for the next asking together: what they get was
        asked for after they came.
        """
        shared = self._waiting.get(queue)
        if shared is None:
            before = self._running.get(queue)
            shared = asyncio.create_task(self._ask_after(before, queue))
            shared.add_done_callback(take_error)
            (self._running if before is None else self._waiting)[queue] = shared
        return await asyncio.shield(shared)

    async def _ask_after(self, before: "asyncio.Task[QueueOffsets] | None", queue: MessageQueue) -> QueueOffsets:
        if before is not None:
            await asyncio.wait([before])
            self._running[queue] = self._waiting.pop(queue)
        try:
            minimum, stable, maximum = await asyncio.gather(
                self._find(queue, _EARLIEST, _UNCOMMITTED),
                self._find(queue, _LATEST, _COMMITTED),
                self._find(queue, _LATEST, _UNCOMMITTED),  # the true end, whatever is open
            )
            return QueueOffsets(minimum, max(stable, minimum), max(maximum, stable, minimum))
        finally:
            del self._running[queue]

    async def get_offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """First offset whose timestamp is not before; -1 if there is none. Raises StoreError."""
        return await self._find(queue, OffsetSpec.for_timestamp(max(timestamp_ms, 0)), _UNCOMMITTED)

    async def get_consume_offsets(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, Consumed]:
        """What the group committed; -1 where nothing. Raises StoreError.

        A consumer asks, 60 ms with its beginning: an admin client that gets NOT_COORDINATOR for this request ends
        the process with a segmentation fault (librdkafka 2.16, `rd_kafka_handle_OffsetFetch` without a group).
        """
        places = await self._asker.run(lambda _, __: self._ask_coordinator(group, queues))
        if (error := next((place.error for place in places if place.error is not None), None)) is not None:
            raise make_store_error(error)
        return {
            queue: Consumed(max(place.offset, -1), place.metadata or "")
            for queue, place in zip(queues, places, strict=True)
        }

    async def put_consume_offset(self, group: str, queue: MessageQueue, offset: int, note: str = "") -> None:
        """Commits for a group without members; with some, Kafka takes it from them alone. Raises StoreError."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*queue, offset, note)])
        give_up_at = self._give_up_at()
        while (error := await self._try_put(wanted)) is not None:
            if not _is_worth_a_retry(error, give_up_at):
                raise make_store_error(error)
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Lets the client go."""
        if self._look is not None:
            await asyncio.wait([self._look])
        await self._asker.close()

    async def _find(self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel) -> int:
        """The client asks whom it once knew as leader, and would stay with that for minutes: after an error it is
        made to look anew, at once if somebody did answer."""
        answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException) and error_of(answer).code() not in SILENCE:
            self._led -= {queue}
            answer = await self._ask_leader(queue, spec, isolation)
        if isinstance(answer, KafkaException):
            self._led -= {queue}
            raise make_store_error(error_of(answer)) from answer
        # A request without an answer in time comes back as a success, with this offset for every queue.
        if answer.offset == OFFSET_INVALID:
            self._led -= {queue}
            raise StoreTimeout(f"{queue.topic}[{queue.queue_id}]: no answer to a question for its offsets")
        return int(answer.offset)

    def _give_up_at(self) -> float:
        return time.monotonic() + self._config.read_timeout_ms / 1000

    async def _try_put(self, wanted: ConsumerGroupTopicPartitions) -> KafkaError | None:
        name = wanted.group_id
        answers: dict[str | None, ConsumerGroupTopicPartitions | KafkaException] = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.alter_consumer_group_offsets([wanted], request_timeout=timeout_s)[name]
            }
        )
        answer = answers[None]
        if isinstance(answer, KafkaException):
            return error_of(answer)
        assert answer.topic_partitions is not None
        (place,) = answer.topic_partitions
        return place.error

    def _ask_coordinator(self, group: str, queues: Sequence[MessageQueue]) -> Sequence[TopicPartition]:
        wanted = [TopicPartition(*queue) for queue in queues]
        give_up_at = self._give_up_at()
        consumer = Consumer(group_options(self._config, ClientErrors(), group))
        try:
            while True:
                try:
                    left_s = max(0, give_up_at - time.monotonic())  # below 0 the client waits for ever
                    places = consumer.committed(wanted, timeout=left_s)
                except KafkaException as raised:
                    if not _is_worth_a_retry(error_of(raised), give_up_at):
                        raise
                else:
                    return places
                time.sleep(POLL_S)  # meanwhile the client looks for the coordinator
        finally:
            consumer.close()

    async def _ask_leader(
        self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel
    ) -> ListOffsetsResultInfo | KafkaException:
        """Asks when the client knows the leader.

        A question for a leader it does not know is followed up by two of its threads at once, and ends the process
        if anybody's answer about topics comes meanwhile (librdkafka 2.16,
        `rd_kafka_topic_partition_list_query_leaders_async`).
        """
        if not self._knows_leader(queue):
            # all topics, as a request that names one could create it; once for all who wait. Raises StoreError
            if self._look is None:
                self._look = asyncio.create_task(self._read_leaders())
                self._look.add_done_callback(take_error)
            await asyncio.shield(self._look)
        if self._knows_leader(queue):
            return await self._ask(queue, spec, isolation)
        unknown = f"{queue.topic}[{queue.queue_id}] has no leader, or is not there"
        return KafkaException(KafkaError(KafkaError._NOENT, unknown))  # noqa: SLF001 - the client's public name for it

    def _knows_leader(self, queue: MessageQueue) -> bool:
        is_known = queue in self._led and self._led_by == self._asker.generation
        return is_known and time.monotonic() < self._led_until

    async def _read_leaders(self) -> None:
        until, asked = time.monotonic() + _LEADERS_S, self._asker.generation
        try:
            seen = await self._asker.run(lambda client, timeout_s: client.list_topics(timeout=timeout_s))
        finally:
            self._look = None
        self._led = frozenset(
            MessageQueue(name, part.id)
            for name, topic in seen.topics.items()
            for part in topic.partitions.values()
            if part.leader >= 0
        )
        self._led_until, self._led_by = until, asked

    async def _ask(
        self, queue: MessageQueue, spec: OffsetSpec, isolation: IsolationLevel
    ) -> ListOffsetsResultInfo | KafkaException:
        target = TopicPartition(*queue)
        answers = await self._asker.ask_each(
            lambda client, timeout_s: {
                None: client.list_offsets({target: spec}, isolation_level=isolation, request_timeout=timeout_s)[target]
            },
            about=queue,
        )
        return answers[None]


def _is_worth_a_retry(error: KafkaError, give_up_at: float) -> bool:
    """Whether the coordinator is on its way, and there is time for it."""
    return error.code() in COORDINATOR_AWAY and time.monotonic() + POLL_S < give_up_at


# --- membership of a consumer group: a consumer that shares out queues and never fetches, in a thread of its own ---

_NONE: frozenset[int] = frozenset()
_REBALANCING = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION})
_TAKEN_AWAY = "the queue is not this member's any more"
_LEAVE_POLLS = 40
_SESSION_REFUSED = (
    "settler.session_ms = {} is refused by Kafka: the brokers' group.min.session.timeout.ms, 6000 unless set, and "
    "group.max.session.timeout.ms bound it"
)
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
        self._changes: asyncio.Queue[GroupChange | BridgeError] = asyncio.Queue()
        self._commits: list[_Commit] = []
        self._owned = _NONE
        self.is_closed = False  # it has left its group, or is about to
        self._unreleased: set[int] = set()
        self._released = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kafka-member-{group}", daemon=True)
        self._thread.start()

    async def next_change(self) -> GroupChange:
        change = await self._changes.get()
        if isinstance(change, BridgeError):
            self._changes.put_nowait(change)  # for whoever asks next
            raise change
        return change

    def release(self, queue_ids: Collection[int]) -> None:
        with self._released:
            self._unreleased.difference_update(queue_ids)
            self._released.notify_all()

    def is_owned(self, queue_id: int) -> bool:
        return queue_id in self._owned

    async def put_consume_offset(self, queue: MessageQueue, offset: int, note: str = "") -> None:
        """Commits plainly, as a member: while a group has members Kafka takes it from nobody else.

        Raises StoreUnavailable for a queue that is being taken away: whoever holds it is to let go.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._commits.append(_Commit([TopicPartition(*queue, offset, note)], future))
        if self.is_closed or queue.queue_id in self._unreleased:  # whoever takes it away from now on finds the above
            future.cancel()
            raise StoreUnavailable("the member has left its group" if self.is_closed else _TAKEN_AWAY)
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1000):
                await future
        except TimeoutError:
            raise StoreTimeout(f"no answer to the consume offset of {self.group}") from None

    async def close(self) -> None:
        self.is_closed = True
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
            self.is_closed = True
            self._lose_all()
            self._tell(StoreUnavailable("the member has left its group"))

    def _follow(self, consumer: Consumer) -> None:
        while not self.is_closed:
            try:
                record = consumer.poll(POLL_S)
                error = None if record is None else record.error()
                if error is not None:
                    self.errors.note(error)
                    _LOG.warning("kafka_member_error", group=self.group, error=describe(error))
                    if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
                        self._give_up(ConfigError(_SESSION_REFUSED.format(self._config.session_timeout_ms)))
                self._commit(consumer)
            except CLIENT_ERRORS as raised:
                self.errors.note(error_of(raised))
            if self.errors.fatal is not None:
                self._give_up(StoreUnavailable(describe(self.errors.fatal)))

    def _give_up(self, reason: BridgeError) -> None:
        self.is_closed = True
        self._lose_all()
        self._tell(reason)

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
        if revoked and not self.is_closed:
            with self._released:
                self._unreleased |= revoked
                self._refuse_commits(revoked)
                self._tell(GroupChange(_NONE, revoked, _NONE))
                is_released = self._released.wait_for(
                    lambda: self.is_closed or not self._unreleased, self._config.release_timeout_ms / 1000
                )
                self._unreleased.clear()
            if not is_released:
                _LOG.warning("kafka_queues_not_released", group=self.group, queues=sorted(revoked))
        consumer.incremental_unassign(list(places))

    def _on_lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        lost = frozenset([place.partition for place in places])
        self._owned -= lost
        self._refuse_commits(lost)
        if lost:
            self._tell(GroupChange(_NONE, _NONE, lost))
        consumer.incremental_unassign(list(places))

    def _lose_all(self) -> None:
        lost, self._owned = self._owned, _NONE
        if lost:
            self._tell(GroupChange(_NONE, _NONE, lost))

    def _commit(self, consumer: Consumer) -> None:
        """What a rebalance refuses is tried again, for as long as the caller waits."""
        for _ in range(len(self._commits)):
            commit = self._commits.pop(0)
            if commit.future.done():  # nobody waits any more
                continue
            try:
                consumer.commit(offsets=commit.places, asynchronous=False)
            except CLIENT_ERRORS as raised:
                error = error_of(raised)
                if error.code() in _REBALANCING:
                    self._commits.append(commit)
                else:
                    self._answer(commit.future, make_store_error(error))
            else:
                self._answer(commit.future, None)

    def _refuse_commits(self, queue_ids: Collection[int]) -> None:
        """Those of queues that are taken away: their owners wait for an answer, and the rebalance for them."""
        for commit in [each for each in self._commits if each.places[0].partition in queue_ids]:
            self._commits.remove(commit)
            self._answer(commit.future, StoreUnavailable(_TAKEN_AWAY))

    def _tell(self, change: GroupChange | BridgeError) -> None:
        self._call_loop(lambda: self._changes.put_nowait(change))

    def _answer(self, future: "asyncio.Future[None]", error: StoreError | None) -> None:
        def answer() -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._call_loop(answer)

    def _call_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and so is everybody who waits
            self._loop.call_soon_threadsafe(call)
