"""What `outbox-bridge migrate` does: tables, internal topics and first positions, or what is given up of a log."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from api.settings import Settings
from api.wiring import KafkaParts, internal_topics, make_owner, open_stores, refuse_denied
from bridge.clock import SystemClock
from bridge.core.errors import ConfigError, HaltKind, StoreError
from bridge.core.op_message import LogTopics
from bridge.core.topics import InternalTopics, Role, least_rights
from bridge.giving_up import GivingUp, Loss
from bridge.log_watch import REMEDY
from bridge.sql.engine import Revisions, upgrade
from bridge.sql.identity import read_identity
from bridge.store.op_topic import SealedOwnerStore, SealWatch, begin_queues
from bridge.topology import (
    FaultKind,
    TopologyConflict,
    TopologyFault,
    TopologyGuard,
    create_missing,
    examine,
    is_op_topic_empty,
    is_sealed,
    load_seals,
    migrate_topics,
    start_seals,
)

_LOG = structlog.get_logger()
_COORDINATOR_TRIES, _COORDINATOR_PAUSE_S = 40, 0.25
_OTHER = {FaultKind.MISSING, FaultKind.OTHER_TOPIC, FaultKind.OTHER_CLUSTER}
_HEADS_LOST = (
    "what somebody took off the end of the audit before would not be missed: compare `outbox-bridge audit list` with a "
    "backup, or with the topic of acts"
)

Confirm = Callable[[Sequence[Loss]], bool]


def tell_tables(before: Revisions) -> str:
    """What became of tables that were found so."""
    if before.is_newer:
        return f"tables are at revision {before.current}, which a later release made: they were left alone"
    return "tables are up to date" if before.is_current else f"tables were brought to revision {before.needed}"


async def migrate(settings: Settings, confirm: Confirm | None = None) -> list[str]:
    """Tables to their newest form, internal topics and first positions where this bridge never ran; what was done,
    line by line.

    `confirm`: is called with what would be given up of a log that is not what was left, and returns whether to go on;
    without it such a log is refused. Raises ConfigError, StoreError, SqlUnavailable.
    """
    if settings.database_url is None:
        _make_data_dir(settings)
    with _kept_from_others():
        before = await asyncio.to_thread(upgrade, settings.sql_url())
    topics, clock = internal_topics(settings), SystemClock()
    done = [tell_tables(before)]
    async with open_stores(settings) as (kafka, database):
        seal_watch = SealWatch()
        owners = SealedOwnerStore(kafka.owners, topics.op, seal_watch)
        giving_up = GivingUp(kafka.store, owners, kafka.admin, database, clock, topics)
        is_new_key = not await is_sealed(database)
        if not is_new_key:
            await load_seals(database, seal_watch.seals)
        recorded = await database.read(read_identity)
        faults = await examine(kafka.admin, topics, recorded)
        # first of all: queues that are not there can only time out, and those of another bridge are not to be touched
        if refused := [fault for fault in faults if fault.kind in {FaultKind.QUEUE_COUNT, FaultKind.OTHER_BRIDGE}]:
            raise TopologyConflict(refused)
        history = [] if recorded else await _tell_history(kafka, topics, faults)

        async def begin(log: LogTopics) -> None:
            refuse_denied(await kafka.admin.find_denied(least_rights(Role.MIGRATE, topics, [])))
            if is_new_key:
                await _refuse_running(kafka, topics)
            await begin_queues(kafka.store, owners, topics, log)

        async def seal() -> None:
            await start_seals(kafka.store, database, topics, clock.now_ms())
            await load_seals(database, seal_watch.seals)
            done.append("op records are sealed from now on")

        if confirm is not None:
            done += await _give_up(kafka, giving_up, topics, confirm, seal if is_new_key else None)
            done += [] if topics.audit not in recorded else _tell_lost_heads(faults, topics.audit)
        else:
            created = await migrate_topics(kafka.admin, database, topics, clock.now_ms(), begin)
            done += [f"topic {name} created" for name in created]
            _refuse_lost(await giving_up.find_faults())
            if is_new_key:
                await seal()
        guard = TopologyGuard(kafka.admin, database, topics, clock, overridden=settings.topics.overridden)
        if found := await guard.run_once():
            raise TopologyConflict(found)
    return [*done, *history, "internal topics are as they must be"]


def _tell_lost_heads(faults: Sequence[TopologyFault], audit: str) -> list[str]:
    lost = [fault.topic for fault in faults if fault.topic == audit and fault.kind in _OTHER]
    return [f"topic {topic} has no heads any more: {_HEADS_LOST}" for topic in lost]


async def _tell_history(kafka: KafkaParts, topics: InternalTopics, faults: Sequence[TopologyFault]) -> list[str]:
    """What a database should hear that has not seen these topics before. Raises StoreError."""
    if any(fault.kind is FaultKind.MISSING for fault in faults) or await is_op_topic_empty(kafka.store, topics):
        return []
    return ["these topics are not new: no other database may be used with them from now on"]


def _make_data_dir(settings: Settings) -> None:
    """SQLite makes its file there, and no folder. Raises ConfigError."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data_dir {settings.data_dir} cannot be made: {error.strerror}; name another, or set database_url"
        ) from error


@contextmanager
def _kept_from_others() -> Iterator[None]:
    """SQLite's file is made for owner and group: the bridge's key is in it, and secrets that sign checks."""
    before = os.umask(0o007)
    os.umask(before | 0o007)
    try:
        yield
    finally:
        os.umask(before)


async def _give_up(
    kafka: KafkaParts,
    giving_up: GivingUp,
    topics: InternalTopics,
    confirm: Confirm,
    seal: Callable[[], Awaitable[None]] | None,
) -> list[str]:
    """`seal`: makes the first key, before what is audited with it."""
    shown = await giving_up.survey()
    if not confirm(shown):
        raise ConfigError("nothing was given up")
    await giving_up.refuse_more(shown)
    created = await create_missing(kafka.admin, topics)
    if seal is not None:
        await _refuse_running(kafka, topics)
        await seal()
    lost = await giving_up.act(make_owner())
    told = [f"queue {loss.queue_id} goes on from journal offset {loss.position.s}" for loss in lost]
    return [*told, *[f"topic {name} created" for name in created]]


async def _refuse_running(kafka: KafkaParts, topics: InternalTopics) -> None:
    """Before the first key is made. Raises ConfigError and StoreError."""
    if not await is_op_topic_empty(kafka.store, topics) and (members := await _count_members(kafka, topics.group)):
        raise ConfigError(
            f"settlers are running (group {topics.group}, members: {members}), and what they write from now on would "
            "not be believed; nothing was changed but tables and missing topics: if they are this bridge's, use their "
            "database (database_url); if that is lost, stop them, wait until Kafka has noticed, and migrate again; if "
            "they are another bridge's, set topics.prefix"
        )


def _refuse_lost(faults: Mapping[int, HaltKind]) -> None:
    told = ", ".join(f"queue {queue_id} ({kind.value})" for queue_id, kind in faults.items())
    if told:
        raise ConfigError(f"the log is not what was left: {told}; {REMEDY}")


async def _count_members(kafka: KafkaParts, group: str) -> int:
    """A broker that has just started answers only after a moment. Raises StoreError."""
    for _ in range(_COORDINATOR_TRIES):
        try:
            return await kafka.admin.count_members(group)
        except StoreError as error:
            _LOG.info("group_not_described", reason=str(error))
            await asyncio.sleep(_COORDINATOR_PAUSE_S)
    return await kafka.admin.count_members(group)
