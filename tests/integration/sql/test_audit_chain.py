"""The audit's chain on both databases, its heads on the in-memory log: tampering is found, all else passes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy import Connection, event

from bridge.clock import SystemClock
from bridge.core.audit_chain import UPGRADE_MS, AuditHead, AuditLink, AuditRow, Flaw, make_link
from bridge.core.errors import HaltKind
from bridge.core.grants import Grant, Verb
from bridge.core.keyring import Keyring, OpSeals
from bridge.core.message import Message
from bridge.core.op_message import LogTopics, Position
from bridge.core.topics import InternalTopics
from bridge.directory import DEFAULT_SETTINGS
from bridge.giving_up import Loss, _record
from bridge.service.access import AccessConfig, AccessService
from bridge.service.audit import LATE_MS, AuditHeads, AuditVerdict, HeadTopic, accept_chain, verify_audit
from bridge.service.operate import Who
from bridge.sql.access import ActEntry, adopt_entries, read_links, record_act
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.groups import rewrap_secrets
from bridge.sql.identity import begin_seals, read_keys
from bridge.sql.leases import EndpointLease, EndpointTerm
from bridge.sql.tables import audit, audit_links, bridge_keys
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryCluster
from bridge.topology import load_seals
from tests.support.memory_world import make_cluster
from tests.support.virtual_time import VirtualClock

TOPICS = InternalTopics()
WHO = Who("ann", "because")
ACT = ActEntry(1_000, "ann", "transaction.force", "t-1", "because", {"state": "PREPARED"}, None)


@dataclass
class ChainWorld:
    """A database with a key, a log, and an api process that appends heads."""

    database: Database
    cluster: MemoryCluster
    process: MemoryProcess
    clock: VirtualClock
    keyring: Keyring

    def make_heads(self) -> AuditHeads:
        """An api process that has not looked yet."""
        return AuditHeads(self.database, self._topic(), self.keyring, self.clock, "api")

    async def verify(self, outside_until_ms: int | None = None) -> AuditVerdict:
        """As `audit verify` does."""
        return await verify_audit(self.database, self._topic(), self.keyring, outside_until_ms)

    async def act(self, number: int) -> None:
        """An audited act."""
        entry = ActEntry(1_000 + number, "ann", f"act {number}", f"t-{number}", None, {"n": number}, None)
        await self.database.run(lambda conn: record_act(conn, entry))

    async def append_head(self) -> None:
        """A process looks until there is nothing to do."""
        heads = self.make_heads()
        while await heads.run_once():
            pass

    def _topic(self) -> HeadTopic:
        return HeadTopic(self.process.store, TOPICS, self.keyring)


@pytest_asyncio.fixture
async def world(database: Database) -> AsyncIterator[ChainWorld]:
    """Nothing was audited yet."""
    await database.run(partial(begin_seals, believed={}, now_ms=1))
    keyring = Keyring()
    await load_seals(database, OpSeals(keyring))
    cluster = make_cluster(SystemClock())
    yield ChainWorld(database, cluster, MemoryProcess(cluster, "main"), VirtualClock(), keyring)


async def fill(world: ChainWorld, count: int, headed: int) -> None:
    """Entries, a head behind the first `headed` of them and some before."""
    for number in range(1, count + 1):
        await world.act(number)
        if number == headed or (number < headed and number % 3 == 0):
            await world.append_head()


async def test_chain_that_nobody_touched_is_proven_up_to_its_newest_head(world: ChainWorld) -> None:
    """What came after the head is told as unproven, and is no finding."""
    await fill(world, 7, 5)
    verdict = await world.verify()
    assert (verdict.entries, verdict.proven, verdict.unproven, verdict.adopted, verdict.unlinked) == (7, 5, 2, 0, 0)
    assert (verdict.flaws, verdict.findings, verdict.foreign) == (0, [], 0)
    await world.append_head()
    assert (await world.verify()).unproven == 0


Sabotage = Callable[[Connection, Random, int, int], None]


def alter(conn: Connection, random: Random, count: int, headed: int) -> None:
    """Any member of any entry."""
    values: dict[str, object] = {
        "at_ms": 7, "actor": "bob", "what": "else", "target": "t", "reason": "r", "before": None, "after": "{}",
    }  # fmt: skip
    name = random.choice(list(values))
    conn.execute(sa.update(audit).where(audit.c.id == random.randint(1, count)).values({name: values[name]}))


def remove_entry(conn: Connection, random: Random, count: int, headed: int) -> None:
    conn.execute(sa.delete(audit).where(audit.c.id == random.randint(1, count)))


def remove_with_link(conn: Connection, random: Random, count: int, headed: int) -> None:
    """From the middle, or from below the newest head."""
    which = random.randint(1, count - 1)
    conn.execute(sa.delete(audit).where(audit.c.id == which))
    conn.execute(sa.delete(audit_links).where(audit_links.c.number == which))


def cut_the_tail(conn: Connection, random: Random, count: int, headed: int) -> None:
    """All from an entry on that a head proves."""
    first = random.randint(1, headed)
    conn.execute(sa.delete(audit).where(audit.c.id >= first))
    conn.execute(sa.delete(audit_links).where(audit_links.c.number >= first))


def swap_entries(conn: Connection, random: Random, count: int, headed: int) -> None:
    """Two entries change places, under their ids."""
    one, other = random.sample(range(1, count + 1), 2)
    for old, new in ((one, -1), (other, one), (-1, other)):
        conn.execute(sa.update(audit).where(audit.c.id == old).values(id=new))


def swap_links(conn: Connection, random: Random, count: int, headed: int) -> None:
    """Two links name each other's entry."""
    one, other = random.sample(range(1, count + 1), 2)
    for number, new in ((one, -1), (other, one), (one, other)):
        conn.execute(sa.update(audit_links).where(audit_links.c.number == number).values(audit_id=new))


def insert_with_link(conn: Connection, random: Random, count: int, headed: int) -> None:
    """An invented entry, its MAC copied from another one."""
    values = {"at_ms": 5, "actor": "ann", "what": "nothing", "target": "t"}
    made = conn.execute(sa.insert(audit).values(values).returning(audit.c.id)).scalar_one()
    copied = conn.execute(sa.select(audit_links.c.mac).where(audit_links.c.number == count)).scalar_one()
    conn.execute(sa.insert(audit_links).values(number=count + 1, audit_id=made, mac=copied))


def insert_without_a_key(conn: Connection, random: Random, count: int, headed: int) -> None:
    """A link as a bridge without keys would make it."""
    values = {"at_ms": 5, "actor": "ann", "what": "nothing", "target": "t"}
    made = conn.execute(sa.insert(audit).values(values).returning(audit.c.id)).scalar_one()
    last = read_links(conn, count - 1, 1)[0][0]
    row = AuditRow(made, 5, "ann", "nothing", "t", None, None, None)
    conn.execute(sa.insert(audit_links).values(make_link(Keyring(), row, last)._asdict()))


def take_links_away(conn: Connection, random: Random, count: int, headed: int) -> None:
    """So that an altered entry looks like one of an older version."""
    which = random.randint(1, headed)
    conn.execute(sa.update(audit).where(audit.c.id == which).values(actor="bob"))
    conn.execute(sa.delete(audit_links).where(audit_links.c.number == which))


def sign_one_anew(conn: Connection, random: Random, count: int, headed: int) -> None:
    """By somebody who has the key: an entry and its own link, those behind stay."""
    which = random.randint(1, headed - 1)
    conn.execute(sa.update(audit).where(audit.c.id == which).values(actor="bob"))
    _sign(conn, which, which)


def sign_all_anew(conn: Connection, random: Random, count: int, headed: int) -> None:
    """By somebody who has the key: an entry, and all links from it on."""
    which = random.randint(1, headed)
    conn.execute(sa.update(audit).where(audit.c.id == which).values(actor="bob"))
    _sign(conn, which, count)


def _sign(conn: Connection, first: int, last: int) -> None:
    keyring = Keyring(read_keys(conn))
    before: AuditLink | None = next((link for link, _ in read_links(conn, first - 2, 1)), None) if first > 1 else None
    for _, row in read_links(conn, first - 1, last - first + 1):
        assert row is not None
        before = make_link(keyring, row, before)
        conn.execute(sa.update(audit_links).where(audit_links.c.number == before.number).values(mac=before.mac))


SABOTAGES: dict[Sabotage, set[Flaw]] = {
    alter: {Flaw.ALTERED},
    remove_entry: {Flaw.REMOVED},
    remove_with_link: {Flaw.LINKS_MISSING},
    cut_the_tail: {Flaw.CUT},
    swap_entries: {Flaw.ALTERED},
    swap_links: {Flaw.ALTERED},
    insert_with_link: {Flaw.ALTERED},
    insert_without_a_key: {Flaw.UNKNOWN_KEY},
    take_links_away: {Flaw.LINKS_MISSING},
    sign_one_anew: {Flaw.ALTERED, Flaw.REWRITTEN},
    sign_all_anew: {Flaw.REWRITTEN},
}


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__.replace("_", "-"))
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_tampered_with_is_found(world: ChainWorld, sabotage: Sabotage, seed: int) -> None:
    """And named for what it is; nothing of it is proven."""
    random = Random(f"{sabotage.__name__} {seed}")
    count = random.randint(4, 12)
    headed = random.randint(3, count)
    await fill(world, count, headed)
    await world.database.run(partial(sabotage, random=random, count=count, headed=headed))
    verdict = await world.verify()
    assert verdict.flaws, "not found"
    assert verdict.findings[0].flaw in SABOTAGES[sabotage], verdict.findings


async def test_act_is_kept_whatever_was_removed(world: ChainWorld) -> None:
    """SQLite gives the id of an entry that is gone to the next one: that must hold up nobody, and hide nothing."""
    await fill(world, 3, 3)
    await world.database.run(lambda conn: conn.execute(sa.delete(audit).where(audit.c.id == 3)))
    await world.act(4)
    verdict = await world.verify()
    assert (verdict.entries, verdict.flaws, verdict.findings[0].number) == (4, 1, 3)


async def test_head_is_never_appended_to_a_chain_that_does_not_go_on_from_the_last(world: ChainWorld) -> None:
    """Else the next head would vouch for what was rewritten; the process says so instead."""
    await fill(world, 6, 6)
    await world.database.run(partial(sign_all_anew, random=Random(1), count=6, headed=6))
    heads = world.make_heads()
    await heads.run_once()
    assert heads.is_broken
    await world.act(7)
    await heads.run_once()
    assert "audit verify" in heads.fault
    assert (await world.verify()).heads == 2


async def test_broken_link_behind_the_head_gets_no_head(world: ChainWorld) -> None:
    """Altered before its head was due: it is told at once, not by the next `audit verify` alone."""
    await fill(world, 6, 3)
    await world.database.run(lambda conn: conn.execute(sa.update(audit).where(audit.c.id == 5).values(actor="bob")))
    heads = world.make_heads()
    await heads.run_once()
    assert heads.is_broken
    assert (await world.verify()).proven == 3


async def test_entry_of_an_older_version_is_adopted_and_no_finding(world: ChainWorld) -> None:
    """Before the first link, and beside newer processes in a rolling upgrade: its own class, covered from then on."""
    await world.database.run(partial(write_as_before, count=3))
    assert (await world.verify()).unlinked == 3
    await world.append_head()
    await world.act(4)
    await world.database.run(partial(write_as_before, count=2))
    await world.append_head()
    verdict = await world.verify()
    assert (verdict.entries, verdict.proven, verdict.adopted, verdict.unlinked, verdict.flaws) == (6, 6, 5, 0, 0)
    await world.database.run(lambda conn: conn.execute(sa.update(audit).where(audit.c.id == 2).values(actor="bob")))
    assert (await world.verify()).findings[0].flaw is Flaw.ALTERED


async def test_entry_without_a_link_long_after_the_upgrade_is_a_finding(world: ChainWorld) -> None:
    """To write one as an older version did is no way around the chain; an operator may say until when that was so."""
    await world.act(1)
    await world.database.run(partial(write_as_before, count=1))
    late_ms = 1_001 + UPGRADE_MS + 1
    await world.database.run(partial(adopt_entries, after_id=0, now_ms=late_ms))
    assert [finding.flaw for finding in (await world.verify()).findings] == [Flaw.OUTSIDE]
    assert (await world.verify(late_ms)).flaws == 0


def write_as_before(conn: Connection, count: int) -> None:
    """As a version without links writes entries."""
    for _ in range(count):
        values = {"at_ms": 5, "actor": "old", "what": "group.put", "target": "shop"}
        conn.execute(sa.insert(audit).values(values))


async def test_records_of_others_in_the_topic_prove_and_break_nothing(world: ChainWorld) -> None:
    """Without the bridge's key nobody makes a head: what is not one is counted and passed over."""
    await fill(world, 3, 3)
    stranger = Keyring([read._replace(secret=b"x" * 32) for read in await world.database.read(read_keys)])
    forged = HeadTopic(world.process.store, TOPICS, stranger)
    for head in ((2, "1-00"), (99, "1-00")):
        assert await forged.append(AuditHead(*head), 1, "mallory") == ""
    verdict = await world.verify()
    assert (verdict.flaws, verdict.foreign, verdict.proven) == (0, 2, 3)


async def test_chain_of_a_restored_database_goes_on_when_an_operator_says_so(world: ChainWorld) -> None:
    """Until then no head is appended; from then on it is told that he did, and what follows is guarded as before."""
    await fill(world, 6, 6)
    await world.database.run(partial(cut_the_tail, random=Random(1), count=6, headed=4))
    heads = world.make_heads()
    await heads.run_once()
    assert heads.is_broken
    topic = HeadTopic(world.process.store, TOPICS, world.keyring)
    assert await accept_chain(world.database, topic, ActEntry(9, "ann", "audit.accept", "audit", "restored")) == ""
    await world.act(8)
    await heads.run_once()
    verdict = await world.verify()
    assert (heads.fault, verdict.flaws, verdict.accepted, verdict.unproven) == ("", 0, 1, 0)
    await world.database.run(partial(sign_all_anew, random=Random(1), count=verdict.entries, headed=1))
    assert (await world.verify()).findings[0].flaw is Flaw.REWRITTEN


async def test_heads_that_were_removed_are_missed(world: ChainWorld) -> None:
    """With them the newest entries can go, and what is left agrees: their topic does not begin at its beginning."""
    await fill(world, 6, 6)
    await world.database.run(partial(cut_the_tail, random=Random(1), count=6, headed=4))
    (heads,) = world.cluster.log.topics[TOPICS.audit].partitions
    heads.drop_below(heads.maximum)
    verdict = await world.verify()
    assert [(found.flaw, found.detail[:17]) for found in verdict.findings] == [
        (Flaw.HEADS_REMOVED, "the first 2 recor")
    ]
    topic = HeadTopic(world.process.store, TOPICS, world.keyring)
    assert await accept_chain(world.database, topic, ActEntry(9, "ann", "audit.accept", "audit", "looked")) == ""
    verdict = await world.verify()
    assert (verdict.flaws, verdict.accepted) == (0, 1)


async def test_word_of_an_operator_holds_once(world: ChainWorld) -> None:
    """Whoever writes its record again, and cuts off what came after it, is found: heads in between go on counting."""
    await fill(world, 3, 3)
    topic = HeadTopic(world.process.store, TOPICS, world.keyring)
    assert await accept_chain(world.database, topic, ActEntry(9, "ann", "audit.accept", "audit", "restored")) == ""
    offsets = await world.process.store.get_offsets(topic.queue)
    accepting = (await world.process.store.get(topic.queue, offsets.maximum - 1, 1)).messages[0]
    for number in range(5, 8):
        await world.act(number)
    await world.append_head()
    heads = world.make_heads()
    await heads.run_once()
    await world.process.store.put(topic.queue, Message(TOPICS.audit, None, accepting.value, (), 0))
    assert (await world.verify()).proven == 7
    await world.database.run(lambda conn: cut_behind(conn, 4))
    verdict = await world.verify()
    assert (verdict.accepted, verdict.foreign, [found.flaw for found in verdict.findings]) == (1, 1, [Flaw.CUT])
    await heads.run_once()
    assert heads.is_broken


def cut_behind(conn: Connection, number: int) -> None:
    """All links behind this one, and their entries."""
    conn.execute(sa.delete(audit).where(audit.c.id > number))
    conn.execute(sa.delete(audit_links).where(audit_links.c.number > number))


async def test_audit_that_was_emptied_while_no_process_looked_is_told(world: ChainWorld) -> None:
    """By each that begins behind it, before anything is done that it would have to keep."""
    await fill(world, 3, 3)
    await world.database.run(lambda conn: cut_behind(conn, 0))
    heads = world.make_heads()
    await heads.run_once()
    assert heads.is_broken
    assert "Kafka a head of 3" in heads.fault


async def test_heads_of_two_processes_agree(world: ChainWorld) -> None:
    """Whoever comes first appends; the other one sees it and does not."""
    one, other = world.make_heads(), world.make_heads()
    for number in range(1, 5):
        await world.act(number)
        await (one if number % 2 else other).run_once()
        await (other if number % 2 else one).run_once()
    verdict = await world.verify()
    assert (verdict.heads, verdict.proven, verdict.flaws) == (4, 4, 0)


async def test_heads_that_cannot_be_appended_are_told(world: ChainWorld) -> None:
    """Once a minute has passed, and until one is appended."""
    heads = world.make_heads()
    await world.act(1)
    world.cluster.log.topics[TOPICS.audit].is_denied = True
    await heads.run_once()
    assert heads.fault == ""
    await world.clock.advance(LATE_MS + 1)
    assert "no head" in heads.fault
    world.cluster.log.topics[TOPICS.audit].is_denied = False
    await heads.run_once()
    assert heads.fault == ""


async def test_acts_of_all_kinds_at_once_make_one_chain_and_wait_for_nobody_in_a_circle(world: ChainWorld) -> None:
    """Each takes its own locks first and the chain's last: no deadlock, no fork."""
    other = Database(str(world.database.url.render_as_string(hide_password=False)))
    clock = SystemClock()
    try:
        directories = [SqlDirectory(database, clock) for database in (world.database, other)]
        await directories[0].put_group("shop", DEFAULT_SETTINGS, [])
        works = []
        for number in range(12):
            for directory in directories:
                url = f"https://shop-{number % 4}/check"
                lease = EndpointLease("shop", url, EndpointTerm(clock.now_ms() + 60_000, 60_000))
                works.append(directory.register_endpoint(lease, 100, ACT))
                works.append(directory.put_group("shop", DEFAULT_SETTINGS, [], ACT))
                works.append(directory.remove_endpoint("shop", url, ACT))
                works.append(directory.rotate_secret("shop", ACT))
        for start in range(0, len(works), 8):
            await asyncio.gather(*works[start : start + 8])
        if not world.database.is_sqlite:
            query = sa.text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            assert await world.database.read(lambda conn: conn.execute(query).scalar_one()) == 0
    finally:
        await other.close()
    await world.append_head()
    verdict = await world.verify()
    assert verdict.flaws == verdict.unlinked == 0
    assert verdict.entries == verdict.proven >= 49


async def test_nothing_is_done_in_sql_after_an_entry_is_kept(world: ChainWorld) -> None:
    """Whoever holds the chain waits for no other lock: that is why no two acts ever wait for each other."""
    late: list[str] = []
    kept: set[int] = set()

    @event.listens_for(world.database.engine, "begin")
    def begin(conn: Connection) -> None:
        kept.discard(id(conn))

    @event.listens_for(world.database.engine, "before_cursor_execute")
    def look(conn: Connection, cursor: object, statement: str, *_: object) -> None:
        if "audit_turn" in statement:
            kept.add(id(conn))
        elif id(conn) in kept and not any(name in statement for name in (audit.name, bridge_keys.name)):
            late.append(statement)

    clock = SystemClock()
    directory = SqlDirectory(world.database, clock)
    access = AccessService(world.database, clock, AccessConfig())
    lease = EndpointLease("shop", "https://shop/check", EndpointTerm(clock.now_ms() + 60_000, 60_000))
    await directory.put_group("shop", DEFAULT_SETTINGS, [], ACT)
    await directory.rotate_secret("shop", ACT)
    await directory.register_endpoint(lease, 10, ACT)
    await directory.remove_endpoint("shop", lease.url, ACT)
    await directory.delete_group("shop", ACT)
    await access.put("ann", [Grant(Verb.READ, "*", "*")], WHO)
    made = await access.make_key("ann", None, None, WHO)
    await access.revoke(made.key.key_id, WHO)  # type: ignore[union-attr]
    await access.delete("ann", WHO)
    await rewrap_secrets(world.database, None, "ann", 1)
    loss = Loss(0, HaltKind.OTHER_JOURNAL, Position(0, 0, 0, "m", LogTopics("", "", ""), None, None), [])
    await world.database.run(partial(_record, loss=loss, actor="ann", now_ms=1))
    assert len(kept) >= 1
    assert late == []
