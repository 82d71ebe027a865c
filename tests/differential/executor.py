"""Runs a program on a log, through the ports alone where they reach, and says what was seen at each step."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from bridge.core.errors import BatchAborted, BridgeError
from bridge.core.message import Message, MessageQueue, Receipt, StoredMessage
from bridge.store.message_store import AtomicBatch, BatchWriter, GetStatus, GroupMember, QueueReader
from tests.contract.world import OpenTransaction
from tests.differential import program as script
from tests.differential.normal import NOTHING, Normal
from tests.differential.program import QUEUES, SEGMENT_BYTES, Place, Program, Record, Step
from tests.differential.worlds import DifferentialWorld

QUIET_MS = 5_000
_LOOK_MS = 5
_ABORT_MS = 100
_CLEAN_MS = 20_000
_READ_WAIT_MS = 50
_FILLER_BYTES = SEGMENT_BYTES * 6 // 10
_MISSING = "missing"
_NO_QUEUE = 100_000


class Executor:
    """One run of one program on its own queues, the first of each topic. `prefix` makes its ids and groups its own."""

    def __init__(self, world: DifferentialWorld, program: Program, queues: Sequence[MessageQueue], prefix: str) -> None:
        self._world = world
        self._program = program
        self._prefix = prefix
        self._queues = queues
        self._start_ms = world.clock.now_ms()
        self._normal = Normal(queues, program.topics, self._start_ms)
        self._filled: set[MessageQueue] = set()
        self._writers: dict[tuple[int, int], BatchWriter] = {}
        self._opened: list[BatchWriter] = []
        self._hanging: dict[int, tuple[OpenTransaction, int | None]] = {}
        self._open: dict[tuple[int | None, int], frozenset[MessageQueue]] = {}  # (owner, number) -> queues touched
        self._count = 0
        self._readers: dict[int, QueueReader] = {}
        self._members: dict[int, tuple[GroupMember, int, int]] = {}
        self._followers: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> list[Any]:
        """What was seen at each step."""
        try:
            return [await self._run(step) for step in self._program.steps]
        finally:
            await self._close()

    async def _run(self, step: Step) -> Any:
        run: Callable[[Any], Awaitable[Any]] = getattr(self, f"_{type(step).__name__.lower()}")
        try:
            return await run(step)
        except BridgeError as error:
            topic = self._normal.topic(error.topic) if isinstance(error, BatchAborted) and error.topic else None
            return ("raises", type(error).__name__, topic)
        except Exception as error:
            error.add_note(f"at {step!r} of {self._program!r}")
            raise

    async def _close(self) -> None:
        for follower in self._followers.values():
            follower.cancel()
        members = [member for member, _, _ in self._members.values()]
        await asyncio.gather(*[each.close() for each in [*members, *self._readers.values(), *self._opened]])

    # --- names ---

    def _queue(self, at: Place) -> MessageQueue:
        first = self._queues[at.topic]
        return MessageQueue(first.topic, first.queue_id + at.queue_id if at.queue_id < QUEUES else _NO_QUEUE)

    def _group(self, number: int) -> str:
        return f"{self._prefix}-group-{number}"

    def _ids(self, owner: int) -> tuple[str, str]:
        return (f"{self._prefix}-owner-{owner}-0", f"{self._prefix}-owner-{owner}-1")

    def _message(self, record: Record) -> Message:
        topic, queue_id = self._queue(record.at)
        value = None if record.value is None else record.value + b"x" * record.padding
        timestamp = record.timestamp_ms if record.age_ms is None else self._start_ms - record.age_ms
        return Message(topic, record.key, value, record.headers, queue_id, timestamp)

    # --- plain puts ---

    async def _put(self, step: script.Put) -> Any:
        queue = self._queue(step.record.at)
        return self._normal.put(await self._world.process.store.put(queue, self._message(step.record)))

    async def _putmany(self, step: script.PutMany) -> Any:
        results = await self._world.process.store.put_many([self._message(record) for record in step.records])
        return [self._normal.put(result) for result in results]

    # --- Kafka transactions ---

    async def _fence(self, step: script.Fence) -> Any:
        ended = {key: queues for key, queues in self._open.items() if key[0] == step.owner}
        before = await self._maxima(frozenset().union(*ended.values()))
        writer = self._world.processes[step.instance % 2].owners.open_writer(self._ids(step.owner))
        self._opened.append(writer)
        self._writers[step.owner, step.instance] = writer
        await writer.fence()
        for key in ended:
            del self._open[key]
        await self._await_markers(before, Counter(queue for queues in ended.values() for queue in queues))
        return NOTHING

    async def _batch(self, step: script.Batch) -> Any:
        writer = self._writers.get((step.owner, step.instance))
        if writer is None:
            return _MISSING
        records, closing = [[self._message(record) for record in part] for part in (step.records, step.closing)]
        touched = frozenset(MessageQueue(m.topic, m.queue_id) for m in records)
        key = (step.owner, self._next_number())
        seen: list[Any] = []
        before: dict[MessageQueue, int] = {}

        async def interrupt() -> None:
            self._open[key] = touched
            seen.extend([await self._run(each) for each in step.during])
            if key in self._open:
                del self._open[key]
            before.update(await self._maxima(every))

        def finish(receipts: Sequence[Receipt]) -> Sequence[Message]:
            seen.append([self._normal.receipt(receipt) for receipt in receipts])
            self._world.interrupt(interrupt)
            return closing

        every = touched | {MessageQueue(m.topic, m.queue_id) for m in closing}
        try:
            result = await writer.put_all(AtomicBatch(records, finish))
        except BatchAborted as error:
            await self._world.clock.sleep_ms(_ABORT_MS)  # how many queues get a marker, nobody says
            await self._await_quiet(every)
            topic = self._normal.topic(error.topic) if error.topic else None
            return (seen, "raises", "BatchAborted", topic)
        except BridgeError as error:
            return (seen, "raises", type(error).__name__)
        appended = Counter(MessageQueue(m.topic, m.queue_id) for m in closing)
        await self._await_markers(before, Counter({queue: appended[queue] + 1 for queue in every}))
        return (seen, self._normal.batch(result))

    async def _hang(self, step: script.Hang) -> Any:
        if step.name in self._hanging:
            return _MISSING
        own_id = f"{self._prefix}-hang-{step.name}"
        transactional_id = own_id if step.owner is None else self._ids(step.owner)[step.turn]
        messages = [self._message(record) for record in step.records]
        before = await self._maxima(self._touched(step.owner))
        transaction = await self._world.begin(transactional_id, messages)
        self._hanging[step.name] = (transaction, step.owner)
        touched = frozenset(MessageQueue(m.topic, m.queue_id) for m in messages)
        await self._await_maxima(before)
        self._open[step.owner, -1 - step.name] = touched
        return NOTHING

    def _touched(self, owner: int | None) -> frozenset[MessageQueue]:
        """What has perhaps just been ended by another producer of one of the owner's ids."""
        if owner is None:
            return frozenset()
        return frozenset().union(*(queues for key, queues in self._open.items() if key[0] == owner))

    async def _end(self, step: script.End) -> Any:
        if step.name not in self._hanging:
            return _MISSING
        transaction, owner = self._hanging.pop(step.name)
        touched = self._open.pop((owner, -1 - step.name), frozenset())
        before = await self._maxima(touched)
        try:
            await transaction.end(is_commit=step.is_commit)
        except Exception:  # noqa: BLE001 - not a port: each world has errors of its own
            return "refused"
        await self._await_markers(before, Counter(touched))
        return NOTHING

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    # --- what the log does in its own time ---

    async def _maxima(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: (await self._world.process.store.get_offsets(queue)).maximum for queue in queues}

    async def _await_markers(self, before: dict[MessageQueue, int], added: "Counter[MessageQueue]") -> None:
        """Commit is answered before the markers are written."""
        await self._await_maxima({queue: before[queue] + count for queue, count in added.items()})
        await self._await_quiet(added)

    async def _await_maxima(self, wanted: dict[MessageQueue, int]) -> None:
        give_up_ms = self._world.clock.monotonic_ms() + QUIET_MS
        for queue, maximum in wanted.items():
            while (await self._maxima([queue]))[queue] < maximum and self._world.clock.monotonic_ms() < give_up_ms:
                await self._world.clock.sleep_ms(_LOOK_MS)

    async def _await_quiet(self, queues: Collection[MessageQueue]) -> None:
        """Nothing is open in these queues but what the program has left open."""
        open_queues = frozenset().union(*self._open.values())
        give_up_ms = self._world.clock.monotonic_ms() + QUIET_MS
        for queue in queues:
            while (
                queue not in open_queues
                and queue.queue_id != _NO_QUEUE
                and self._world.clock.monotonic_ms() < give_up_ms
            ):
                with suppress(BridgeError):
                    offsets = await self._world.process.store.get_offsets(queue)
                    if offsets.stable == offsets.maximum:
                        break
                await self._world.clock.sleep_ms(_LOOK_MS)

    # --- reads ---

    async def _get(self, step: script.Get) -> Any:
        return self._normal.get(await self._world.process.store.get(self._queue(step.at), step.offset, step.max_count))

    async def _geteach(self, step: script.GetEach) -> Any:
        found = await self._world.process.store.get_each(self._queue(step.at), step.offsets)
        return [(offset, self._normal.message(found[offset])) for offset in sorted(found)]

    async def _offsets(self, step: script.Offsets) -> Any:
        return tuple(await self._world.process.store.get_offsets(self._queue(step.at)))

    async def _bytime(self, step: script.ByTime) -> Any:
        return await self._world.process.store.get_offset_by_time(self._queue(step.at), self._start_ms - step.age_ms)

    async def _follow(self, step: script.Follow) -> Any:
        queue = self._queue(step.at)
        if step.reader not in self._readers:
            self._readers[step.reader] = self._world.process.owners.open_reader(queue, step.offset)
        offsets = await self._world.process.store.get_offsets(queue)
        reader, found = self._readers[step.reader], list[StoredMessage]()
        give_up_ms = self._world.clock.monotonic_ms() + QUIET_MS
        next_offset = -1
        while not offsets.stable <= next_offset <= offsets.maximum and self._world.clock.monotonic_ms() < give_up_ms:
            result = await reader.get(step.max_count, _READ_WAIT_MS)
            next_offset = result.next_begin_offset
            found.extend(result.messages)
            assert len(result.messages) <= step.max_count
            assert (result.status is GetStatus.FOUND) == bool(result.messages)
        return ([self._normal.message(message) for message in found], next_offset)

    async def _dump(self, step: script.Dump) -> Any:
        return [self._normal.message(message) for message in await self._world.dump(self._queue(step.at))]

    # --- what the log forgets ---

    async def _dropbelow(self, step: script.DropBelow) -> Any:
        maximum = (await self._maxima([self._queue(step.at)]))[self._queue(step.at)]
        await self._world.drop_below(self._queue(step.at), min(step.offset, maximum))
        return NOTHING

    async def _compact(self, step: script.Compact) -> Any:
        """When the first of two records of one key has gone, the cleaner has read everything before the second.

        Two fillers do not fit into one segment: a new one begins with the last filler and with nothing else, so it
        is one run.
        """
        queue = self._queue(step.at)
        put, clock = self._world.process.store.put, self._world.clock
        filler = Message(queue.topic, b"~filler", bytes(_FILLER_BYTES))
        if queue not in self._filled:
            await put(queue, filler)
            self._filled.add(queue)
        watched = (await put(queue, Message(queue.topic, b"~watched", b"1"))).queue_offset
        await put(queue, Message(queue.topic, b"~watched", b"2"))
        await put(queue, filler)
        give_up_ms = clock.monotonic_ms() + _CLEAN_MS
        while await self._world.process.store.get_each(queue, [watched]):
            if clock.monotonic_ms() > give_up_ms:
                return "not cleaned"
            await self._world.sweep()
        return NOTHING

    # --- groups ---

    async def _commitoffset(self, step: script.CommitOffset) -> Any:
        store = self._world.processes[step.process].store
        await store.put_consume_offset(self._group(step.group), self._queue(step.at), step.offset)
        return NOTHING

    async def _getoffset(self, step: script.GetOffset) -> Any:
        queue = self._queue(step.at)
        return (await self._world.process.store.get_consume_offsets(self._group(step.group), [queue]))[queue].offset

    async def _forgetgroup(self, step: script.ForgetGroup) -> Any:
        if any(group == step.group for _, group, _ in self._members.values()):
            return _MISSING
        await self._world.forget_group(self._group(step.group))
        return NOTHING

    async def _join(self, step: script.Join) -> Any:
        if step.member in self._members:
            return _MISSING
        owners = self._world.processes[step.member % 2].owners
        member = owners.join_group(self._group(step.group), self._queues[step.topic].topic)
        self._members[step.member] = (member, step.group, step.topic)
        self._followers[step.member] = asyncio.create_task(_release_all(member))
        return await self._share(step.group)

    async def _leave(self, step: script.Leave) -> Any:
        if step.member not in self._members:
            return _MISSING
        member, group, _ = self._members.pop(step.member)
        await member.close()
        await self._followers.pop(step.member)
        return await self._share(group)

    async def _share(self, group: int) -> Any:
        """How many queues of each topic each member has, most first, when nothing moves any more."""
        mine = [(member, topic) for member, its_group, topic in self._members.values() if its_group == group]
        give_up_ms = self._world.clock.monotonic_ms() + 2 * QUIET_MS
        while True:
            await self._world.await_group(self._group(group), len(mine))
            shares = {
                topic: sorted((_owned(member) for member, its_topic in mine if its_topic == topic), key=len)
                for topic in {topic for _, topic in mine}
            }
            if all(_is_even(owned) for owned in shares.values()) or self._world.clock.monotonic_ms() > give_up_ms:
                return {topic: ([len(s) for s in owned], set().union(*owned)) for topic, owned in shares.items()}
            await self._world.clock.sleep_ms(_LOOK_MS)


def _owned(member: GroupMember) -> set[int]:
    return {queue_id for queue_id in range(QUEUES) if member.is_owned(queue_id)}


def _is_even(owned: Sequence[set[int]]) -> bool:
    counts = [len(each) for each in owned]
    return sum(counts) == QUEUES and max(counts) - min(counts) <= 1


async def _release_all(member: GroupMember) -> None:
    with suppress(BridgeError):
        while True:
            member.release((await member.next_change()).revoked)
