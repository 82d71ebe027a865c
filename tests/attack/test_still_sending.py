"""Clients that go on sending what is not taken: they can read why, and not for ever."""

import asyncio
import json

import pytest

from api.web import transports
from api.web.limits import HttpLimits
from tests.attack.test_bytes_in_flight import JSON, MIB, NDJSON, budget_of, head, wait_for_none
from tests.attack.test_pipelines import connections_of
from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.live_server import LiveServer, serve

TOTAL = 16 * MIB
PART = b"x" * (256 * 1024)  # above what is kept for small requests
AHEAD = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 3_000
LIMITS = HttpLimits(body_bytes=8 * MIB, in_flight_bytes=TOTAL, receive_s=60)


class Sender:
    """A client that sends first and reads afterwards."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, sent: bytes) -> None:
        """Waits until the system has taken most of it. Raises ConnectionError."""
        self._writer.write(sent)
        await asyncio.wait_for(self._writer.drain(), 20)

    async def read_status(self) -> bytes:
        """The first line of the answer."""
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n"), 20)

    async def read_rest(self) -> bytes:
        """Until the server closes its side."""
        return await asyncio.wait_for(self._reader.read(), 20)

    def close(self) -> None:
        """Cuts the connection off."""
        self._writer.transport.abort()
        self._writer.close()


async def send_parts(sender: Sender, count: int) -> None:
    """So many pieces of a body. Raises ConnectionError."""
    for _ in range(count):
        await sender.send(PART)


async def connect(live: LiveServer) -> Sender:
    """A new one."""
    return Sender(*await live.connect())


@pytest.mark.parametrize("media_type", [JSON, NDJSON])
async def test_shed_client_reads_why(media_type: str, fake: FakeTransactions) -> None:
    """It is answered at once, may send all that it promised, and then reads the whole answer."""
    async with serve(make_services(fake, limits=LIMITS)) as live:
        budget_of(live).used += TOTAL  # held by others
        sender = await connect(live)
        await sender.send(head(media_type, 8 * MIB) + PART)
        assert (await sender.read_status()).startswith(b"HTTP/1.1 503 ")
        await send_parts(sender, 8 * MIB // len(PART) - 1)
        top, _, body = (await sender.read_rest()).partition(b"\r\n\r\n")
        assert b"connection: close" in top.lower()
        assert json.loads(body)["outcome"] == "not_applied"
        sender.close()
        budget_of(live).used -= TOTAL
        await wait_for_none(budget_of(live))


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head(JSON, 64 * MIB), b"413"),
        (b"POST /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n", b"414"),
        (b"NONSENSE\r\n\r\n", b"400"),
    ],
)
async def test_refused_client_reads_why(request_head: bytes, status: bytes, fake: FakeTransactions) -> None:
    """Whatever was wrong with what it sends."""
    async with serve(make_services(fake, limits=LIMITS)) as live:
        sender = await connect(live)
        await sender.send(request_head)
        assert (await sender.read_status())[9:12] == status
        await send_parts(sender, 40)
        assert b"not_applied" in await sender.read_rest()
        sender.close()


async def test_client_that_sends_for_ever_is_ended(fake: FakeTransactions) -> None:
    """What is thrown away is bounded."""
    async with serve(make_services(fake, limits=LIMITS)) as live:
        sender = await connect(live)
        await sender.send(head(JSON, 10**12))
        assert (await sender.read_status())[9:12] == b"413"
        with pytest.raises(ConnectionError):
            await send_parts(sender, 4 * transports.LINGER_BYTES // len(PART))
        sender.close()


async def send_ahead(live: LiveServer, fake: FakeTransactions) -> Sender:
    """A commit that is not answered yet, and more requests behind it than may wait."""
    facts = await make_facts(fake)
    fake.gate = asyncio.Event()
    sender = await connect(live)
    end = f"POST /v1/transactions/{facts.prepared}/commit HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"
    await sender.send(f"{end}Content-Type: {JSON}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        while not live.server._traffic.in_flight:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    await sender.send(AHEAD)
    return sender


async def test_unread_requests_count(fake: FakeTransactions) -> None:
    """What is sent ahead of an answer is held until it is read."""
    async with serve(make_services(fake, limits=LIMITS)) as live:
        sender = await send_ahead(live, fake)
        async with asyncio.timeout(20):
            while budget_of(live).used < len(AHEAD) // 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert fake.gate is not None
        fake.gate.set()
        await wait_for_none(budget_of(live))
        sender.close()


async def test_unread_requests_without_room_are_dropped(fake: FakeTransactions) -> None:
    """The connection ends behind the answer of what had begun."""
    async with serve(make_services(fake, limits=LIMITS)) as live:
        budget_of(live).used += TOTAL  # held by others
        sender = await send_ahead(live, fake)
        async with asyncio.timeout(20):
            while not any(c.cycle and not c.cycle.keep_alive for c in connections_of(live)):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert fake.gate is not None
        fake.gate.set()
        assert (await sender.read_status()).startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 200" not in await sender.read_rest()
        sender.close()
        budget_of(live).used -= TOTAL
        await wait_for_none(budget_of(live))
