"""The bridge as a whole: liveness, readiness, metrics, the pause of prepares, and what is wrong with all of it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.kafka_version import VersionWatch
from api.web.bodies import Reason
from api.web.guard import NOBODY
from api.web.openapi import HEALTH, OPERATORS, Body, Operation, query_parameter
from api.web.request import ApiRequest, CheckResult, Query, ReadinessCheck, check_reason, or_reject, read_json, who_is
from api.web.road import NO_STORE, HttpAnswer, Routes, json_answer
from api.web.transports import Certificates
from bridge.clock import Clock
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.grants import Rights, Verb
from bridge.core.transaction import show_time
from bridge.log_watch import REMEDY, LogWatch
from bridge.node import Node
from bridge.projector import Projector
from bridge.service.canary import Canary
from bridge.service.contract import Refused
from bridge.service.reads import SearchService
from bridge.service.replies import OpFollower
from bridge.settler.settler import Hold, Settler
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.identity import ProcessBoard
from bridge.sql.rows import read_positions
from bridge.store.message_store import TopicAdmin
from bridge.topology import TopologyGuard

MAX_SETTLE_LAG_MS = 60_000
_CUT = (
    "records of the op topic that a successor needs were deleted (kafka-delete-records, or a retention that was too "
    "short); they are written again within minutes: do not stop this settler before"
)
_MISSING = (
    "journal offsets hold no record: it was compacted before they were read, and what was prepared there is lost, or "
    "another program writes to it in Kafka transactions"
)
_FORGED = (
    "op records are not the owner's: this process has another database than the settlers (database_url), or somebody "
    "else writes to the topic"
)
_DAMAGED = "restore the row, or make another secret (`outbox-bridge group rotate-secret`) or put the endpoint again"
_KEYLESS = (
    "add the key to security.keys of this process, or to the file that security.keys_file names, and start it again; "
    "until then it can change no group, revoke no key and audit no act"
)
_PAUSED = "an operator has paused prepares of all groups; `outbox-bridge resume` takes them again"
_KAFKA_ANSWER_MS = 1_500  # below CHECK_TIMEOUT_S: what the client complains of is to be told


def make_readiness(
    node: Node,
    kafka_error: Callable[[], str | None],
    certificates: Certificates | None = None,
    processes: ProcessBoard | None = None,
    versions: VersionWatch | None = None,
    kafka_warning: Callable[[], str] = str,
) -> Mapping[str, ReadinessCheck]:
    """The checks of a process that has started, by name. `kafka_error`: what its clients complained of last.

    `kafka_warning`: what will stop them if nobody acts, empty if nothing.
    """
    checks: dict[str, ReadinessCheck] = {
        "kafka": lambda: _kafka(node.backing.admin, kafka_error, kafka_warning),
        "sql": lambda: check_sql(node.backing.database, processes),
        "topology": lambda: _topology(node.guard),
        "op-records": lambda: _mild(f"{node.seal_watch.forged} {_FORGED}" if node.seal_watch.forged else ""),
        "log": lambda: _log(node.log),
        "bodies": lambda: _mild(node.bodies.describe(), is_of_groups=True),
        "secrets": lambda: _secrets(node.directory),
        "prepares": lambda: _mild("" if node.directory.accepts_prepares else _PAUSED),
    }
    if (settler := node.settler) is not None:
        checks["settler"] = lambda: _settler(settler)
        checks["stable-offsets"] = lambda: _mild(node.stable_offsets.describe())
    if (projector := node.projector) is not None:
        checks["projector"] = lambda: _projector(projector)
    if processes is not None:
        checks["processes"] = lambda: _mild(processes.describe())
    if versions is not None:
        checks["kafka-version"] = lambda: _mild(versions.outdated)
    if certificates is not None:
        checks["certificates"] = lambda: _certificates(certificates, node.backing.clock)
    if node.roles.is_called:
        # degraded only: nobody would try it any more at a process that is sent nothing
        checks["journal"] = lambda: _mild(node.journal.describe_refusals())
        checks["answers"] = lambda: _answers(node.follower)
        checks["settling"] = lambda: _settling(node.search)
        checks["audit"] = lambda: _mild(node.audit_heads.fault)
    if (audit_topic := node.audit_topic) is not None and node.roles.is_called:
        checks["audit-topic"] = lambda: _mild(
            audit_topic.fault and f"acts are not told in {audit_topic.topic}: {audit_topic.fault}"
        )
    if (canary := node.canary) is not None and node.roles.api:
        checks["canary"] = lambda: _canary(canary)
    return checks


async def _kafka(
    admin: TopicAdmin, kafka_error: Callable[[], str | None], kafka_warning: Callable[[], str]
) -> CheckResult:
    try:
        async with asyncio.timeout(_KAFKA_ANSWER_MS / 1000):
            await admin.ping()
    except (StoreError, TimeoutError) as error:
        return CheckResult(is_ok=False, detail=kafka_error() or str(error) or "no answer")
    return await _mild(kafka_warning())


async def check_sql(database: Database, processes: ProcessBoard | None = None) -> CheckResult:
    """Whether it answers, and whether nobody is sent away: one look may get in where others do not.

    One that is read, and takes nothing, lets what needs no note go on: most prepares, and all ends.
    """
    try:
        await database.read(read_positions)
    except SqlUnavailable as error:
        return CheckResult(is_ok=False, detail=str(error))
    if database.is_overloaded:
        return CheckResult(is_ok=False, detail="the database is overloaded: calls are sent away")
    if processes is not None and processes.failure:
        return await _mild(f"nothing can be written: {processes.failure}")
    return CheckResult(is_ok=True)


async def _mild(fault: str, *, is_of_groups: bool = False) -> CheckResult:
    """Degraded while there is a fault: promises are kept meanwhile."""
    return CheckResult(is_ok=not fault, is_degraded=True, detail=fault, is_of_groups=is_of_groups)


async def _topology(guard: TopologyGuard) -> CheckResult:
    told = [*guard.faults, *guard.away]
    return CheckResult(is_ok=not told, is_degraded=not guard.faults, detail="; ".join(map(str, told)))


async def _log(log: LogWatch) -> CheckResult:
    told = [f"queue {halt.queue_id} halts: {halt.detail}; {REMEDY}" for halt in log.halts.values()]
    fault = log.find_fault()
    return CheckResult(is_ok=not (told or fault), detail="; ".join([*told, *([fault] if fault else [])]))


async def _secrets(directory: SqlDirectory) -> CheckResult:
    told = "; ".join(directory.damaged)
    return await _mild(told and f"{told}; {_KEYLESS if directory.lacks_key else _DAMAGED}", is_of_groups=True)


async def _canary(canary: Canary) -> CheckResult:
    last = canary.last
    if last is None or last.failure is None:
        return CheckResult(is_ok=True)
    return await _mild(
        f"the canary of {show_time(last.began_ms)} has not arrived in {canary.config.topic}: {last.failure}"
    )


async def _settler(settler: Settler) -> CheckResult:
    halted = {q: s.reason for q, s in settler.status.items() if s.hold is Hold.HALTED}
    if halted:
        return CheckResult(is_ok=False, detail=f"halted queues: {halted}")
    waiting = {q: s.reason for q, s in settler.status.items() if s.hold is not Hold.OWNED}
    if waiting:
        return CheckResult(is_ok=False, detail=f"queues being taken over: {waiting}")
    if cut := [q for q, s in settler.status.items() if s.is_cut]:
        return await _mild(f"queues {cut}: {_CUT}")
    if missing := sum(status.counts.missing for status in settler.status.values()):
        return await _mild(f"{missing} {_MISSING}")
    quarantined = sum(status.counts.quarantined for status in settler.status.values())
    if quarantined:
        return await _mild(f"{quarantined} records quarantined")
    return CheckResult(is_ok=settler.is_placed, detail="" if settler.is_placed else "joining the group")


async def _projector(projector: Projector) -> CheckResult:
    if halted := dict(projector.halted):
        return CheckResult(is_ok=False, detail=f"halted queues: {halted}")
    held_up = dict(projector.held_up)
    return await _mild(f"queues held up: {held_up}" if held_up else "")


async def _certificates(certificates: Certificates, clock: Clock) -> CheckResult:
    told = [f"{certificates.fault}; the earlier ones are shown"] if certificates.fault else []
    if certificates.has_ended(clock):
        told.append(
            f"certificate {certificates.files.cert} has ended: clients refuse it until another is written there"
        )
    return await _mild("; ".join(told))


async def _answers(follower: OpFollower) -> CheckResult:
    if not follower.is_ready:
        return CheckResult(is_ok=False, detail="the op topic's ends are not known yet")
    return CheckResult(
        is_ok=not follower.is_failing, detail="the op topic cannot be read" if follower.is_failing else ""
    )


async def _settling(search: SearchService) -> CheckResult:
    stats = await search.stats()
    if isinstance(stats, Refused):
        return CheckResult(is_ok=False, detail=stats.detail)
    is_ok = stats.lag.settle_ms <= MAX_SETTLE_LAG_MS
    return CheckResult(is_ok=is_ok, detail="" if is_ok else f"settlers are {stats.lag.settle_ms} ms behind the journal")


class ReadyAnswer(Struct):
    """Whether promises can be kept now; with `?verbose`, each check."""

    ready: bool
    checks: list["ReadyCheck"] | UnsetType = UNSET


class ReadyCheck(Struct):
    """One thing that must be so. `degraded`: reported, but not a reason to be not ready."""

    name: str
    ok: bool
    detail: str
    degraded: bool = False


class SwitchPrepares(Struct, forbid_unknown_fields=True):
    """Why prepares of all groups are paused, or taken again; audited."""

    reason: Reason


class PreparesSwitchedAnswer(Struct):
    """Whether the bridge takes prepares, as far as all groups are concerned: each has a switch of its own."""

    accept_prepares: bool


class LiveAnswer(Struct):
    """The process answers."""

    live: bool


LIVE = Operation(HEALTH, {200: (LiveAnswer, "Alive.")}).arguments()
READY = Operation(
    HEALTH,
    {200: (ReadyAnswer, "Ready."), 503: (ReadyAnswer, "Promises cannot be kept now.")},
    parameters=(
        query_parameter("verbose", "Lists each check.", {"type": "string", "enum": ["", "true", "false", "1", "0"]}),
    ),
).arguments()
METRICS = Operation(HEALTH, {200: (None, "Prometheus' text format.")}, media_types=("text/plain",)).arguments()


_SWITCH = Body(SwitchPrepares, examples={"before a move": {"reason": "the cluster is being moved tonight"}})
PAUSE = Operation(
    OPERATORS, {200: (PreparesSwitchedAnswer, "Nothing new is taken; what is pending ends.")}, (), _SWITCH
).arguments()
RESUME = Operation(OPERATORS, {200: (PreparesSwitchedAnswer, "Prepares are taken.")}, (), _SWITCH).arguments()

routes = Routes()
_switch = msgspec.json.Decoder(SwitchPrepares)

CHECK_TIMEOUT_S = 2.0


@routes.add("GET", "/livez", LIVE, verb=None)
@routes.add("HEAD", "/livez", verb=None)
async def get_liveness(request: ApiRequest) -> HttpAnswer:
    """The process answers. Nothing else is looked at."""
    return json_answer(200, LiveAnswer(live=True), NO_STORE)


@routes.add("GET", "/readyz", READY, verb=None)
@routes.add("HEAD", "/readyz", verb=None)
async def get_readiness(request: ApiRequest) -> HttpAnswer:
    """Whether promises can be kept now; `?verbose` lists each check."""
    is_verbose = Query(request.query, {"verbose"}).flag("verbose") and request.caller is not NOBODY
    checks = await run_checks(request)
    if request.traffic.is_draining:
        checks.append(ReadyCheck("accepting", ok=False, detail="shutting down"))
    is_ready = all(check.ok or check.degraded for check in checks)
    answer = ReadyAnswer(is_ready, checks) if is_verbose else ReadyAnswer(is_ready)
    return json_answer(200 if is_ready else 503, answer, NO_STORE)


@routes.add("GET", "/metrics", METRICS, verb=Verb.READ, is_for_all=True)
async def get_metrics(request: ApiRequest) -> HttpAnswer:
    """Metrics in Prometheus' text format. What SQL knows is left out while SQL does not answer."""
    body = await request.services.exposition.read(request.services.search)
    return HttpAnswer(200, body, (("Content-Type", CONTENT_TYPE_LATEST),), None)


@routes.add("POST", "/v1/pause", PAUSE, verb=Verb.OPERATE, is_for_all=True)
async def pause_prepares(request: ApiRequest) -> HttpAnswer:
    """No group prepares or publishes until it is resumed; what is pending is settled and checked. May be repeated."""
    return await _turn(request, is_paused=True)


@routes.add("POST", "/v1/resume", RESUME, verb=Verb.OPERATE, is_for_all=True)
async def resume_prepares(request: ApiRequest) -> HttpAnswer:
    """Prepares of all groups are taken again, but for groups that are paused themselves. May be repeated."""
    return await _turn(request, is_paused=False)


async def _turn(request: ApiRequest, *, is_paused: bool) -> HttpAnswer:
    Query(request.query, ())
    who = who_is(request, check_reason((await read_json(request, _switch)).reason))
    or_reject(await request.services.groups.switch_prepares(who, is_paused=is_paused))
    return json_answer(200, PreparesSwitchedAnswer(not is_paused))


async def run_checks(request: ApiRequest) -> list[ReadyCheck]:
    """All of them at once, each within its time, as the caller may see them. Whoever asks while they run is told what
    they find: anybody may ask, and each asks Kafka and SQL."""
    checks, rights = request.services.readiness, request.caller.rights
    results = await request.traffic.looks.get(lambda: asyncio.gather(*[_run_check(one) for one in checks.values()]))
    return [
        ReadyCheck(
            name, ok=result.is_ok, detail=_show_detail(result, rights), degraded=result.is_degraded and not result.is_ok
        )
        for name, result in zip(checks, results, strict=True)
    ]


def _show_detail(result: CheckResult, rights: Rights) -> str:
    if result.detail and result.is_of_groups and not rights.may_everywhere(Verb.READ):
        return "what it is about is told to those who may read all groups"
    return result.detail


async def _run_check(check: ReadinessCheck) -> CheckResult:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return CheckResult(is_ok=False, detail=f"no answer in {CHECK_TIMEOUT_S:g} s")


# --- what `doctor` and the console's page of settings conclude from the answers of a running bridge ---

OK, WARNING, BROKEN, SKIPPED = "ok", "warning", "broken", "skipped"
MAX_LAG_S = 60.0


class Diagnosis(NamedTuple):
    """What one examination found. `verdict`: ok, warning, broken, or skipped: it cannot be seen from here."""

    verdict: str
    what: str
    found: str
    remedy: str = ""


def judge_check(check: Mapping[str, Any]) -> Diagnosis:
    """A check of readiness. What differs between processes is broken, though promises are kept meanwhile."""
    is_mild = check.get("degraded") and check["name"] != "processes"
    verdict = OK if check["ok"] else WARNING if is_mild else BROKEN
    return Diagnosis(verdict, f"bridge {check['name']}", check["detail"] or "ok")


def judge_stats(stats: Mapping[str, Any]) -> list[Diagnosis]:
    """Commits that cannot be published, what waits for a person, and lag."""
    found = []
    if blocked := stats["blocked"]:
        remedy = "`outbox-bridge tx list --blocked` names the reason of each; they go on once it is gone."
        found.append(Diagnosis(BROKEN, "blocked", f"{blocked} committed and not published", remedy))
    if parked := stats["parked"]:
        remedy = "`outbox-bridge parked list` shows them; `outbox-bridge parked redrive` ends or resumes them."
        found.append(Diagnosis(BROKEN, "parked", f"{parked} wait for a decision by hand", remedy))
    for name, what in {"settle": "settlers", "projection": "projector"}.items():
        if (lag := stats[f"{name}_lag_seconds"]) > MAX_LAG_S:
            text = f"{lag:.0f} s behind the journal"
            found.append(
                Diagnosis(BROKEN, what, text, f"Start or add processes with this role; see {what} in the log.")
            )
    return found or [Diagnosis(OK, "work", "nothing is blocked or parked, and nothing lags")]


def tell_unknown(reason: str, remedy: str) -> Diagnosis:
    """Nothing can be said of the work: the bridge refuses to count it."""
    return Diagnosis(WARNING, "work", f"is not known: {reason}", remedy)


Probes = Sequence[Mapping[str, Any]] | None
"""What the endpoints of a group did with a signed call; None: nobody may make it."""


def judge_group(group: Mapping[str, Any], probes: Probes = None) -> Iterator[Diagnosis]:
    """Whose endpoints do not answer a signed call; by its last checks, if there was none."""
    pending, what = group["counts"]["pending"], f"group {group['name']}"
    waiting = f"; {pending} wait for their end" if pending else ""
    remedy = f"Start it, or correct its URL; then `outbox-bridge group test {group['name']}`."
    verdict = BROKEN if pending else WARNING
    for endpoint in group["endpoints"]:
        url = endpoint["url"]
        if why := endpoint["disabled_reason"]:
            yield Diagnosis(verdict, what, f"{url} is asked no more: {why}{waiting}", remedy)
        elif probes is None and _is_later(endpoint["last_unanswered_at"], endpoint["last_answered_at"]):
            yield Diagnosis(verdict, what, f"{url} did not answer: {endpoint['last_failure']}{waiting}", remedy)
    if group["check"]["mode"] == "pull":
        if pending and _is_later(group["unasked"]["last_at"], group["fetched"]["last_answered_at"]):
            yield Diagnosis(BROKEN, what, f"nobody fetches its checks{waiting}", "Start its workers; see their logs.")
    elif not group["endpoints"]:
        remedy = f"outbox-bridge group set {group['name']} --endpoint URL"
        yield Diagnosis(verdict, what, f"no endpoint: nobody can be asked{waiting}", remedy)
    else:
        yield from _judge_probes(what, probes or (), waiting)


def _judge_probes(what: str, probes: Sequence[Mapping[str, Any]], waiting: str) -> Iterator[Diagnosis]:
    """Broken where no endpoint answers: one is enough for a check."""
    verdict = WARNING if any(probe["verdict"] == "good" for probe in probes) else BROKEN
    for probe in probes:
        if probe["verdict"] == "good":
            yield Diagnosis(OK, what, f"{probe['endpoint']} {probe['found']}")
        else:
            yield Diagnosis(verdict, what, f"{probe['endpoint']}: {probe['found']}{waiting}", probe["remedy"])


def judge_groups(groups: Iterable[tuple[Mapping[str, Any], Probes]]) -> list[Diagnosis]:
    """Of all groups, each with what its endpoints did."""
    return [diagnosis for group, probes in groups for diagnosis in judge_group(group, probes)]


def _is_later(failed: str | None, answered: str | None) -> bool:
    """Times as the bridge writes them can be compared as they stand."""
    return failed is not None and (answered is None or failed > answered)
