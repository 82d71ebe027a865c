"""Liveness, readiness."""

import asyncio

from api.web.services import CheckResult, Services
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import serve


async def good() -> CheckResult:
    """All is well."""
    return CheckResult(is_ok=True)


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
    """One word, or with `verbose` each check."""
    async with serve(with_checks(fake, kafka=good, journal=worse)) as live:
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
