"""The usual calls with a head that is known are answered without parser and task, and their callers cannot tell."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from api.web.protocol import BoundedProtocol
from api.web.server import ServeConfig
from api.web.short_way import ShortWay
from bridge.clock import SystemClock
from bridge.core.grants import EVERYTHING, Grant, Rights, Verb
from bridge.core.transaction import TransactionView
from bridge.service.access import AccessConfig, AccessService
from bridge.service.contract import Outcome, PrepareCall, Prepared, RefusalCode, Refused
from bridge.service.operate import Who
from bridge.sql.access import MadeKey
from bridge.sql.engine import open_new_database
from tests.support.api_fakes import FakeTransactions, make_facts, make_services
from tests.support.live_server import HOST, LiveServer, serve

ORDER = b'{"producer_group":"orders","messages":[{"topic":"orders.created","key":"7","value":{"n":1}}]}'
PLAIN = "Host: a\r\nContent-Type: application/json\r\nUser-Agent: some/1\r\nAccept: */*\r\nConnection: keep-alive\r\n"
UNAVAILABLE = Refused(RefusalCode.UNAVAILABLE, "not now", retry_after_s=3)
UNKNOWN = Refused(RefusalCode.OUTCOME_UNKNOWN, "perhaps", Outcome.UNKNOWN, "00" + "0" * 26)


def write(path: str, body: bytes = ORDER, lines: str = PLAIN) -> bytes:
    return f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Client:
    """One connection, and which way its requests went."""

    def __init__(self, live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._port = live.port
        self.short = 0
        begin = ShortWay.begin

        def count(way: ShortWay, found: Any, finish: Any) -> bool:
            is_begun = begin(way, found, finish)
            self.short += is_begun
            return is_begun

        monkeypatch.setattr(ShortWay, "begin", count)

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection(HOST, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def read(self) -> str:
        """The next answer without what is its own: time, ids, offsets."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        assert length is not None
        body = (await self.reader.readexactly(int(length[1]))).decode()
        shown = re.sub(r'(?im)^date: .*$|(?<=x-request-id: ).*$|(?<="instance":)"[^"]*"|[0-9a-v]{28}', "", head + body)
        return re.sub(r'(?<="queue_offset":)\d+', "", shown)

    async def call(self, request: bytes) -> tuple[str, bool]:
        """Its answer, and whether it went the short way."""
        before = self.short
        self.writer.write(request)
        answer = await self.read()
        return answer, self.short > before


async def test_requests_after_the_first_are_answered_alike(
    live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads and members, of prepares, commits and rollbacks, on other connections too; every call is counted."""
    facts = [await make_facts(fake) for _ in range(3)]
    async with Client(live, monkeypatch) as client, Client(live, monkeypatch) as other:
        for path, body in (
            ("/v1/transactions", ORDER),
            ("/v1/transactions/{0.prepared}/commit", b""),
            ("/v1/transactions/{0.prepared}/rollback", b'{"producer_group":"orders"}'),
            ("/v1/transactions/{0.committed}/commit", b"{}"),
        ):
            first, is_short = await client.call(write(path.format(facts[0]), body))
            assert not is_short
            for again, fact in zip((client, other), facts[1:], strict=True):
                assert await again.call(write(path.format(fact), body)) == (first, True)
        assert (
            'http_request_seconds_count{method="POST",route="/v1/transactions",status_class="2xx"} 3.0'
            in (await live.client.get("/metrics")).text
        )


@pytest.mark.parametrize(
    ("path", "lines", "body"),
    [
        ("/v1/transactions", "X-Request-Id: mine\r\n", ORDER),
        ("/v1/transactions", "Idempotency-Key: k\r\n", ORDER),
        ("/v1/transactions", "Outbox-First-Try: 1\r\n", ORDER),
        ("/v1/transactions", "Prefer: respond-async\r\n", ORDER),
        ("/v1/transactions", "Content-Encoding: identity\r\n", ORDER),
        ("/v1/transactions", "Expect: 100-continue\r\n", ORDER),
        ("/v1/transactions", "Host: a\r\n", ORDER),
        ("/v1/transactions", "Content-Length: 93\r\n", ORDER),
        ("/v1/transactions?wait_seconds=1", "", ORDER),
        ("/v1/transactions/batch", "", b'{"transactions":[' + ORDER + b"]}"),
        ("/v1/transactions/{}/commit?wait_seconds=1", "", b""),
        ("/v1/transactions/{}/commit", "Prefer: respond-async\r\n", b""),
        ("/v1/transactions/{}", "", b""),
        ("/v1/messages", "", ORDER),
    ],
)
async def test_what_is_rare_is_left_to_the_road(
    path: str, lines: str, body: bytes, live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another head may mean something else, be it the same as one before."""
    facts = await make_facts(fake)
    begun: list[object] = []
    monkeypatch.setattr(ShortWay, "begin", lambda *args: begun.append(args))
    for _ in range(3):
        await live.send_raw(write(path.format(facts.prepared), body, PLAIN + lines), half_close=True)
    assert begun == []


@pytest.mark.parametrize(
    "body", [ORDER[:-1], b"\xff" * len(ORDER), ORDER.replace(b"orders.created", b"orders.create\x01")]
)
async def test_wrong_bodies_behind_known_heads_are_refused_alike(
    body: bytes, live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has happened when the road looks at them."""
    async with Client(live, monkeypatch) as client:
        first, _ = await client.call(write("/v1/transactions", body))
        await client.call(write("/v1/transactions", b"7" * len(body)))
        assert first.startswith("HTTP/1.1 400 ")
        assert await client.call(write("/v1/transactions", body)) == (first, False)


async def test_id_that_is_none_is_refused_behind_a_known_head(
    live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is by the road, also one that is as long as an id."""
    facts = await make_facts(fake)
    async with Client(live, monkeypatch) as client:
        await client.call(write(f"/v1/transactions/{facts.prepared}/commit", b""))
        for wrong in (
            facts.prepared[:-1],
            facts.prepared[:-1] + "/",
            "Z" * 28,
            "0" * 27 + "1",
            "%30" + "0" * 25,
            "é" * 14,
        ):
            answer, is_short = await client.call(write(f"/v1/transactions/{wrong}/commit", b""))
            assert re.match(r"HTTP/1.1 4[02][0-5] ", answer)
            assert not is_short


@pytest.mark.parametrize("refused", [UNAVAILABLE, UNKNOWN])
async def test_refusals_of_the_service_are_the_same_problems(
    refused: Refused, live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same headers, and counted."""
    async with Client(live, monkeypatch) as client:
        fake.refusal = refused
        for path, body in (("/v1/transactions", ORDER), (f"/v1/transactions/{'0' * 28}/commit", b"")):
            first, _ = await client.call(write(path, body))
            assert await client.call(write(path, body)) == (first, True)
        assert f'code="{refused.code.value}"}} 4.0' in (await live.client.get("/metrics")).text


async def test_failure_inside_is_told_as_one(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is over then, and its place is given back."""
    async with Client(live, monkeypatch) as client:
        await client.call(write("/v1/transactions"))

        def fail(*_: object) -> bool:
            raise MemoryError

        monkeypatch.setattr(FakeTransactions, "begin_prepare", fail)
        answer, is_short = await client.call(write("/v1/transactions"))
        assert is_short
        assert answer.startswith("HTTP/1.1 500 ")
        assert live.server._traffic.in_flight == live.server._traffic.budget.used == 0


async def test_requests_beyond_the_limits_are_refused_as_ever(fake: FakeTransactions) -> None:
    """A process that drains, or has too much to do, refuses whatever it knows of a head."""
    async with serve(make_services(fake)) as live:
        reader, writer = await asyncio.open_connection(HOST, live.port)
        traffic = live.server._traffic
        for in_flight, used, is_draining, status in (
            (0, 0, False, b"201"),
            (0, 0, False, b"201"),
            (traffic.max_in_flight, 0, False, b"503"),
            (0, traffic.budget.total, False, b"503"),
            (0, 0, False, b"201"),
            (0, 0, True, b"503"),
        ):
            traffic.in_flight, traffic.budget.used, traffic.is_draining = in_flight, used, is_draining
            writer.write(write("/v1/transactions"))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 " + status)
            await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
            assert (traffic.in_flight, traffic.budget.used) == (in_flight, used)
        assert await reader.read() == b""
        writer.close()


class Waiting(FakeTransactions):
    """Answers the short way when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []

    def begin_prepare(
        self,
        call: PrepareCall,
        wait_ms: int,
        answer: Callable[[Prepared | TransactionView | Refused], None],
        rights: Rights = EVERYTHING,
    ) -> bool:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.add_done_callback(lambda _: answer(self._prepare(call)))
        self.waiting.append(told)
        return True


async def begin_to_wait(live: LiveServer, fake: Waiting) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request on the short way, after one on the other."""
    reader, writer = await asyncio.open_connection(HOST, live.port)
    writer.write(write("/v1/transactions"))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
    writer.write(write("/v1/transactions"))
    async with asyncio.timeout(10):
        while not fake.waiting:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return reader, writer


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    """What comes while a request is on the short way waits for its answer."""
    fake = Waiting()
    async with serve(make_services(fake)) as live:
        reader, writer = await begin_to_wait(live, fake)
        writer.write(write("/v1/transactions"))
        await asyncio.sleep(0.05)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 3 + b"POST /v1/transactions HTT")
        await asyncio.sleep(0.05)
        assert (live.server._traffic.in_flight, len(fake.waiting)) == (1, 1)
        fake.waiting.pop().set_result(None)
        writer.write(
            b"P/1.1\r\nConnection: close\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        answers = (await asyncio.wait_for(reader.read(), 10)).decode()
        assert re.findall(r"HTTP/1.1 (\d+)", answers) == ["201", "201", "200", "200", "200", "422"]
        assert fake.waiting == []
        writer.close()


async def test_client_that_has_gone_costs_nothing() -> None:
    """Its request is over when its record is stored."""
    fake = Waiting()
    async with serve(make_services(fake)) as live:
        _, writer = await begin_to_wait(live, fake)
        writer.transport.abort()
        async with asyncio.timeout(10):
            while live.server._server.server_state.connections:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        fake.waiting.pop().set_result(None)
        await asyncio.sleep(0)
        assert live.server._traffic.in_flight == live.server._traffic.budget.used == 0


async def test_draining_answers_what_is_on_the_short_way() -> None:
    """And then ends the connection."""
    fake = Waiting()
    async with serve(make_services(fake)) as live:
        reader, writer = await begin_to_wait(live, fake)
        live.stop.set()
        [connection] = live.server._server.server_state.connections
        async with asyncio.timeout(10):
            while connection.cycle.keep_alive:  # type: ignore[union-attr]  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        fake.waiting.pop().set_result(None)
        answer = (await asyncio.wait_for(reader.read(), 10)).decode()
        assert answer.startswith("HTTP/1.1 201 ")
        assert "connection: close" in answer
        writer.close()


async def test_connections_that_rest_are_ended() -> None:
    """From the last answer on, whichever way it went, and not while a request is served."""
    fake = Waiting()
    async with serve(make_services(fake), ServeConfig(host=HOST, port=0, keep_alive_s=1)) as live:
        reader, writer = await begin_to_wait(live, fake)
        [connection] = live.server._server.server_state.connections
        assert isinstance(connection, BoundedProtocol)
        connection.timeout_keep_alive_handler()  # as if so much time had passed
        fake.waiting.pop().set_result(None)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)).startswith(b"HTTP/1.1 201 ")
        assert await asyncio.wait_for(reader.read(), 10)
        assert reader.at_eof()
        writer.close()


async def test_heads_are_remembered_within_bounds(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten; long ones are not kept."""
    monkeypatch.setattr("api.web.short_way._MOST_HEADS", 3)
    async with Client(live, monkeypatch) as client:
        requests = [write("/v1/transactions", ORDER + b" " * n) for n in range(4)]
        assert [(await client.call(request))[1] for request in requests * 2] == [False] * 8
        assert (await client.call(requests[3]))[1]
        long = write("/v1/transactions", ORDER, PLAIN + f"Accept-Encoding: {'x' * 1_000}\r\n")
        assert [(await client.call(long))[1] for _ in range(2)] == [False, False]


async def test_request_behind_another_in_one_piece_is_answered_too(live: LiveServer) -> None:
    """Only a request that is alone in what was read goes the short way."""
    plain, last = write("/v1/transactions"), write("/v1/transactions", ORDER, PLAIN.replace("keep-alive", "close"))
    reader, writer = await asyncio.open_connection(HOST, live.port)
    for request in (plain, plain):
        writer.write(request)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
    writer.write(plain + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", await asyncio.wait_for(reader.read(), 10)) == [b"201", b"201"]
    writer.close()


async def test_known_head_is_forgotten_when_rights_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was revoked, or may do less, is refused at once, although its head was taken before."""
    access = AccessService(open_new_database(tmp_path), SystemClock(), AccessConfig(is_open=False))
    who, rights = Who("ops", ""), [Grant(Verb.PREPARE, "orders", "orders.*")]
    await access.put("shop", rights, who)
    made = await access.make_key("shop", None, None, who)
    assert isinstance(made, MadeKey)
    request = write("/v1/transactions", lines=f"{PLAIN}Authorization: Bearer {made.text}\r\n")
    services = replace(make_services(FakeTransactions()), access=access)
    async with serve(services) as live, Client(live, monkeypatch) as client:

        async def ask() -> tuple[str, bool]:
            answer, is_short = await client.call(request)
            return answer.split(" ")[1], is_short

        assert [await ask(), await ask()] == [("201", False), ("201", True)]
        await access.put("shop", [], who)
        assert [await ask(), await ask()] == [("403", False), ("403", False)]
        await access.put("shop", rights, who)
        assert [await ask(), await ask()] == [("201", False), ("201", True)]
        await access.revoke(made.key.key_id, who)
        assert [await ask(), await ask()] == [("401", False), ("401", False)]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


async def test_requests_of_other_traces_go_the_short_way_too(
    live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head is known whatever its trace is, and wherever it stands; each call keeps its own."""
    facts = await make_facts(fake)
    later = f"traceparent: {TRACE.replace('b7', 'c7')}\r\nTraceState: a=1\r\n"
    async with Client(live, monkeypatch) as client:
        first, _ = await client.call(write("/v1/transactions", ORDER, f"Traceparent: {TRACE}\r\n{PLAIN}"))
        for lines in (PLAIN, PLAIN + later, later + PLAIN, PLAIN + "traceparent: wrong\r\n"):
            assert await client.call(write("/v1/transactions", lines=lines)) == (first, True)
        await client.call(write(f"/v1/transactions/{facts.prepared}/commit", b""))
        _, is_short = await client.call(write(f"/v1/transactions/{facts.prepared}/commit", b"", PLAIN + later))
        assert is_short
    kept = [dict(call.messages[0].headers) for call in fake.prepared[-5:]]
    second = {"traceparent": TRACE.replace("b7", "c7").encode(), "tracestate": b"a=1"}
    assert kept == [{"traceparent": TRACE.encode()}, {}, second, second, {}]


async def test_log_line_of_a_request_names_its_trace_whichever_way_it_went(
    live: LiveServer, fake: FakeTransactions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So that the bridge's part of a trace is found in its log; a request without one names none."""
    await make_facts(fake)
    structlog.reset_defaults()
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with Client(live, monkeypatch) as client:
            ways = [
                (await client.call(write("/v1/transactions", lines=lines)))[1]
                for lines in (PLAIN + f"traceparent: {TRACE}\r\n", PLAIN + f"traceparent: {TRACE}\r\n", PLAIN)
            ]
    assert ways == [False, True, True]
    told = [entry.get("trace_id") for entry in logs if entry["event"] == "request_answered"]
    assert told == [TRACE[3:35], TRACE[3:35], None]


@pytest.mark.parametrize(
    "lines",
    [
        PLAIN + f"traceparent: {TRACE}\r\n more: 1\r\n",
        PLAIN + f"traceparent: {TRACE}\nX-Request-Id: mine\r\n",
        PLAIN + f"traceparents: {TRACE}\r\n",
        PLAIN + f"traceparent : {TRACE}\r\n",
    ],
)
async def test_what_only_looks_like_a_trace_is_left_to_the_road(
    lines: str, live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cut out of a head but whole lines."""
    async with Client(live, monkeypatch) as client:
        await client.call(write("/v1/transactions"))
        _, is_short = await client.call(write("/v1/transactions", lines=lines))
        assert not is_short
