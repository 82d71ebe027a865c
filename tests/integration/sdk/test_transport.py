"""Connections: kept, replaced, bounded, and led through proxies."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop

from outbox import HttpConfig, OutboxConfigError
from outbox.client.calls import Request
from outbox.client.connection import run_now
from outbox.client.replies import Answer, NoReply
from outbox.client.transport import LoopTransport, ThreadTransport
from tests.integration.checker.hostile import server_context, trusting_context

GET = Request("GET", "/v1/health")
POST = Request("POST", "/v1/messages", b'{"a":1}')
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Served:
    """`requests`: heads and bodies; `connections`: how many were made. `answers`: the next ones, ANSWER without."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.answers: list[bytes | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if self.answers else ANSWER
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(path: str = "") -> AsyncIterator[Served]:
    """A server on a free port of loopback."""
    served = Served()
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
        yield served


class Threads:
    """The transport of threads, used in some."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        self.transport = ThreadTransport(url, config)

    async def exchange(self, request: Request, timeout_s: float) -> Answer | NoReply:
        return await asyncio.to_thread(lambda: run_now(self.transport.exchange(request, timeout_s)))

    async def close(self) -> None:
        await self.transport.close()


Transport = LoopTransport | Threads
Connect = Callable[..., AbstractAsyncContextManager[Transport]]


@asynccontextmanager
async def running(transport: Transport) -> AsyncIterator[Transport]:
    """Closed in the end."""
    try:
        yield transport
    finally:
        await transport.close()


@pytest.fixture(params=[LoopTransport, Threads])
def connected(request: pytest.FixtureRequest) -> Connect:
    """Makes a transport of either kind for an address."""
    return lambda url, config=None: running(request.param(url, config or HttpConfig()))


async def test_connection_is_kept_for_the_next_request(connected: Connect) -> None:
    """One after the other, over one; at once, over as many."""
    async with serving() as served, connected(served.url) as transport:
        for _ in range(3):
            answer = await transport.exchange(POST, 5)
            assert isinstance(answer, Answer)
            assert (answer.status, answer.body) == (200, b"{}")
        assert served.connections == 1
        await asyncio.gather(*[transport.exchange(POST, 5) for _ in range(4)])
        assert served.connections <= 4


async def test_request_says_what_the_bridge_needs(connected: Connect) -> None:
    """The address's path is kept; own headers replace ours, whatever their case."""
    config = HttpConfig(headers={"Authorization": "Bearer x", "user-agent": "shop"})
    async with serving("/behind a") as served, connected(served.url, config) as transport:
        await transport.exchange(POST, 5)
        await transport.exchange(GET, 5)
    first, second = served.requests
    host = served.url.removeprefix("http://").removesuffix("/behind a").encode()
    assert first.startswith(b"POST /behind%20a/v1/messages HTTP/1.1\r\nHost: " + host + b"\r\n")
    assert b"\r\nAuthorization: Bearer x\r\n" in first
    assert b"\r\nuser-agent: shop\r\n" in first
    assert b"User-Agent" not in first
    assert first.endswith(b'\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}')
    assert b"Content-" not in second


async def test_connections_have_a_limit(connected: Connect) -> None:
    """What finds none in time was certainly not sent."""
    release = asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connected(url, HttpConfig(max_connections=1, connect_timeout_s=0.05)) as transport:
            first = asyncio.create_task(transport.exchange(POST, 5))
            await asyncio.sleep(0)
            second = await transport.exchange(POST, 5)
            release.set()
            third = await first
    assert second == NoReply("not reached: all 1 connections are in use", is_sent=False)
    assert third == NoReply("the connection broke: ended within the answer")


async def test_nobody_there_is_not_sent(connected: Connect) -> None:
    """A refused connection, and names that are none."""
    async with serving() as served:
        url = served.url
    for nowhere in (url, "http://no-such-host.invalid", "http://no..host"):
        async with connected(nowhere) as transport:
            answer = await transport.exchange(POST, 5)
            assert isinstance(answer, NoReply)
            assert not answer.is_sent


async def test_silent_name_server_holds_no_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are few, and the service's own: its files, its other names and its check endpoint waited for them."""
    ask, answered = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host: str, *given: Any, **named: Any) -> Any:
        if host == "bridge.test" and "flags" not in named:  # with them no name server is asked
            answered.wait(60)
        return ask(host, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with ThreadPoolExecutor(1) as few:
        asyncio.get_running_loop().set_default_executor(few)
        try:
            async with running(LoopTransport("http://bridge.test", HttpConfig(connect_timeout_s=0.05))) as transport:
                answer = await transport.exchange(POST, 5)
            assert answer == NoReply("not reached: no connection in time", is_sent=False)
            assert await asyncio.wait_for(asyncio.to_thread(int), 20) == 0
        finally:
            answered.set()


async def test_time_covers_the_whole_exchange(connected: Connect) -> None:
    """An answer that comes bit by bit has no more of it; its connection is not used again."""
    async with serving() as served, connected(served.url) as transport:
        served.answers = [ANSWER[:-1]]
        assert await transport.exchange(POST, 0.1) == NoReply("no answer within 0.1 s")
        assert isinstance(await transport.exchange(POST, 5), Answer)
        assert served.connections == 2


async def test_broken_connections_are_replaced(connected: Connect) -> None:
    """One that was cut, one that is to be closed, one with more than was asked for."""
    async with serving() as served, connected(served.url) as transport:
        served.answers = [None, ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), ANSWER + b"HTTP", ANSWER]
        assert await transport.exchange(POST, 5) == NoReply("the connection broke: ended within the answer")
        for _ in range(3):
            assert isinstance(await transport.exchange(POST, 5), Answer)
        assert served.connections == 4


async def test_idle_connections_are_replaced(connected: Connect) -> None:
    """After their time, for the other side may close them just when they are used."""
    async with serving() as served, connected(served.url, HttpConfig(keep_alive_s=0.001)) as transport:
        await transport.exchange(POST, 5)
        await asyncio.sleep(0.01)
        await transport.exchange(POST, 5)
        assert served.connections == 2


async def test_cancelled_exchange_leaves_no_answer_behind() -> None:
    """Else the next request would be given it."""
    async with serving() as served, running(LoopTransport(served.url, HttpConfig())) as transport:
        await transport.exchange(POST, 5)
        served.answers = [ANSWER.replace(b"{}", b"[]"), ANSWER]
        task = asyncio.create_task(transport.exchange(POST, 5))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        answer = await transport.exchange(GET, 5)
        assert isinstance(answer, Answer)
        assert served.connections == 2


async def test_connection_made_while_closing_is_not_used() -> None:
    """Nobody would ever close it."""
    async with serving() as served:
        transport = LoopTransport(served.url, HttpConfig())
        asking = asyncio.create_task(transport.exchange(POST, 5))
        await asyncio.sleep(0)
        await transport.close()
        assert await asking == NoReply("not reached: ConnectionAbortedError", is_sent=False)
        assert served.requests == []


@pytest.fixture(params=["http_proxy", "https_proxy"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Of the bridge's address."""
    return str(request.param).removesuffix("_proxy")


async def test_proxy_of_the_environment_counts_if_it_is_to(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Plain requests go to it whole; for TLS it is asked for a tunnel."""
    async with serving() as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("//", "//me:secret@"))
        monkeypatch.setenv("no_proxy", "")
        proxy.answers = [b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"]
        async with connected(f"{scheme}://bridge.invalid:8780", HttpConfig(trust_env=True)) as transport:
            answer = await transport.exchange(POST, 5)
    (asked,) = proxy.requests
    assert b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in asked
    if scheme == "http":
        assert asked.startswith(
            b"POST http://bridge.invalid:8780/v1/messages HTTP/1.1\r\nHost: bridge.invalid:8780\r\n"
        )
        assert isinstance(answer, Answer)
    else:
        assert asked.startswith(b"CONNECT bridge.invalid:8780 HTTP/1.1\r\nHost: bridge.invalid:8780\r\n")
        assert answer == NoReply("not reached: the proxy answered 403", is_sent=False)


@pytest.mark.parametrize("proxy", ["https://me:secret@proxy.invalid", "socks5://proxy.invalid:1080"])
async def test_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """Rather than to tell it a password in plain text, or to speak HTTP to what does not."""
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(OutboxConfigError, match="proxy"):
        LoopTransport("https://bridge.invalid", HttpConfig(trust_env=True))


async def test_proxy_of_the_environment_is_ignored_otherwise(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may have one for other purposes."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with serving() as served, connected(served.url) as transport:
        assert isinstance(await transport.exchange(POST, 5), Answer)


@pytest.mark.parametrize("headers", [{"A b": "c"}, {"": "c"}, {"A": "b\r\nC: d"}, {"A": "\u2603"}])
def test_headers_that_cannot_be_sent_are_refused(headers: dict[str, str]) -> None:
    """Before anything else would be read into them."""
    with pytest.raises(OutboxConfigError):
        HttpConfig(headers=headers)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_certificate_must_verify(connected: Connect, is_trusted: bool) -> None:
    """Else nothing is sent."""
    served = Served()
    trusting = trusting_context()
    trusting.check_hostname = False  # it is another's
    config = HttpConfig(ssl_context=trusting if is_trusted else None)
    async with (
        await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=server_context()) as server,
        connected(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", config) as transport,
    ):
        answers = [await transport.exchange(POST, 5) for _ in range(2)]
    if is_trusted:
        assert [type(answer) for answer in answers] == [Answer, Answer]
        assert served.connections == 1
    else:
        assert answers == [NoReply("not reached: TLS: self-signed certificate", is_sent=False)] * 2
        assert served.requests == []


@pytest.mark.parametrize("is_secured", [False, True])
def test_uvloop_reaches_the_bridge_too(is_secured: bool) -> None:
    """A service may run on it; it knows fewer options, and its transports are not asyncio's."""
    served, trusting = Served(), trusting_context()
    trusting.check_hostname = False  # it is another's

    async def ask() -> list[Answer | NoReply]:
        secured = server_context() if is_secured else None
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=secured) as server:
            url = f"http{'s' if is_secured else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with running(LoopTransport(url, HttpConfig(ssl_context=trusting))) as transport:
                served.answers = [ANSWER, ANSWER, None]
                return [await transport.exchange(POST, 5) for _ in range(3)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers = runner.run(ask())
    assert [type(answer) for answer in answers] == [Answer, Answer, NoReply]
    assert served.connections == 1
