"""Many streams of lines that send a byte now and then, for ever."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from api.web.limits import HttpLimits, Streams
from api.web.server import ServeConfig
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.live_server import LiveServer, serve

pytestmark = pytest.mark.usefixtures("each_way")

PLACES = 4
STREAMS = 3 * PLACES
LINE = b'{"producer_group":"g","messages":[{"topic":"t"}]}\n'
HEAD = (
    b"POST /v1/transactions/batch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/x-ndjson\r\n\r\n"
)
NDJSON = "application/x-ndjson"
SMALL = {"producer_group": "g", "messages": [{"topic": "t"}]}


class Sender:
    """The client's side of one stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, sent: bytes) -> None:
        """A piece of its body."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(sent), sent))

    async def read_result(self) -> dict[str, Any]:
        """The next line of the answer."""
        result: dict[str, Any] = json.loads(await asyncio.wait_for(self._read_object(), 20))
        return result

    async def read_all(self) -> bytes:
        """What comes until the answer or the connection ends."""
        try:
            return await asyncio.wait_for(self._reader.readuntil(b"0\r\n\r\n"), 20)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def _read_object(self) -> bytes:
        while not (line := await self._reader.readuntil(b"\n")).startswith(b"{"):
            pass
        return line


class Stage:
    """A server, and the streams that were opened there; they end with its block."""

    def __init__(self, live: LiveServer) -> None:
        self.client = live.client
        self.live = live
        self._opened: list[Sender] = []

    @property
    def streams(self) -> Streams:
        """The server's side."""
        return self.live.server._traffic.streams

    async def open(self, sent: bytes) -> Sender:
        """A stream that begins so."""
        reader, writer = await self.live.connect()
        self._opened.append(Sender(reader, writer))
        writer.write(HEAD)
        self._opened[-1].send(sent)
        return self._opened[-1]

    async def open_many(self, count: int) -> list[Sender]:
        """Streams that each have had one answer, in the order in which they were opened."""
        opened = []
        for _ in range(count):
            opened.append(await self.open(LINE))
            assert (await opened[-1].read_result())["status"] == 201
        return opened

    def abort(self) -> None:
        """Every stream is cut off."""
        for stream in self._opened:
            stream.writer.transport.abort()
            stream.writer.close()

    async def request(self) -> int:
        """The status of an ordinary request of somebody else."""
        return (await self.client.post("/v1/transactions", json=SMALL)).status_code


@asynccontextmanager
async def stage(fake: FakeTransactions, limits: HttpLimits, config: ServeConfig | None = None) -> AsyncIterator[Stage]:
    """The API with few places."""
    async with serve(make_services(fake, limits=limits), config) as live:
        stage = Stage(live)
        yield stage
        stage.abort()


@contextmanager
def dripping(stream: Sender, sent: bytes) -> Iterator[None]:
    """It sends this again and again, with small pauses."""

    async def drip() -> None:
        while not stream.writer.is_closing():
            stream.send(sent)
            await asyncio.sleep(0.02)

    task = asyncio.ensure_future(drip())
    try:
        yield
    finally:
        task.cancel()


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Nobody tells."""
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_streams_that_trickle_take_nobodys_place(fake: FakeTransactions) -> None:
    """As many as may be open, each inside a line: the others are served, one after another and all at once."""
    async with stage(fake, HttpLimits(in_flight=PLACES, receive_s=60)) as on:
        for stream in await on.open_many(PLACES):
            stream.send(b"{")
        assert await asyncio.gather(*[on.request() for _ in range(PLACES)]) == [201] * PLACES
        assert "outbox_bridge_http_streams 4.0" in (await on.client.get("/metrics")).text
        on.abort()
        await wait_until(lambda: on.streams.count == 0)


async def test_line_that_trickles_is_ended(fake: FakeTransactions) -> None:
    """However often a byte comes, the line must be whole in time; what was answered before stays so."""
    async with stage(fake, HttpLimits(receive_s=0.3)) as on:
        (stream,) = await on.open_many(1)
        with dripping(stream, b"{"):
            last = await stream.read_result()
        assert last["status"] == 408
        assert last["problem"]["type"].endswith("/request-timeout")
        assert last["problem"]["outcome"] == "not_applied"
        assert fake.batches == [1]


async def test_stream_may_pause_between_lines(fake: FakeTransactions) -> None:
    """For longer than a line may take; empty lines change nothing."""
    async with stage(fake, HttpLimits(receive_s=0.2)) as on:
        pausing, other = await on.open_many(2)
        pausing.send(b"\n")
        other.send(b"{")
        assert (await other.read_result())["status"] == 408  # so long has it been
        pausing.send(LINE)
        assert (await pausing.read_result())["status"] == 201


async def test_stream_without_a_line_for_longest_makes_room(fake: FakeTransactions) -> None:
    """Its bytes do not count, only lines do; it is told so, at a line's boundary."""
    async with stage(fake, HttpLimits(in_flight=PLACES, receive_s=60)) as on:
        first, second, *_ = await on.open_many(PLACES)
        second.send(b"{")
        first.send(LINE)
        assert (await first.read_result())["status"] == 201
        await on.open_many(1)
        last = await second.read_result()
        assert (last["status"], last["problem"]["outcome"]) == (503, "not_applied")
        assert (await second.read_all()).endswith(b"0\r\n\r\n")
        first.send(LINE)
        assert (await first.read_result())["status"] == 201
        assert len(fake.batches) == PLACES + 3


async def test_streams_with_lines_to_answer_are_not_ended(fake: FakeTransactions) -> None:
    """One more is refused, and told so."""
    async with stage(fake, HttpLimits(in_flight=PLACES)) as on:
        streams = await on.open_many(PLACES)
        fake.gate = asyncio.Event()
        for stream in streams:
            stream.send(LINE)
        await wait_until(lambda: not on.streams._waiting)
        refused = await on.client.post("/v1/transactions/batch", content=LINE, headers={"Content-Type": NDJSON})
        assert (refused.status_code, refused.json()["outcome"]) == (503, "not_applied")
        assert refused.headers["retry-after"] == "1"
        fake.gate.set()
        assert [(await stream.read_result())["status"] for stream in streams] == [201] * PLACES


async def test_streams_make_room_for_connections(fake: FakeTransactions) -> None:
    """Where every connection belongs to a stream, others come in all the same."""
    limits, config = HttpLimits(in_flight=STREAMS, receive_s=60), ServeConfig(port=0, connections=PLACES)
    async with stage(fake, limits, config) as on:
        for _ in range(STREAMS):
            await on.open(LINE + b"{")
        for _ in range(PLACES):
            assert await on.request() == 201


async def test_streams_end_when_the_process_stops(fake: FakeTransactions) -> None:
    """At once, between two lines: nobody waits for what is not sent."""
    async with stage(fake, HttpLimits(), ServeConfig(port=0, drain_s=60)) as on:
        (stream,) = await on.open_many(1)
        on.live.stop.set()
        last = await stream.read_result()
        assert (last["status"], last["problem"]["detail"]) == (503, "shutting down")
