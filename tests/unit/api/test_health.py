"""Liveness, readiness."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import httpx2
from prometheus_client.core import Metric

from api.web.app import create_app, create_metrics_app
from api.web.metrics import Exposition, ProcessMetrics, collect_groups
from api.web.request import CheckResult, Services
from bridge.clock import SystemClock
from bridge.core.grants import EVERYTHING, Rights
from bridge.core.measures import MOST_NAMES, OTHER_NAMES
from bridge.service.access import AccessConfig, AccessService
from bridge.service.contract import Refused, refuse_unavailable
from bridge.service.reads import BridgeStats, Lag, SearchService
from bridge.sql.engine import Database
from bridge.sql.search import GroupStats, ProjectionStats
from tests.support.api_fakes import FakeSearch, FakeTransactions, make_services
from tests.support.live_server import LiveServer, serve


async def good() -> CheckResult:
    """All is well."""
    return CheckResult(is_ok=True)


async def fine() -> CheckResult:
    """One that is told at most."""
    return CheckResult(is_ok=True, is_degraded=True)


async def bad() -> CheckResult:
    """Something is not."""
    return CheckResult(is_ok=False, detail="no broker answers")


async def worse() -> CheckResult:
    """Told, but no reason to send nobody here."""
    return CheckResult(is_ok=False, detail="2 records quarantined", is_degraded=True)


def with_checks(fake: FakeTransactions, **checks: object) -> Services:
    """Services with these checks."""
    return make_services(fake, readiness=checks)


async def test_ready_if_all_checks_pass_or_are_minor(fake: FakeTransactions) -> None:
    """One word, or with `verbose` each check; nothing that is as it must be is called degraded."""
    async with serve(with_checks(fake, kafka=fine, journal=worse)) as live:
        plain = await live.client.get("/readyz")
        verbose = await live.client.get("/readyz?verbose")
    assert (plain.status_code, plain.json()) == (200, {"ready": True})
    assert verbose.json()["checks"] == [
        {"name": "kafka", "ok": True, "detail": "", "degraded": False},
        {"name": "journal", "ok": False, "detail": "2 records quarantined", "degraded": True},
    ]


async def test_not_ready_if_one_check_fails(fake: FakeTransactions) -> None:
    """503, and the reason; alive all the same."""
    async with serve(with_checks(fake, kafka=bad, sql=good)) as live:
        answer = await live.client.get("/readyz?verbose=true")
        assert (await live.client.get("/livez")).json() == {"live": True}
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert answer.json()["checks"][0]["detail"] == "no broker answers"


async def test_check_that_hangs_is_a_failed_one(fake: FakeTransactions) -> None:
    """The answer comes all the same."""

    async def hang() -> CheckResult:
        await asyncio.Event().wait()
        return CheckResult(is_ok=True)

    async with serve(with_checks(fake, sql=hang)) as live:
        answer = await live.client.get("/readyz?verbose")
    assert (answer.status_code, answer.json()["checks"][0]["detail"]) == (503, "no answer in 2 s")


async def test_metrics_apart_need_no_key(fake: FakeTransactions) -> None:
    """There, whoever reaches the port is let in, and there is nothing else; at the API's they are not to be had."""
    asks = AccessService(cast("Database", None), SystemClock(), AccessConfig(is_open=False))
    app = create_app(replace(with_checks(fake, kafka=good), access=asks), has_metrics=False)
    apart = httpx2.ASGITransport(create_metrics_app(app))
    async with httpx2.AsyncClient(transport=apart, base_url="http://127.0.0.1") as scraper:
        found = {path: await scraper.get(path) for path in ("/livez", "/readyz?verbose", "/metrics", "/v1/stats")}
    assert [answer.status_code for answer in found.values()] == [200, 200, 200, 404]
    assert "outbox_bridge_" in found["/metrics"].text
    assert [check["name"] for check in found["/readyz?verbose"].json()["checks"]] == ["kafka"]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as caller:
        assert [(await caller.get(path)).status_code for path in ("/livez", "/metrics", "/v1/stats")] == [200, 401, 401]
    assert "/metrics" not in app.openapi()["paths"]


async def test_metrics_have_what_is_open_by_group(live: LiveServer) -> None:
    """So that an alert names the group."""
    lines = (await live.client.get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith("outbox_bridge_group_")] == [
        'outbox_bridge_group_pending{producer_group="orders"} 1.0',
        'outbox_bridge_group_oldest_pending_seconds{producer_group="orders"} 2.0',
        'outbox_bridge_group_parked{producer_group="orders"} 0.0',
        'outbox_bridge_group_blocked{producer_group="orders"} 0.0',
    ]


async def test_metrics_are_made_once_a_second(fake: FakeTransactions) -> None:
    """Many who scrape at once get one text, and cost as much as one; what the process shows is read in the loop."""
    process, asked = CountedMetrics(), CountedSearch(fake)
    exposition, search = Exposition(process), cast("SearchService", asked)
    bodies = await asyncio.gather(*[exposition.read(search) for _ in range(20)], exposition.read(search))
    assert len(set(bodies)) == 1
    assert await exposition.read(search) is bodies[0]
    assert (process.copied, asked.counted) == (1, 1)


async def test_process_without_the_roles_for_it_asks_no_database(fake: FakeTransactions) -> None:
    """Groups are shown by the projector at work, lags by api processes; a settler alone reads neither."""
    asked = CountedSearch(fake)
    body = await Exposition(SettlerMetrics()).read(cast("SearchService", asked))
    assert asked.counted == 0
    assert b"outbox_bridge_group_pending" not in body


class CountedSearch(FakeSearch):
    """Counts who asks."""

    counted = 0

    async def stats(self, rights: Rights = EVERYTHING) -> BridgeStats | Refused:
        """As ever."""
        self.counted += 1
        return await super().stats(rights)


class CountedMetrics(ProcessMetrics):
    """Counts copies; they are made where the loop runs."""

    copied = 0

    def copy(self) -> Iterable[Metric]:
        """Nothing."""
        assert asyncio.get_running_loop()
        self.copied += 1
        return ()


class SettlerMetrics(ProcessMetrics):
    """A process with a settler alone."""

    has_lags = False
    has_groups = False


class SearchWithoutSql(FakeSearch):
    """Nothing can be counted."""

    async def stats(self, rights: Rights = EVERYTHING) -> BridgeStats | Refused:
        """The database is away."""
        return refuse_unavailable("the counts cannot be read now")


async def test_metrics_go_on_without_sql(fake: FakeTransactions) -> None:
    """What the process knows by itself is needed most then."""
    search = cast("SearchService", SearchWithoutSql(fake))
    async with serve(replace(with_checks(fake, kafka=good), search=search)) as live:
        answer = await live.client.get("/metrics")
    assert answer.status_code == 200
    assert "outbox_bridge_http_" in answer.text
    assert "outbox_bridge_group_" not in answer.text


def test_groups_beyond_the_most_are_one() -> None:
    """Labels are bounded; sums stay right, and no series comes twice."""
    groups = {f"g{n:03d}": GroupStats(n + 1, oldest_pending_ms=9_000 - n) for n in range(150)}
    groups[OTHER_NAMES] = GroupStats(1_000)
    stats = BridgeStats(ProjectionStats(GroupStats(), groups), Lag(0, 0), 10_000)
    (pending, *_) = collect_groups(stats)
    shown = {sample.labels["producer_group"]: sample.value for sample in pending.samples}
    assert len(shown) == len(pending.samples) <= MOST_NAMES + 1
    assert sum(shown.values()) == sum(group.pending for group in groups.values())
    assert shown["g149"] == 150
    assert shown[OTHER_NAMES] >= 1_000
