"""Overload, bugs, request ids, metrics: what every request meets first."""

import asyncio
import json
import logging

import httpx2
import pytest
import structlog
from structlog.testing import capture_logs

from api.web.limits import HttpLimits
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import JSON, Facts
from tests.support.live_server import LiveServer, serve
from tests.support.problems import check_problem

SECRET = "geheim-4711"


async def test_bug_is_told_with_the_request_id_only(live: LiveServer, facts: Facts, fake: FakeTransactions) -> None:
    """500 without a stack trace; the log has where, but no values."""
    structlog.reset_defaults()
    fake.broken = RuntimeError(f"no room for {SECRET}")
    with capture_logs() as logs:
        answer = await live.client.post(f"/v1/transactions/{facts.prepared}/commit")
    problem = check_problem(answer, 500, "internal")
    assert problem["outcome"] == "unknown"
    assert SECRET not in answer.text
    (entry,) = [entry for entry in logs if entry["event"] == "internal_error"]
    assert entry["request_id"] == problem["instance"]
    assert any("api_fakes.py" in place for place in entry["where"])
    assert SECRET not in json.dumps(logs)


async def test_query_strings_and_bodies_are_never_logged(
    live: LiveServer, facts: Facts, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the level."""
    structlog.reset_defaults()
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        await live.client.get(f"/v1/transactions?key={SECRET}&topic={SECRET}")
        await live.client.get(f"/v1/transactions/{facts.prepared}?{SECRET}=1")
        await live.client.post("/v1/transactions", content=f'{{"{SECRET}":1}}', headers=JSON)
        await live.client.get(f"/{SECRET}")
    assert len([entry for entry in logs if entry["event"] == "request_answered"]) == 4
    assert SECRET not in json.dumps(logs)


async def test_request_id_of_the_caller_is_kept_if_it_is_a_plain_word(live: LiveServer) -> None:
    """Anything else becomes a new one: it goes into a header and into logs."""
    kept = await live.client.get("/livez", headers={"X-Request-Id": "abc-1.2:3_4"})
    assert kept.headers["x-request-id"] == "abc-1.2:3_4"
    for bad in (b"a b", b"a" * 201, "ä".encode(), b"{}"):
        replaced = await live.client.get("/livez", headers=[(b"X-Request-Id", bad)])
        assert len(replaced.headers["x-request-id"]) == 32


async def test_too_many_requests_at_once_are_refused_before_work(fake: FakeTransactions, facts: Facts) -> None:
    """503 with Retry-After; health is still told; afterwards all is well."""
    fake.gate = asyncio.Event()
    async with serve(make_services(fake, limits=HttpLimits(in_flight=2))) as live:
        path = f"/v1/transactions/{facts.prepared}"
        waiting = [asyncio.ensure_future(live.client.get(path)) for _ in range(2)]
        while True:
            await asyncio.sleep(0.05)  # a scrape is a request too, and would keep one of them out
            gauge = (await live.client.get("/metrics")).text
            if "outbox_bridge_http_requests_in_flight 3.0" in gauge:
                break
        problem = check_problem(await live.client.get(path), 503, "unavailable")
        assert problem["outcome"] == "not_applied"
        assert (await live.client.get("/livez")).status_code == 200
        fake.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
        assert (await live.client.get(path)).status_code == 200


async def test_metrics_have_bounded_labels(live: LiveServer, facts: Facts) -> None:
    """Route templates, never paths; methods we know; problems by code."""
    await live.client.get(f"/v1/transactions/{facts.prepared}")
    await live.client.get("/nothing/here")
    await live.client.request("PROPFIND", "/v1/messages")
    text = (await live.client.get("/metrics")).text
    assert facts.prepared not in text
    assert "/nothing/here" not in text
    assert "PROPFIND" not in text
    assert 'method="GET",route="/v1/transactions/{transaction_id}",status_class="2xx"' in text
    assert 'route="unmatched",status_class="4xx"' in text
    assert 'outbox_bridge_http_problems_total{code="not-found"} 1.0' in text
    assert all(line.startswith(("outbox_bridge_", "#")) for line in text.splitlines())


async def test_what_is_acceptable_is_answered(live: LiveServer, facts: Facts) -> None:
    """Ranges and weights as HTTP says; health answers anybody."""
    for accept in (
        "*/*",
        "application/*",
        "text/html, application/json;q=0.1",
        "APPLICATION/JSON",
        "",
        "application/problem+json",
    ):
        answer = await live.client.get(f"/v1/transactions/{facts.prepared}", headers={"Accept": accept})
        assert answer.status_code == 200, accept
    assert (await live.client.get("/livez", headers={"Accept": "text/plain"})).status_code == 200


async def test_documents_are_served(live: LiveServer) -> None:
    """For people and for tools."""
    async with httpx2.AsyncClient(base_url=live.client.base_url) as plain:
        assert (await plain.get("/openapi.json")).json()["openapi"].startswith("3.1")
        assert "swagger" in (await plain.get("/docs")).text
