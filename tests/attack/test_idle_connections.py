"""Many connections that say nothing: others are served all the same."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from api.web.server import ServeConfig, fit_connections
from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.live_server import LiveServer, serve

CAP = 8
HEAD = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(live: LiveServer, stack: AsyncExitStack, sent: bytes = b"") -> Streams:
    """A connection that has sent this, and that the server knows."""
    reader, writer = await live.connect()
    stack.callback(writer.transport.abort)
    writer.write(sent)
    return reader, writer


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n"], ids=["silent", "half a head", "kept alive"])
async def test_silent_connections_keep_nobody_out(fake: FakeTransactions, sent: bytes) -> None:
    """Three times as many as there may be, then one more with a request."""
    async with serve(make_services(fake), ServeConfig(port=0, connections=CAP)) as live, AsyncExitStack() as stack:
        opened: list[Streams] = []
        for _ in range(3 * CAP):
            reader, writer = await connect(live, stack, sent)
            if sent.endswith(b"\r\n\r\n"):
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            opened.append((reader, writer))
        answer = await live.send_raw(HEAD + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        await asyncio.wait_for(opened[0][0].read(), 10)  # the first was ended, by the server


async def test_connection_with_a_request_is_not_ended_for_room(fake: FakeTransactions) -> None:
    """Its answer comes, however many have connected since; with nothing but such ones, a new one is refused."""
    facts = await make_facts(fake)
    fake.gate = asyncio.Event()
    commit = f"POST /v1/transactions/{facts.prepared}/commit HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n".encode()
    config = ServeConfig(port=0, connections=CAP)
    async with serve(make_services(fake), config) as live, AsyncExitStack() as stack:
        typed = b"Content-Type: application/json\r\n\r\n"
        busy = [await connect(live, stack, commit + typed) for _ in range(CAP)]
        async with asyncio.timeout(10):
            while live.server._traffic.in_flight < CAP:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        for _ in range(CAP):
            refused = await live.send_raw(b"")
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in refused
        fake.gate.set()
        for reader, _ in busy:
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)).startswith(b"HTTP/1.1 200 ")
        assert (await live.send_raw(HEAD + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("wanted", "open_files", "queues", "most"),
    [
        (4_000, 1_048_576, 4, 4_000),
        (4_000, 1_024, 4, 736),
        (4_000, 256, 64, 64),
        (10, 1_024, 4, 10),
        (4_000, -1, 4, 4_000),
    ],
)
def test_connections_fit_into_the_files_that_may_be_open(wanted: int, open_files: int, queues: int, most: int) -> None:
    """What Kafka, SQL and calls need stays free; a quarter is for connections in any case."""
    assert fit_connections(wanted, open_files, queues) == most
