"""Runs in which journal or op topic is deleted and made again, and an operator gives up what it held.

    python -m tests.simulation.lost_logs --seeds 300

A schedule like any other, with its calls and faults, in which this happens once. What was given up is judged by rules
of its own (seen at most once, and as it was told before); all other promises are checked on the rest.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from random import Random

import msgspec
import sqlalchemy as sa

from bridge.core.errors import MalformedRecord, SqlUnavailable, StoreError, UnknownRecordVersion
from bridge.core.keyring import OpSeals
from bridge.core.message import StoredMessage
from bridge.core.properties import TRANSACTION_ID_HEADER
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_parked, decode_record
from bridge.core.transaction import TransactionState, is_transaction_id
from bridge.giving_up import GivingUp
from bridge.sql.search import read_stats
from bridge.sql.tables import given_up
from bridge.store.memory.process import MemoryProcess
from bridge.store.op_topic import SealedOwnerStore, SealWatch
from tests.simulation.clients import Heard
from tests.simulation.evidence import Archive, Place
from tests.simulation.node import KEYRING, NodeClock, NodeDatabase
from tests.simulation.oracle import find_truth
from tests.simulation.promises import Violation
from tests.simulation.schedule import CALLS_MS, START_MS, FaultKind, Schedule, make_schedule
from tests.simulation.situations import Situation
from tests.simulation.world import Run, World, simulate

_SPARSE = 50  # seeds of ordinary schedules for one of these: most have no SQL
_OPERATOR = "99.1"  # no instance of a schedule
_AGAIN_MS = 500
_SETTLED = {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}


class Loss(msgspec.Struct, frozen=True):
    """Which topic is lost, when, and how long after that the operator begins to act."""

    topic: str
    at_ms: int
    act_after_ms: int


def make_losing_schedule(seed: int) -> tuple[Schedule, Loss]:
    """The schedule and the loss of this number, always the same."""
    schedule = next(s for n in count(seed * _SPARSE) if (s := make_schedule(n)).has_sql)
    faults = tuple(fault for fault in schedule.faults if fault.kind not in _OTHER_LOSSES)
    random = Random(f"{seed}/loss")
    loss = Loss(random.choice(("half", "op")), random.randrange(300, CALLS_MS), random.choice((0, 200, 2_000, 6_000)))
    return msgspec.structs.replace(schedule, faults=faults, situation=Situation()), loss


_OTHER_LOSSES = {FaultKind.RETAIN, FaultKind.RESTORE_SQL, FaultKind.BROKER_CLOCK}
"""One loss at a time: what L says, what SQL knew of the lost log, the times that rules compare."""


class LosingArchive(Archive):
    """Readers of the other promises see nothing of what was given up."""

    gone: frozenset[str] = frozenset()
    lost_topics: frozenset[str] = frozenset()

    def read(self, topic: str) -> list[tuple[Place, list[StoredMessage]]]:
        """What committed readers found, each queue in order; nothing of a journal that was given up."""
        return [
            (place, [m for m in found if _id_of(m) not in self.gone])
            for place, found in self.read_all(topic)
            if place[0] not in self.lost_topics
        ]

    def read_all(self, topic: str) -> list[tuple[Place, list[StoredMessage]]]:
        """The same, with what was given up."""
        return super().read(topic)


class _Everything(Archive):
    """The archive as `find_truth` reads it, with what was given up."""

    def __init__(self, archive: LosingArchive) -> None:
        self._archive = archive

    def read(self, topic: str) -> list[tuple[Place, list[StoredMessage]]]:
        return self._archive.read_all(topic)


class LosingWorld(World):
    """A world in which a log is lost."""

    def __init__(self, schedule: Schedule, loss: Loss) -> None:
        super().__init__(schedule)
        self.archive: LosingArchive = LosingArchive(self.cluster.log)
        self._loss = loss
        self._losing: asyncio.Task[None] | None = None
        self._acted_at_ms = 0
        self.all_heard: list[Heard] = []

    async def run(self) -> None:
        self._losing = asyncio.create_task(self._lose())
        await super().run()

    async def _wait_quiet(self) -> None:
        assert self._losing is not None
        await self._losing
        self._note_gone()
        await super()._wait_quiet()

    def conclude(self) -> None:
        """The usual promises hear nothing of what was given up.

        Nor where a prepare was stored, or who was asked before: what nobody had read is stored anew by its repeat, in
        the new journal.
        """
        self._note_gone()
        gone = self.archive.gone
        self.all_heard = list(self.callers.heard)
        numbers = {one.number for one in self.callers.heard if {one.transaction_id, one.asked_id} & gone}
        kept = [one for one in self.callers.heard if one.number not in numbers]
        self.callers.heard[:] = [msgspec.structs.replace(one, prepared=None) for one in kept]
        asked = [one for one in self.endpoints.log if one.transaction_id not in gone]
        anew = self._find_prepared_anew()
        self.endpoints.log[:] = [
            one for one in asked if one.at_ms >= min(self._acted_at_ms, anew.get(one.transaction_id, 0) - START_MS)
        ]

    async def _lose(self) -> None:
        await self.clock.sleep_ms(self._loss.at_ms)
        name, log = getattr(self.topics, self._loss.topic), self.cluster.log
        self.archive.bury(name)
        topic_id = log.topics[name].topic_id
        config, queues = log.topics[name].config, len(log.topics[name].partitions)
        log.delete_topic(name)
        log.create_topic(name, queues, config)
        self.struck[f"{self._loss.topic} lost"] += 1
        self.story.tell("fault", f"{name} is deleted and made again")
        await self.clock.sleep_ms(self._loss.act_after_ms)
        await self._act()
        self._acted_at_ms = self.clock.now_ms() - START_MS
        self._note_gone()
        if self._loss.topic == "half":
            self.archive.lost_topics = frozenset((topic_id,))
        self.story.tell("operator", f"has given up {len(self.archive.gone)}")

    async def _act(self) -> None:
        """`migrate --accept-identity --yes`, until it has worked."""
        process = MemoryProcess(self.cluster, _OPERATOR)
        clock = NodeClock(self.clock, process)
        database = NodeDatabase(self.engine, process, clock, self.operating.sql_fate, Random(self.schedule.seed))
        owners = SealedOwnerStore(process.owners, self.topics.op, SealWatch(OpSeals(KEYRING)))
        giving_up = GivingUp(process.store, owners, process.admin, database, clock, self.topics)
        while True:
            try:
                await giving_up.act("operator")
            except (StoreError, SqlUnavailable) as error:
                self.story.tell("operator", f"cannot act: {error}")
                await self.clock.sleep_ms(_AGAIN_MS)
            else:
                return

    def _note_gone(self) -> None:
        self.archive.keep()
        self.archive.gone = frozenset(self._find_gone())

    def _find_gone(self) -> set[str]:
        """Those that SQL remembers, and those of a lost journal that nobody had read and nobody has prepared again."""
        with self.engine.begin() as connection:
            remembered = set(connection.execute(sa.select(given_up.c.transaction_id)).scalars())
        if self._loss.topic != "half":
            return remembered
        before, since = self._find_prepared()
        return remembered | (before - since.keys())

    def _find_prepared_anew(self) -> dict[str, int]:
        """In the new journal, after they were prepared in the lost one; and when."""
        before, since = self._find_prepared()
        return {transaction_id: at_ms for transaction_id, at_ms in since.items() if transaction_id in before}

    def _find_prepared(self) -> tuple[set[str], dict[str, int]]:
        """What a lost journal held, and what the one that there is now holds, since when."""
        now = self.cluster.log.topics[self.topics.half].topic_id
        before, since = set[str](), dict[str, int]()
        for (topic_id, _), messages in self.archive.read_all(self.topics.half):
            for message in messages:
                record = decode_record(message)
                if not isinstance(record, HalfMessage):
                    continue
                if topic_id == now:
                    since.setdefault(record.transaction_id, message.stored_ms)
                else:
                    before.add(record.transaction_id)
        return before, since


def _id_of(message: StoredMessage) -> str | None:
    """The transaction that a record of any topic speaks of."""
    named = [value for name, value in message.headers if name == TRANSACTION_ID_HEADER and value]
    if named:
        return named[-1].decode()
    key = message.key or b""
    if not message.headers and is_transaction_id(key.decode("latin-1")):  # an op message
        return key.decode()
    for decode in (decode_record, decode_parked):
        with suppress(MalformedRecord, UnknownRecordVersion):
            return getattr(decode(message), "transaction_id", None)
    return None


def check_given_up(world: LosingWorld, heard: list[Heard]) -> Iterator[Violation]:
    """D, P, L of what was given up: visible at most once, if it was committed at all; and if its end was told, then it
    is as it was told."""
    archive = world.archive
    truth = find_truth(_Everything(archive), world.topics)
    seen: dict[str, Counter[tuple[str, bytes | None]]] = {}
    for topic in ("orders", "credits"):
        for _, messages in archive.read_all(topic):
            for message in messages:
                if (transaction_id := _id_of(message)) in archive.gone and transaction_id is not None:
                    seen.setdefault(transaction_id, Counter())[topic, message.value] += 1
    for transaction_id, records in seen.items():
        known = truth.get(transaction_id)
        wanted = Counter((m.topic, m.value) for m in known.messages) if known is not None else Counter()
        if known is None or known.state is not TransactionState.COMMITTED:
            yield Violation("P", transaction_id, "given up, never committed, and visible")
        elif any(number > wanted[place] for place, number in records.items()):
            yield Violation("D", transaction_id, "given up, and visible twice")
    for one in heard:
        is_told = one.outcome == "ok" and one.state in _SETTLED and one.transaction_id in archive.gone
        if not is_told or one.transaction_id is None or (one.view and (one.view.blocked or one.view.abandoned)):
            continue
        found = seen.get(one.transaction_id, Counter())
        buried = any(transaction_id == one.transaction_id for _, transaction_id in archive.buried)
        if one.state is TransactionState.COMMITTED and not found and not buried:
            yield Violation("L", one.transaction_id, "told COMMITTED, and not visible")
        if one.state is TransactionState.ROLLED_BACK and found:
            yield Violation("P", one.transaction_id, "told ROLLED_BACK, and visible")


def check_counts(world: LosingWorld) -> Iterator[Violation]:
    """C: what had ended and was counted stays so; what was open is counted no more."""
    wanted: Counter[tuple[str, str]] = Counter()
    for truth in find_truth(world.archive, world.topics).values():
        state = truth.state if truth.state in _SETTLED else TransactionState.PARKED
        wanted[truth.group, state.value] += 1
    with world.engine.begin() as connection:
        stats = read_stats(connection, 0)
        for row in connection.execute(sa.select(given_up).where(given_up.c.blocked == 0)):
            if (
                row.state in {state.value for state in _SETTLED} and row.appended_ms != row.given_up_ms
            ):  # the projection's
                wanted[row.producer_group, row.state] += 1
    for group in {group for group, _ in wanted}:
        counted = stats.groups.get(group)
        found = (counted.committed, counted.rolled_back, counted.parked, counted.pending) if counted else None
        expected = (*[wanted[group, state] for state in ("COMMITTED", "ROLLED_BACK", "PARKED")], 0)
        if found != expected:
            yield Violation("C", group, f"committed, rolled back, parked, pending are counted {found}, not {expected}")


def simulate_loss(seed: int) -> Run:
    """Runs the schedule of this number to its end and checks every promise."""
    schedule, loss = make_losing_schedule(seed)
    worlds: list[LosingWorld] = []

    def make(schedule: Schedule) -> World:
        worlds.append(LosingWorld(schedule, loss))
        return worlds[0]

    run = simulate(schedule, make)
    run.violations[:] = [violation for violation in run.violations if violation.promise != "C"]
    run.violations += [*check_given_up(worlds[0], worlds[0].all_heard), *check_counts(worlds[0])]
    return run


def main(arguments: list[str]) -> int:
    """0: every promise was kept."""
    parser = argparse.ArgumentParser(
        "python -m tests.simulation.lost_logs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--replay", type=int)
    options = parser.parse_args(arguments)
    if options.replay is not None:
        run = simulate_loss(options.replay)
        sys.stdout.write("\n".join([run.story.text(), *map(str, run.violations), ""]))
        return 1 if run.violations else 0
    failed = 0
    for seed in range(options.first, options.first + options.seeds):
        for violation in simulate_loss(seed).violations:
            failed += 1
            sys.stdout.write(f"{seed}: {violation}\n")
    sys.stdout.write(f"{options.seeds} schedules, {failed} violations\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
