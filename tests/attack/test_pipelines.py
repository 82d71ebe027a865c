"""A connection that sends request after request and waits for no answer."""

import asyncio
import gc
import re
import weakref
from collections.abc import Iterator

import pytest

from api.web.guard import MARK
from api.web.protocol import MAX_PIPELINED, BoundedProtocol
from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.live_server import LiveServer, serve

pytestmark = pytest.mark.usefixtures("each_way")

GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SENT = 40_000


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is only freed by the garbage collector is not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections_of(live: LiveServer) -> list[BoundedProtocol]:
    """The server's side of every connection."""
    found = live.server._server.server_state.connections
    return [connection for connection in found if isinstance(connection, BoundedProtocol)]


async def start_flood(live: LiveServer, fake: FakeTransactions) -> tuple[asyncio.StreamWriter, BoundedProtocol]:
    """One commit that is not answered yet, and behind it more requests than the sockets between can hold."""
    facts = await make_facts(fake)
    fake.gate = asyncio.Event()
    _, writer = await live.connect()
    head = f"POST /v1/transactions/{facts.prepared}/commit HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode() + GET * SENT)
    async with asyncio.timeout(10):
        while not (held := [c for c in connections_of(live) if c.is_held]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    for _ in range(100):  # what could still be taken would be taken now
        await asyncio.sleep(0)
    return writer, held[0]


async def test_few_requests_wait_behind_one_another(fake: FakeTransactions) -> None:
    """A client that sends without reading fills its own buffers, not the bridge's memory."""
    async with serve(make_services(fake)) as live:
        writer, connection = await start_flood(live, fake)
        assert len(connection.pipeline) <= MAX_PIPELINED
        assert not writer.is_closing()
        writer.transport.abort()
        assert fake.gate is not None
        fake.gate.set()


@pytest.mark.usefixtures("uncollected")
async def test_requests_that_wait_go_with_their_connection(fake: FakeTransactions) -> None:
    """Their memory comes back at once: the garbage collector, which seldom looks at old objects, is not needed."""
    async with serve(make_services(fake)) as live:
        writer, connection = await start_flood(live, fake)
        waiting = [weakref.ref(cycle) for cycle, _ in connection.pipeline]
        gone = weakref.ref(connection)
        del connection
        writer.transport.abort()
        assert fake.gate is not None
        fake.gate.set()
        while connections_of(live):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert waiting
        assert [cycle for cycle in waiting if cycle() is not None] == []
        assert gone() is None


async def test_each_of_many_pipelined_requests_is_answered_in_order(fake: FakeTransactions) -> None:
    """A client may still send ahead; what it sends is read as it is answered, wherever the pieces are cut."""
    body = b'{"producer_group":"g",\r\n\r\n"messages":[{"topic":"t"}]}' + b"\r\n\r\n" * 50
    post = (
        b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    )
    many = (GET * 70 + post % (len(body), body)) * 40 + LAST
    async with serve(make_services(fake)) as live:
        answer = await live.send_raw(many)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == ([200] * 70 + [201]) * 40 + [200]


@pytest.mark.parametrize("between", [b"", GET * 2])
async def test_broken_request_is_not_answered_before_those_it_came_behind(
    between: bytes, fake: FakeTransactions
) -> None:
    """Its client would take that answer for the one to its commit: refused, though it is on its way."""
    facts = await make_facts(fake)
    fake.gate = asyncio.Event()
    head = f"HTTP/1.1\r\nHost: a\r\n{MARK}: 1\r\n"
    broken = f"POST /v1/transactions {head}Transfer-Encoding: chunked\r\n\r\nnone\r\n".encode()
    commit = f"POST /v1/transactions/{facts.prepared}/commit {head}Content-Length: 0\r\n\r\n"
    async with serve(make_services(fake)) as live:
        reader, writer = await live.connect()
        writer.write(commit.encode() + between + broken)
        async with asyncio.timeout(10):
            while not live.server._traffic.in_flight:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        fake.gate.set()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert re.findall(rb"HTTP/1.1 ([0-9]{3})", answer) == [b"200"] * (1 + between.count(b"GET")) + [b"400"]
