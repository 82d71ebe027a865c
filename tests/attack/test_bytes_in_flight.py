"""Many requests that send much and never end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api.web.limits import ByteBudget, HttpLimits
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import LiveServer, serve

pytestmark = pytest.mark.usefixtures("each_way")

MIB = 1024 * 1024
TOTAL = 2 * MIB
STALLED = 12
PART = b"x" * (400 * 1024)
SMALL = {"producer_group": "g", "messages": [{"topic": "t", "value": "v"}]}
JSON = "application/json"
NDJSON = "application/x-ndjson"


def head(media_type: str, size: int) -> bytes:
    """Of a prepare."""
    path = "/v1/transactions/batch" if media_type == NDJSON else "/v1/transactions"
    return (f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\nContent-Length: {size}\r\n\r\n").encode()


def budget_of(live: LiveServer) -> ByteBudget:
    """What the server gives out."""
    return live.server._traffic.budget


async def wait_for_none(budget: ByteBudget) -> None:
    """Until every byte has come back."""
    async with asyncio.timeout(20):
        while budget.used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


@asynccontextmanager
async def small_budget(fake: FakeTransactions) -> AsyncIterator[LiveServer]:
    """The API with room for few bytes; at the end of the block each of them has come back."""
    limits = HttpLimits(body_bytes=MIB, in_flight_bytes=TOTAL, receive_s=60)
    async with serve(make_services(fake, limits=limits)) as live:
        yield live
        await wait_for_none(budget_of(live))


async def stall(live: LiveServer, media_type: str) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Requests that send a part and no more."""
    sockets = [await live.connect() for _ in range(STALLED)]
    for _, writer in sockets:
        writer.write(head(media_type, MIB) + PART)
    return sockets


async def check_attack(live: LiveServer, media_type: str) -> None:
    """Some are shed, all stay within the budget, a small one is served, and a lost connection gives all back."""
    budget = budget_of(live)
    sockets = await stall(live, media_type)
    answers = [asyncio.ensure_future(reader.read()) for reader, _ in sockets]
    async with asyncio.timeout(20):
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    assert budget.used <= budget.for_large
    shed = [answer.result() for answer in answers if answer.done()]
    for answer in shed:
        top, _, body = answer.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in top.lower()
        assert b"connection: close" in top.lower()
        problem = json.loads(body)
        assert problem["type"].endswith("/unavailable")
        assert problem["outcome"] == "not_applied"
    served = await live.client.post("/v1/transactions", json=SMALL)
    assert served.status_code == 201
    for _, writer in sockets:
        writer.transport.abort()
    await asyncio.gather(*answers, return_exceptions=True)


async def test_stalled_bodies_are_shed_and_small_ones_served(fake: FakeTransactions) -> None:
    """Bytes count as they arrive, whatever length was promised."""
    async with small_budget(fake) as live:
        await check_attack(live, JSON)


async def test_lines_without_an_end_are_shed(fake: FakeTransactions) -> None:
    """A line is held until it is whole."""
    async with small_budget(fake) as live:
        await check_attack(live, NDJSON)


async def test_answered_lines_are_given_back_while_the_stream_goes_on(fake: FakeTransactions) -> None:
    """A stream may be longer than the budget: only what is not answered yet counts."""
    line = json.dumps({**SMALL, "messages": [{"topic": "t", "value": "v" * 100_000}]}).encode() + b"\n"
    count = TOTAL // len(line) * 2
    async with small_budget(fake) as live:
        reader, writer = await live.connect()
        writer.write(head(NDJSON, (count + 1) * len(line)))
        for _ in range(count):
            writer.write(line)
            while b'"transaction_id"' not in (answered := await asyncio.wait_for(reader.readline(), 20)):
                assert answered, "the stream has ended"
        await wait_for_none(budget_of(live))
        writer.transport.abort()


async def test_bytes_come_back_with_answers_and_errors(fake: FakeTransactions) -> None:
    """The short way, the framework's way, a body too large, a body that is nonsense, and a bug."""
    large = {**SMALL, "messages": [{"topic": "t", "value": "v" * (MIB // 2)}]}
    async with small_budget(fake) as live:
        for _ in range(8):  # more than the budget holds at once
            assert (await live.client.post("/v1/transactions", json=SMALL)).status_code == 201
            assert (await live.client.post("/v1/transactions", json=large)).status_code == 201
            await live.send_raw(head(JSON, 2 * MIB) + b"x" * (2 * MIB))
            assert (await live.client.post("/v1/transactions", json=["x" * (MIB // 2)])).status_code == 422
        fake.broken = RuntimeError("a bug")
        assert (await live.client.post("/v1/transactions", json=large)).status_code == 500
        assert (await live.client.post("/v1/transactions", json=SMALL)).status_code == 500


async def test_request_without_room_is_refused_where_it_is_whole(fake: FakeTransactions) -> None:
    """Its connection is kept: nothing of it is on its way."""
    async with small_budget(fake) as live:
        budget = budget_of(live)
        budget.used += TOTAL  # held by others
        refused = await live.client.post("/v1/transactions", json=SMALL)
        assert (refused.status_code, refused.json()["outcome"]) == (503, "not_applied")
        assert "connection" not in refused.headers
        assert (await live.client.get("/livez")).status_code == 200
        budget.used -= TOTAL
        assert (await live.client.post("/v1/transactions", json=SMALL)).status_code == 201


async def test_requests_that_wait_behind_another_give_back_with_their_connection(fake: FakeTransactions) -> None:
    """They have never begun."""
    async with small_budget(fake) as live:
        fake.gate = asyncio.Event()
        _, writer = await live.connect()
        body = json.dumps(SMALL).encode()
        whole = head(JSON, len(body)) + body
        writer.write(whole * 5)
        async with asyncio.timeout(20):
            while budget_of(live).used < 5 * len(body):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        writer.transport.abort()
        fake.gate.set()  # nothing is read meanwhile: only the first answer shows that nobody is there
