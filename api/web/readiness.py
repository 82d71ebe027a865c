"""Whether this process can keep its promises now: one check for each thing they rest on."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.web.services import CheckResult, ReadinessCheck
from bridge.core.errors import StoreError
from bridge.log_watch import REMEDY, LogWatch
from bridge.projector import Projector
from bridge.service.assembly import Service
from bridge.service.contract import Refused
from bridge.settler.settler import Hold, Settler
from bridge.sql.engine import Database, SqlUnavailable
from bridge.sql.transactions import read_positions
from bridge.store.message_store import TopicAdmin
from bridge.store.sealed import SealWatch
from bridge.topology import TopologyGuard
from checker.service import CheckService

MAX_SETTLE_LAG_MS = 60_000
_KAFKA_ANSWER_MS = 2_000


@dataclass(slots=True)
class Watched:
    """What the checks and gauges look at; parts that this process does not have are None."""

    admin: TopicAdmin
    database: Database
    guard: TopologyGuard
    kafka_error: Callable[[], str | None]
    seal_watch: SealWatch
    log: LogWatch
    service: Service | None = None
    settler: Settler | None = None
    checks: CheckService | None = None
    projector: Projector | None = None


def make_readiness(watched: Watched) -> Mapping[str, ReadinessCheck]:
    """The checks of this process, by name."""
    checks: dict[str, ReadinessCheck] = {
        "kafka": lambda: _kafka(watched),
        "sql": lambda: check_sql(watched.database),
        "topology": lambda: _topology(watched),
        "op-records": lambda: _op_records(watched),
        "log": lambda: _log(watched),
    }
    if watched.settler is not None:
        checks["settler"] = lambda: _settler(watched)
    if watched.projector is not None:
        checks["projector"] = lambda: _projector(watched)
    if watched.service is not None:
        checks["answers"] = lambda: _answers(watched)
        checks["settling"] = lambda: _settling(watched)
    return checks


async def _kafka(watched: Watched) -> CheckResult:
    try:
        async with asyncio.timeout(_KAFKA_ANSWER_MS / 1000):
            await watched.admin.ping()
    except (StoreError, TimeoutError) as error:
        return CheckResult(is_ok=False, detail=watched.kafka_error() or str(error) or "no answer")
    return CheckResult(is_ok=True)


async def check_sql(database: Database) -> CheckResult:
    """Whether it answers, and whether nobody is sent away: one look may get in where others do not."""
    try:
        await database.read(read_positions)
    except SqlUnavailable as error:
        return CheckResult(is_ok=False, detail=str(error))
    if database.is_overloaded:
        return CheckResult(is_ok=False, detail="the database is overloaded: calls are sent away")
    return CheckResult(is_ok=True)


async def _topology(watched: Watched) -> CheckResult:
    faults = watched.guard.faults
    return CheckResult(is_ok=not faults, detail="; ".join(map(str, faults)))


async def _op_records(watched: Watched) -> CheckResult:
    forged = watched.seal_watch.forged
    if forged:
        return CheckResult(is_ok=False, is_degraded=True, detail=f"{forged} op records are not the owner's")
    return CheckResult(is_ok=True)


async def _log(watched: Watched) -> CheckResult:
    told = [f"queue {halt.queue_id} halts: {halt.detail}; {REMEDY}" for halt in watched.log.halts.values()]
    fault = watched.log.find_fault()
    return CheckResult(is_ok=not (told or fault), detail="; ".join([*told, *([fault] if fault else [])]))


async def _settler(watched: Watched) -> CheckResult:
    assert watched.settler is not None
    halted = {q: s.why for q, s in watched.settler.status.items() if s.hold is Hold.HALTED}
    if halted:
        return CheckResult(is_ok=False, detail=f"halted queues: {halted}")
    waiting = {q: s.why for q, s in watched.settler.status.items() if s.hold is not Hold.OWNED}
    if waiting:
        return CheckResult(is_ok=False, detail=f"queues being taken over: {waiting}")
    quarantined = sum(status.counts.quarantined for status in watched.settler.status.values())
    if quarantined:
        return CheckResult(is_ok=False, is_degraded=True, detail=f"{quarantined} records quarantined")
    return CheckResult(is_ok=watched.settler.is_placed, detail="" if watched.settler.is_placed else "joining the group")


async def _projector(watched: Watched) -> CheckResult:
    assert watched.projector is not None
    halted = dict(watched.projector.halted)
    return CheckResult(is_ok=not halted, detail=f"halted queues: {halted}" if halted else "")


async def _answers(watched: Watched) -> CheckResult:
    assert watched.service is not None
    follower = watched.service.ports.hearing.follower
    if not follower.is_ready:
        return CheckResult(is_ok=False, detail="the op topic's ends are not known yet")
    return CheckResult(
        is_ok=not follower.is_failing, detail="the op topic cannot be read" if follower.is_failing else ""
    )


async def _settling(watched: Watched) -> CheckResult:
    assert watched.service is not None
    stats = await watched.service.search.stats()
    if isinstance(stats, Refused):
        return CheckResult(is_ok=False, detail=stats.detail)
    is_ok = stats.lag.settle_ms <= MAX_SETTLE_LAG_MS
    return CheckResult(is_ok=is_ok, detail="" if is_ok else f"settlers are {stats.lag.settle_ms} ms behind the journal")
