"""An operator's way out where the log is not what was left: what would be lost, and the positions to go on from.

Nothing is published a second time by it. Where the op topic is in doubt, nothing below the journal's end is decided
any more; where the journal is, what the op topic or the projection knows is not decided again.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import ConfigError, HaltKind, MalformedRecord, UnknownRecordVersion
from bridge.core.message import MessageQueue, StoredMessage
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, LogStart, LogTopics, Position, decode_op
from bridge.core.position import MIGRATE_OWNER, LogFacts, Span, Witness, find_fault
from bridge.core.record import HalfMessage, is_void
from bridge.core.record_codec import decode_record
from bridge.core.topics import InternalTopics
from bridge.core.transaction import TransactionState
from bridge.sql.access import ActEntry, record_act
from bridge.sql.bulk import allow_long_statements
from bridge.sql.engine import Database
from bridge.sql.identity import (
    GIVE_UP,
    Halt,
    Unproven,
    believe_from,
    clear_halt,
    find_known_ids,
    give_up_queue,
    give_up_some,
    name_target,
    read_beliefs,
    read_halts,
    read_identity,
    read_last_acts,
    read_live,
    record_identity,
    store_halt,
)
from bridge.sql.rows import AppliedPosition, is_of_before, read_position
from bridge.store.message_store import MessageStore, OwnerStore, TopicAdmin
from bridge.store.op_topic import find_position, read_range, write_position
from bridge.topology import identify

_OF_OP = frozenset({HaltKind.NO_POSITION, HaltKind.OTHER_OP, HaltKind.OP_LOST})
_WHOLE = _OF_OP | {HaltKind.OTHER_JOURNAL, HaltKind.JOURNAL_LOST}
_FORGOTTEN = _WHOLE | {HaltKind.OLDER_DATABASE}  # the projection begins anew where the log does
_LOOKS = 5  # at a queue that is written to
_FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})
_AUDITED_IDS = 1_000
_SQL_TIMEOUT_MS = 600_000
_GONE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Loss:
    """What one queue loses. `position`: from where it goes on; `unproven`: what nobody can prove any more; `decided`:
    what had ended, and only its op messages show: remembered, so that no repeat of it is taken for new. `applied`: how
    far the projection was.
    """

    queue_id: int
    kind: HaltKind
    position: Position
    unproven: Sequence[Unproven]
    decided: Sequence[Unproven] = ()
    applied: AppliedPosition | None = None


def _find_ids(losses: Sequence[Loss]) -> set[str]:
    return {one.transaction_id for loss in losses for one in loss.unproven}


class _Judged(NamedTuple):
    position: Position | None
    facts: LogFacts
    kind: HaltKind | None
    applied: AppliedPosition | None


class GivingUp:
    """`survey` only reports; `act` does what it says, queue by queue, and can be repeated."""

    def __init__(
        self,
        store: MessageStore,
        owners: OwnerStore,
        admin: TopicAdmin,
        database: Database,
        clock: Clock,
        topics: InternalTopics,
    ) -> None:
        self._store = store
        self._owners = owners
        self._admin = admin
        self._database = database
        self._clock = clock
        self._topics = topics

    async def survey(self) -> list[Loss]:
        """The queues whose log is not what was left. Raises StoreError and SqlUnavailable."""
        losses = [await self._look(queue_id) for queue_id in range(self._topics.queues)]
        return [loss for loss in losses if loss is not None]

    async def refuse_more(self, shown: Sequence[Loss]) -> None:
        """Raises ConfigError where more is lost than was shown, perhaps hours ago; and StoreError, SqlUnavailable."""
        if more := _find_ids(await self.survey()) - _find_ids(shown):
            raise ConfigError(
                f"nothing was given up: {len(more)} transactions that were not shown cannot be proven by now either; "
                "run it again, and look at them"
            )

    async def act(self, actor: str) -> list[Loss]:
        """Gives up what cannot be proven: new positions, audit, halts cleared, the topics recorded; what it was.

        Missing topics have been made before. Raises StoreError and SqlUnavailable.
        """
        losses = [await self._give_up(queue_id, actor) for queue_id in range(self._topics.queues)]
        known, now_ms = await identify(self._admin, self._topics), self._clock.now_ms()
        await self._database.run(partial(record_identity, topics=known, now_ms=now_ms))
        return [loss for loss in losses if loss is not None]

    async def _give_up(self, queue_id: int, actor: str) -> Loss | None:
        found: list[Loss] = []

        async def make() -> Position | None:
            loss = await self._look(queue_id)
            if loss is None:
                return None
            found.append(loss)
            return loss.position

        while (loss := await self._look(queue_id)) is not None:
            found.clear()
            await self._halt(loss)
            await write_position(self._owners, self._topics, queue_id, make)
            if not found:
                return None
            record = partial(_record, loss=found[0], actor=actor, now_ms=self._clock.now_ms())
            if await self._database.run(record, _SQL_TIMEOUT_MS):
                return found[0]
        return None

    async def _halt(self, loss: Loss) -> None:
        """First of all: once the new position is written the log seems whole, and a repeat must still finish this."""
        detail = f"an operator is giving up what is lost ({loss.kind.value})"
        halt = Halt(loss.queue_id, loss.kind, detail, self._clock.now_ms())
        await self._database.run(partial(store_halt, halt=halt))

    async def find_faults(self) -> dict[int, HaltKind]:
        """What is wrong, by queue, without looking for what is lost by it. Raises StoreError and SqlUnavailable."""
        judged = {queue_id: await self._judge(queue_id) for queue_id in range(self._topics.queues)}
        return {queue_id: found.kind for queue_id, found in judged.items() if found.kind is not None}

    async def _look(self, queue_id: int) -> Loss | None:
        position, facts, kind, applied = await self._judge(queue_id)
        if kind is None:
            return None
        next_position = await self._choose(queue_id, kind, position, facts)
        unproven = await self._find_unproven(queue_id, kind, next_position, facts.journal)
        decided = [] if kind in _OF_OP or kind not in _WHOLE else await self._find_unprojected(queue_id)
        open_ones = [u for u in decided if u.blocked or u.state not in _FINAL]
        ended = [u for u in decided if u not in open_ones]
        return Loss(queue_id, kind, next_position, [*unproven, *open_ones], ended, applied)

    async def _judge(self, queue_id: int) -> "_Judged":
        """A fault is believed if nobody has written meanwhile: else the parts of a look are of different moments."""
        for _ in range(_LOOKS):
            judged, is_at_rest = await self._judge_once(queue_id)
            if is_at_rest or judged.kind is None:
                break
        return judged

    async def _judge_once(self, queue_id: int) -> tuple["_Judged", bool]:
        """The ends come last, and who has seen what first: an owner at work moves them all."""
        topics = self._topics
        names = (topics.half, topics.op, topics.parked)
        found = await self._admin.identify_topics(names)
        log = LogTopics(*[topic.topic_id if (topic := found[name]) else "" for name in names])
        halts = await self._database.read(read_halts)
        known = await self._database.read(partial(read_position, queue_id=queue_id))
        before = await self._measure(topics.op, queue_id, log.op)
        position = (
            await find_position(self._store, self._owners, topics, queue_id, is_last=True) if before.maximum else None
        )
        op = await self._measure(topics.op, queue_id, log.op)
        journal = await self._measure(topics.half, queue_id, log.half)
        facts = LogFacts(log, journal, op, await self._find_last_ms(queue_id, position, journal))
        if known is not None:
            witness = Witness(known[0].s, known[1].journal_topic_id, known[1].op_topic_id, op_next=known[0].op_next)
            facts = facts._replace(witnesses=(witness,))
        stored, seen = halts.get(queue_id), find_fault(position, facts)
        # a stored halt counts although the log seems whole again; doubt about the op topic counts first
        kind = seen if stored is None or seen in _OF_OP else stored.kind
        if kind is None and position is not None:
            is_older = (
                is_of_before(known, log, position.start)
                if known is not None
                else journal.minimum < position.start.journal and not await self._has_act(queue_id)
            )
            kind = HaltKind.OLDER_DATABASE if is_older else None
        return _Judged(position, facts, kind, None if known is None else known[0]), before == op

    async def _has_act(self, queue_id: int) -> bool:
        """Whether this database knows that something of the queue was given up: a new one does not."""
        return bool((await self._database.read(partial(read_last_acts, queue_ids=[queue_id])))[queue_id])

    async def _choose(self, queue_id: int, kind: HaltKind, position: Position | None, facts: LogFacts) -> Position:
        journal, op, log = facts.journal, facts.op, facts.topics
        if kind in _OF_OP or position is None:
            start = LogStart(journal.maximum, op.maximum)
            return Position(start.journal, start.journal, start.op, MIGRATE_OWNER, log, None, start)
        if kind in _WHOLE:
            start = LogStart(await self._find_first_new(queue_id, journal), op.maximum)
            return Position(start.journal, start.journal, start.op, MIGRATE_OWNER, log, None, start)
        s, l = max(position.s, journal.minimum), max(position.l, journal.minimum)  # noqa: E741
        return position._replace(s=s, l=l, owner=MIGRATE_OWNER, topics=log, s_ms=None)

    async def _find_first_new(self, queue_id: int, journal: Span) -> int:
        """The offset behind the last half message that the op topic or the projection knows."""
        known = await self._read_op_ids(queue_id)
        first_new, waiting = journal.minimum, dict[str, int]()
        async for offset, half in self._read_halves(queue_id, journal.minimum):
            if half.transaction_id in known:
                first_new = offset + 1
            else:
                waiting[half.transaction_id] = offset
        projected = await self._database.read(partial(find_known_ids, transaction_ids=waiting))
        return max([first_new, *[waiting[transaction_id] + 1 for transaction_id in projected]])

    async def _find_unprojected(self, queue_id: int) -> list[Unproven]:
        """Op messages that the projection has not applied yet; it never will."""
        last: dict[str, Unproven] = {}
        async for message in self._read(self._topics.op, queue_id):
            if message.key in {None, POSITION_KEY, ANSWERS_KEY} or message.key is None or message.value is None:
                continue
            with suppress(MalformedRecord, UnknownRecordVersion):
                t = decode_op(message.key.decode("latin-1"), message.value).transaction
                last[t.transaction_id] = Unproven(
                    t.transaction_id, t.group, t.state, t.half, None, t.blocked, t.abandoned
                )
        projected = await self._database.read(partial(find_known_ids, transaction_ids=last))
        return [u for u in last.values() if u.transaction_id not in projected]

    async def _read_op_ids(self, queue_id: int) -> set[str]:
        return {
            message.key.decode("latin-1")
            async for message in self._read(self._topics.op, queue_id)
            if message.key not in {None, POSITION_KEY, ANSWERS_KEY} and message.key is not None
        }

    async def _find_unproven(
        self, queue_id: int, kind: HaltKind, position: Position, journal: Span
    ) -> Sequence[Unproven]:
        live = await self._database.read(partial(read_live, queue_id=queue_id))
        if kind is HaltKind.JOURNAL_GAP:
            halves = {half.transaction_id async for _, half in self._read_halves(queue_id, position.l)}
            pending = [u for u in live if u.state is TransactionState.PREPARED and u.queue_offset < position.s]
            gone = [u for u in pending if u.transaction_id not in halves]
            known = await self._read_op_ids(queue_id) if gone else set()
            return [u for u in gone if u.transaction_id not in known]  # what was carried forward has its state
        if kind is HaltKind.OTHER_PARKED:
            return [u for u in live if u.state is TransactionState.PARKED]
        known = {u.transaction_id for u in live}
        if kind not in _OF_OP and kind in _WHOLE:
            known |= await self._read_op_ids(queue_id)
        waiting: dict[str, Unproven] = {}
        if kind in _FORGOTTEN:  # what lies before the place to go on from, also in a journal that was made again
            place = position.s if kind in _WHOLE else position.start.journal
            async for offset, half in self._read_halves(queue_id, journal.minimum):
                if offset < place and half.transaction_id not in known:
                    state, key = TransactionState.PREPARED, half.idempotency_key
                    waiting[half.transaction_id] = Unproven(half.transaction_id, half.group, state, offset, key)
        projected = await self._database.read(partial(find_known_ids, transaction_ids=waiting))
        return [*live, *[u for u in waiting.values() if u.transaction_id not in projected]]

    async def _measure(self, topic: str, queue_id: int, topic_id: str) -> Span:
        if not topic_id:
            return _GONE
        offsets = await self._store.get_offsets(MessageQueue(topic, queue_id))
        return Span(offsets.minimum, offsets.maximum)

    async def _find_last_ms(self, queue_id: int, position: Position | None, journal: Span) -> int | None:
        if position is None or not journal.minimum < position.s <= journal.maximum:
            return None
        last = await self._store.get_each(MessageQueue(self._topics.half, queue_id), [position.s - 1])
        return next((message.stored_ms for message in last.values()), None)

    async def _read_halves(self, queue_id: int, start: int) -> AsyncIterator[tuple[int, HalfMessage]]:
        async for message in self._read(self._topics.half, queue_id, start):
            with suppress(MalformedRecord, UnknownRecordVersion):
                record = decode_record(message)
                if isinstance(record, HalfMessage) and not is_void(record, message.stored_ms):
                    yield message.queue_offset, record

    async def _read(self, topic: str, queue_id: int, start: int = 0) -> AsyncIterator[StoredMessage]:
        if (await self._admin.identify_topics([topic]))[topic] is None:
            return  # what was in it is gone with it
        queue = MessageQueue(topic, queue_id)
        offsets = await self._store.get_offsets(queue)
        async for message in read_range(self._owners, queue, max(start, offsets.minimum), offsets.maximum):
            yield message


def _has_first_records(conn: Connection, loss: Loss) -> bool:
    """Whether the op topic is the same one, and was not cut off among the records that need no seal."""
    log, believed = loss.position.topics, read_beliefs(conn).get(loss.queue_id, 0)
    is_same = log is not None and any(log.op == known.topic_id for known in read_identity(conn).values())
    return is_same and believed <= loss.position.start.op


def _record(conn: Connection, loss: Loss, actor: str, now_ms: int) -> bool:
    """False, and nothing is recorded, if the projection has gone on since: it may know more of the log by now."""
    allow_long_statements(conn)
    known = read_position(conn, loss.queue_id, is_locked=True)
    if (None if known is None else known[0]) != loss.applied:
        return False
    if loss.kind in _FORGOTTEN:
        give_up_queue(conn, loss.queue_id, [*loss.unproven, *loss.decided], now_ms)
    elif loss.kind is HaltKind.JOURNAL_GAP:
        give_up_some(conn, loss.unproven, now_ms)
    if loss.kind in _OF_OP and not _has_first_records(conn, loss):
        believe_from(conn, loss.queue_id, 0)  # the offset spoke of what is lost
    ids = [u.transaction_id for u in loss.unproven]
    after = {
        "kind": loss.kind.value, "s": loss.position.s, "count": len(ids), "transactions": ids[:_AUDITED_IDS],
    }  # fmt: skip
    clear_halt(conn, loss.queue_id)
    record_act(conn, ActEntry(now_ms, actor, GIVE_UP, name_target(loss.queue_id), None, None, after))
    return True
