"""One principal cannot use up what others need: by the second, and where places are scarce."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from api.web.limits import HttpLimits, QuotaConfig, Quotas
from api.web.short_way import ShortWay
from bridge.clock import SystemClock
from bridge.core.grants import Grant, Verb
from bridge.service.access import AccessConfig, AccessService
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import HOST, LiveServer, serve
from tests.support.problems import check_problem

ORDER = {"producer_group": "orders", "messages": [{"topic": "orders.created", "value": 1}]}
LINE = json.dumps(ORDER).encode() + b"\n"
WHO = Who("ops", "")


def test_share_counts_only_where_places_are_scarce() -> None:
    """A single user of the bridge has all of it."""
    quotas = Quotas(QuotaConfig(), places=100, now_ms=lambda: 0)
    greedy, other = quotas.find("greedy"), quotas.find("other")
    for in_flight in range(50):
        assert quotas.enter(greedy, in_flight) is None
    problem = quotas.enter(greedy, 50)
    assert problem is not None
    assert problem.type.slug == "rate-limited"
    assert quotas.enter(other, 50) is None
    for _ in range(26):
        greedy.leave()
    assert quotas.enter(greedy, 50) is None


async def make_server_access(folder: Path) -> tuple[AccessService, dict[str, dict[str, str]]]:
    """Two principals, and the headers that prove them."""
    access = AccessService(open_new_database(folder), SystemClock(), AccessConfig(is_open=False))
    headers = {}
    for name in ("greedy", "modest"):
        await access.put(name, [Grant(Verb.PREPARE, "*")], WHO)
        made = await access.make_key(name, None, None, WHO)
        assert isinstance(made, MadeKey)
        headers[name] = {"Authorization": f"Bearer {made.text}"}
    return access, headers


async def ask(live: LiveServer, headers: dict[str, str], count: int) -> list[int]:
    """Statuses of prepares; each refusal says when to come again."""
    statuses = []
    for _ in range(count):
        answer = await live.client.post("/v1/transactions", json=ORDER, headers=headers)
        if answer.status_code == 429:
            check_problem(answer, 429, "rate-limited")
            again = answer.headers["retry-after"]
            assert int(again) >= 1
            if "quota" in answer.json()["detail"]:
                assert answer.headers["ratelimit"].endswith(f";r=0;t={again}")
                assert answer.headers["ratelimit-policy"].endswith(";w=2")
        statuses.append(answer.status_code)
    return statuses


@pytest.mark.parametrize("config", [QuotaConfig(requests_per_s=2), QuotaConfig(bytes_per_s=150)])
async def test_quota_is_of_one_principal(config: QuotaConfig, tmp_path: Path) -> None:
    """On the short way too; the others are served as before. What was refused was not applied."""
    access, headers = await make_server_access(tmp_path)
    fake = FakeTransactions()
    services = replace(make_services(fake), access=access, limits=HttpLimits(quotas=config))
    async with serve(services) as live:
        statuses = await ask(live, headers["greedy"], 20)
        assert statuses[:3] == [201] * 3
        assert statuses[-1] == 429
        assert len(fake.views) == statuses.count(201) < 10
        assert await ask(live, headers["modest"], 3) == [201] * 3


@pytest.mark.parametrize("config", [QuotaConfig(requests_per_s=5), QuotaConfig(bytes_per_s=500)])
async def test_what_is_left_to_the_road_is_charged_once(config: QuotaConfig, tmp_path: Path) -> None:
    """Keyed prepares begin on the short way and are answered by the road: each cost its principal two."""
    access, headers = await make_server_access(tmp_path)
    services = replace(make_services(FakeTransactions()), access=access, limits=HttpLimits(quotas=config))
    body = json.dumps({**ORDER, "idempotency_key": "k"}).encode().ljust(100)
    async with serve(services) as live:
        live.server._traffic.quotas._now_ms = lambda: 0
        told = [
            await live.client.post(
                "/v1/transactions", content=body, headers={**headers["greedy"], "Content-Type": "application/json"}
            )
            for _ in range(12)
        ]
    assert [answer.status_code for answer in told] == [201] * 10 + [429] * 2


async def test_refusal_needs_no_parser_and_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on beyond the quota costs less than those who are served, and holds no place."""
    access, headers = await make_server_access(tmp_path)
    limits, ways = HttpLimits(quotas=QuotaConfig(requests_per_s=1)), []
    begin = ShortWay.begin

    def note(*args: Any) -> bool:
        ways.append(begin(*args))
        return ways[-1]

    monkeypatch.setattr(ShortWay, "begin", note)
    async with serve(replace(make_services(FakeTransactions()), access=access, limits=limits)) as live:
        assert (await ask(live, headers["greedy"], 6))[2:] == [429] * 4
        assert ways == [True] * 5
        assert (live.server._traffic.in_flight, live.server._traffic.budget.used) == (0, 0)


async def open_stream(
    live: LiveServer, headers: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A batch whose lines follow in chunks."""
    reader, writer = await asyncio.open_connection(HOST, live.port)
    writer.write(b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n")
    writer.write(f"Authorization: {headers['Authorization']}\r\n".encode())
    writer.write(b"Content-Type: application/x-ndjson\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("config", [QuotaConfig(requests_per_s=1), QuotaConfig(bytes_per_s=len(LINE))])
async def test_stream_waits_for_its_quota(config: QuotaConfig, tmp_path: Path) -> None:
    """Else whoever has one would send everything in one. Nothing of it is refused, and others are served meanwhile."""
    access, headers = await make_server_access(tmp_path)
    services = replace(make_services(FakeTransactions()), access=access, limits=HttpLimits(quotas=config))
    async with serve(services) as live:
        reader, writer = await open_stream(live, headers["greedy"])
        began_s = asyncio.get_running_loop().time()
        for _ in range(4):
            writer.write(b"%x\r\n%b\r\n" % (len(LINE), LINE))
            assert b'"status":201' in await asyncio.wait_for(reader.readuntil(b"}\n"), 10)
        assert asyncio.get_running_loop().time() - began_s > 0.9, "two seconds' worth at once, then so many a second"
        assert await ask(live, headers["modest"], 1) == [201]
        writer.close()


async def test_stream_waits_for_its_quota_wherever_its_pieces_end(tmp_path: Path) -> None:
    """Those of a client that sends without a pause end within lines: what has begun must come, no more; and the time
    for the rest of a line does not pass while it may not come."""
    access, headers = await make_server_access(tmp_path)
    limits = HttpLimits(quotas=QuotaConfig(requests_per_s=1), receive_s=0.5)
    services = replace(make_services(FakeTransactions()), access=access, limits=limits)
    async with serve(services) as live:
        reader, writer = await open_stream(live, headers["greedy"])
        began_s = asyncio.get_running_loop().time()
        text = LINE * 5
        cuts = [0, *[len(LINE) * n + 5 for n in range(1, 5)], len(text)]
        for begin, end in pairwise(cuts):
            writer.write(b"%x\r\n%b\r\n" % (end - begin, text[begin:end]))
            assert b'"status":201' in await asyncio.wait_for(reader.readuntil(b"}\n"), 10)
        assert asyncio.get_running_loop().time() - began_s > 1.9, "two at once, then one a second"
        writer.close()


async def test_places_are_given_back(tmp_path: Path) -> None:
    """By requests that were answered, refused or cut off."""
    access, headers = await make_server_access(tmp_path)
    fake = FakeTransactions(gate=asyncio.Event())
    limits = HttpLimits(in_flight=8)
    async with serve(replace(make_services(fake), access=access, limits=limits)) as live:
        asked = [asyncio.create_task(ask(live, headers["greedy"], 1)) for _ in range(6)]
        await asyncio.sleep(0.2)
        assert fake.gate is not None
        fake.gate.set()
        statuses = [status for one in asked for status in await one]
        assert sorted(set(statuses)) == [201, 429]
        assert statuses.count(201) == 4
        assert await ask(live, headers["greedy"], 4) == [201] * 4
