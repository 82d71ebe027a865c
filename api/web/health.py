"""Liveness, readiness, metrics: routes, answers and their description."""

import asyncio
from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from api.web.metrics import render_metrics
from api.web.openapi import HEALTH, Operation, query_parameter
from api.web.request import ApiRequest, Query
from api.web.road import NO_STORE, HttpAnswer, Routes, json_answer
from api.web.services import CheckResult, ReadinessCheck


class ReadyAnswer(Struct):
    """Whether promises can be kept now; with `?verbose`, each check."""

    ready: bool
    checks: list["ReadyCheck"] | UnsetType = UNSET


class ReadyCheck(Struct):
    """One thing that must be so. `degraded`: told, but not a reason to be not ready."""

    name: str
    ok: bool
    detail: str
    degraded: bool = False


class LiveAnswer(Struct):
    """The process answers."""

    live: bool


LIVE = Operation(HEALTH, {200: (LiveAnswer, "Alive.")}).arguments()
READY = Operation(
    HEALTH,
    {200: (ReadyAnswer, "Ready."), 503: (ReadyAnswer, "Promises cannot be kept now.")},
    parameters=(query_parameter("verbose", "Lists each check.", {"type": "boolean", "allowEmptyValue": True}),),
).arguments()
METRICS = Operation(HEALTH, {200: (None, "Prometheus' text format.")}, media_types=("text/plain",)).arguments()


routes = Routes()

CHECK_TIMEOUT_S = 2.0


@routes.add("GET", "/livez", LIVE)
async def live(request: ApiRequest) -> HttpAnswer:
    """The process answers. Nothing else is looked at."""
    return json_answer(200, LiveAnswer(live=True), NO_STORE)


@routes.add("GET", "/readyz", READY)
async def ready(request: ApiRequest) -> HttpAnswer:
    """Whether promises can be kept now; `?verbose` lists each check."""
    is_verbose = Query(request.query, {"verbose"}).flag("verbose")
    checks = await run_checks(request.services.readiness)
    if request.traffic.is_draining:
        checks.append(ReadyCheck("accepting", ok=False, detail="shutting down"))
    is_ready = all(check.ok or check.degraded for check in checks)
    answer = ReadyAnswer(is_ready, checks) if is_verbose else ReadyAnswer(is_ready)
    return json_answer(200 if is_ready else 503, answer, NO_STORE)


@routes.add("GET", "/metrics", METRICS)
async def metrics(request: ApiRequest) -> HttpAnswer:
    """Metrics in Prometheus' text format."""
    body, content_type = render_metrics(request.services.registry)
    return HttpAnswer(200, body, (("Content-Type", content_type),), None)


async def run_checks(checks: Mapping[str, ReadinessCheck]) -> list[ReadyCheck]:
    """All of them at once, each within its time."""
    results = await asyncio.gather(*[_run_check(check) for check in checks.values()])
    return [
        ReadyCheck(name, ok=result.is_ok, detail=result.detail, degraded=result.is_degraded)
        for name, result in zip(checks, results, strict=True)
    ]


async def _run_check(check: ReadinessCheck) -> CheckResult:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return CheckResult(is_ok=False, detail=f"no answer in {CHECK_TIMEOUT_S:g} s")
