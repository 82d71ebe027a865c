"""Callers that wait for settlers: their slots, and the follower of the op topic that completes them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from msgspec import Struct

from bridge.clock import Clock, KafkaTime
from bridge.core.check_rules import Backoff
from bridge.core.errors import MalformedRecord, QueueHalted, StoreError, UnknownRecordVersion
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import (
    ANSWERS_KEY,
    POSITION_KEY,
    Answer,
    AnswerCode,
    decode_answers,
    decode_position,
    decode_view,
    make_view,
)
from bridge.core.topics import InternalTopics
from bridge.core.transaction import SPLIT, TransactionState, TransactionView
from bridge.log_watch import LogWatch
from bridge.service.journal import Deadline
from bridge.store.message_store import MessageStore, OwnerStore, QueueReader
from bridge.store.op_topic import SealWatch, WatchedReader

_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK


class ReceivedReply(Struct, frozen=True, gc=False):
    """What woke a waiter: a state (`code` None), or an answer to its REQUEST with the state as it stood, if any."""

    code: AnswerCode | None
    view: TransactionView | None


@dataclass(slots=True, eq=False)
class ReplyBatch:
    """The answers a list of calls waits for. `requests[i]` goes into the record of `transaction_ids[i]`.

    `is_named`: only what names its request is an answer, since a final state may be the one before it.
    """

    transaction_ids: Sequence[str]
    requests: Sequence[str]
    waiters: "PendingReplies"
    is_named: bool = False
    heard: list[ReceivedReply | None] = field(init=False)
    done: "asyncio.Future[None]" = field(init=False)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = len(self.requests)
        self.heard = [None] * self._left
        self.done = asyncio.get_running_loop().create_future()
        if not self._left:
            self.done.set_result(None)

    def hear(self, index: int, heard: ReceivedReply | None) -> None:
        """The reply to one of the calls; None: there will be none."""
        self.heard[index] = heard
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)

    def drop(self, index: int) -> None:
        """Nobody waits for this one any more."""
        if self.waiters.discard(self.transaction_ids[index], self.requests[index]):
            self.hear(index, None)

    async def until(self, deadline: Deadline) -> None:
        """Returns when all are answered or dropped, or at the deadline; leaves no waiter behind either way."""
        try:
            await deadline.until(self.done, None)
        finally:
            self.close()

    def close(self) -> None:
        """Nobody waits for any of them any more."""
        if self._left:
            for index in range(len(self.requests)):
                self.drop(index)


class Hearer(Protocol):
    """Who waits for replies."""

    is_named: bool

    def hear(self, index: int, heard: ReceivedReply) -> None:
        """The reply to the call with this index of his."""
        ...


_Slot = tuple[Hearer, int, str]  # who waits, at which place, for which REQUEST; plain because it is quicker to make


class PendingReplies:
    """All that this process waits for. `prefix`: random, so that no other process ever makes the same REQUEST."""

    def __init__(self, prefix: str, max_waiting: int = 200_000) -> None:
        self.prefix = prefix.encode()
        self.by_id: dict[bytes, list[_Slot]] = {}
        self._prefix = prefix
        self._max_waiting = max_waiting
        self._count = 0
        self._made = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, count: int) -> bool:
        """Whether `count` more may wait."""
        return self._count + count <= self._max_waiting

    def open(self, transaction_ids: Sequence[str], *, is_named: bool = False) -> ReplyBatch:
        """Begins to wait for each of the ids. Before their records are produced, or an answer could be missed."""
        made, prefix = self._made, self._prefix
        self._made += len(transaction_ids)
        requests = [f"{prefix}{made + n:x}" for n in range(len(transaction_ids))]
        wait = ReplyBatch(transaction_ids, requests, self, is_named)
        for index, transaction_id in enumerate(transaction_ids):
            self._add(transaction_id, (wait, index, requests[index]))
        return wait

    def open_one(self, transaction_id: str, hearer: Hearer) -> str:
        """The same for one id, without a list; the REQUEST. To be discarded if nothing is heard."""
        request = f"{self._prefix}{self._made:x}"
        self._made += 1
        self._add(transaction_id, (hearer, 0, request))
        return request

    def _add(self, transaction_id: str, slot: _Slot) -> None:
        key, by_id = transaction_id.encode(), self.by_id
        if key in by_id:
            by_id[key].append(slot)
        else:
            by_id[key] = [slot]
        self._count += 1

    def discard(self, transaction_id: str, request: str) -> bool:
        """Whether somebody did wait for it."""
        key = transaction_id.encode()
        slots = self.by_id.get(key, ())
        kept = [slot for slot in slots if slot[2] != request]
        if kept:
            self.by_id[key] = kept
        else:
            self.by_id.pop(key, None)
        self._count -= len(slots) - len(kept)
        return len(kept) < len(slots)

    def hear_state(self, view: TransactionView, requests: Sequence[str]) -> None:
        """A state of an id: final ones wake all that wait for the id, others those they name; SPLIT wakes nobody."""
        if _is_interim(view):
            return
        is_final = view.state is _COMMITTED or view.state is _ROLLED_BACK
        self._wake(view.transaction_id, ReceivedReply(None, view), requests, is_for_all=is_final)

    def hear_answers(self, answers: Iterable[Answer]) -> None:
        """Answers wake whoever asked."""
        for answer in answers:
            view = None if answer.op is None else make_view(answer.op)
            if view is None or not _is_interim(view):
                self._wake(answer.transaction_id, ReceivedReply(answer.code, view), (answer.request,))

    def _wake(
        self, transaction_id: str, heard: ReceivedReply, requests: Sequence[str], *, is_for_all: bool = False
    ) -> None:
        key = transaction_id.encode()
        slots = self.by_id.pop(key, None)
        if slots is None:
            return
        kept: list[_Slot] = []
        for slot in slots:
            wait, place, request = slot
            if request not in requests and (wait.is_named or not is_for_all):
                kept.append(slot)
                continue
            wait.hear(place, heard)
            self._count -= 1
        if kept:
            self.by_id[key] = kept


def _is_interim(view: TransactionView) -> bool:
    """Whether the next op message of the transaction is about to follow: decided, tried again apart from others."""
    return view.blocked and view.reason == SPLIT


_LOG = structlog.get_logger()

FIRST_BACKOFF_MS = 100
LONGEST_BACKOFF_MS = 5_000
_MAX_RECORDS, _MAX_WAIT_MS = 2_000, 1_000  # of one read


@dataclass(frozen=True, slots=True)
class FollowerPorts:
    """What the follower works with."""

    store: MessageStore
    owners: OwnerStore
    clock: Clock
    kafka_time: KafkaTime
    waiters: PendingReplies
    seal_watch: SealWatch
    log: LogWatch


class OpFollower:
    """All queues of the op topic, from their ends at the start of the process on.

    Ready only when every end is known: a record produced before could be answered below it.
    """

    def __init__(self, topics: InternalTopics, ports: FollowerPorts) -> None:
        self.waiters = ports.waiters
        self._tails = [_QueueTail(MessageQueue(topics.op, n), ports) for n in range(topics.queues)]

    @property
    def is_ready(self) -> bool:
        """Whether answers to records appended from now on will be read."""
        return all(tail.is_started for tail in self._tails)

    def open(self, transaction_ids: Sequence[str], *, is_named: bool = False) -> ReplyBatch | None:
        """Begins to wait for each of the ids; None if the settlers' answers cannot be received now."""
        if transaction_ids and not self.can_open(len(transaction_ids)):
            return None
        return self.waiters.open(transaction_ids, is_named=is_named)

    def can_open(self, count: int) -> bool:
        """Whether the settlers' answers to so many calls more can be received now."""
        return self.is_ready and self.waiters.has_room(count)

    @property
    def is_failing(self) -> bool:
        """Whether a queue cannot be read now, so that its answers are late."""
        return any(tail.is_failing for tail in self._tails)

    def positions(self) -> dict[int, int]:
        """S of each queue, as far as a position was seen since the start."""
        return {queue_id: s for queue_id in range(len(self._tails)) if (s := self.find_s(queue_id)) is not None}

    def find_s(self, queue_id: int) -> int | None:
        """Of one queue."""
        return self._tails[queue_id].read_s()

    async def run_forever(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tails:
            for tail in self._tails:
                tails.create_task(tail.run_forever())


class _QueueTail:
    """One queue of the op topic."""

    def __init__(self, queue: MessageQueue, ports: FollowerPorts) -> None:
        self._queue = queue
        self._ports = ports
        self._next_offset = -1
        self._reader: QueueReader | None = None
        self._backoff = Backoff(FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        self.is_failing = False
        self._position: bytes | None = None  # the last one, not parsed before somebody asks

    @property
    def queue_id(self) -> int:
        return self._queue.queue_id

    @property
    def is_started(self) -> bool:
        return self._next_offset >= 0

    def read_s(self) -> int | None:
        """S of the last position seen, if one was that can be read."""
        try:
            return None if self._position is None else decode_position(self._position).s
        except (MalformedRecord, UnknownRecordVersion):
            return None

    async def run_forever(self) -> None:
        """Goes on from its last position after an error."""
        try:
            while True:
                try:
                    await self.run_once()
                except Exception as error:  # noqa: BLE001 - a loop that lives as long as the process
                    await self._back_off(error)
        finally:
            await self._close()

    async def run_once(self) -> int:
        """Reads what has come, waiting a little for the first; how many records there were. Raises StoreError."""
        if self._reader is None:
            self._reader = await self._open()
        got = await self._reader.get(_MAX_RECORDS, _MAX_WAIT_MS)
        self._next_offset = got.next_begin_offset
        self._backoff.reset()
        self.is_failing = False
        if got.messages:
            self._ports.kafka_time.observe(got.messages[-1].stored_ms)
            self._hear(got.messages)
        return len(got.messages)

    async def _open(self) -> QueueReader:
        if not self.is_started:
            self._next_offset = (await self._ports.store.get_offsets(self._queue)).stable
        ports = self._ports
        return WatchedReader(ports.owners, ports.store, ports.clock, self._queue, self._next_offset)

    def _hear(self, messages: Iterable[StoredMessage]) -> None:
        waiters, open_sealed, queue_id = self._ports.waiters, self._ports.seal_watch.open, self._queue.queue_id
        wanted, prefix = waiters.by_id, waiters.prefix
        for message in messages:
            key, value = message.key, message.value
            if key is None or value is None:
                continue
            if key not in wanted and key != POSITION_KEY and not (key == ANSWERS_KEY and prefix in value):
                continue  # most of them: for others
            opened = open_sealed(queue_id, message)
            if opened is None:
                continue
            try:
                if key == POSITION_KEY:
                    self._position = opened
                elif key == ANSWERS_KEY:
                    waiters.hear_answers(decode_answers(opened))
                else:
                    view, requests = decode_view(key.decode(), opened)
                    waiters.hear_state(view, requests)
            except (MalformedRecord, UnknownRecordVersion) as error:
                # its callers get "unknown" at their deadline; the owner of the queue halts or quarantines
                _LOG.warning("op_message_unreadable", queue=self._queue.queue_id, reason=type(error).__name__)

    async def _back_off(self, error: Exception) -> None:
        self.is_failing = True
        retry_ms = self._backoff.next_ms()
        expected = isinstance(error, StoreError | QueueHalted)
        log = _LOG.warning if expected else _LOG.exception
        log("op_topic_unreadable", queue=self._queue.queue_id, reason=str(error), retry_ms=retry_ms)
        if isinstance(error, QueueHalted):
            self._ports.log.doubt(self.queue_id)
            self._next_offset = -1  # the log does not reach back so far any more: callers that wait get "unknown"
            self._position = None
        await self._close()
        await self._ports.clock.sleep_ms(retry_ms)

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
