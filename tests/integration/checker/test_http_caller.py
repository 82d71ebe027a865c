"""HttpCaller against real servers that are slow, broken or hostile."""

import asyncio
import gzip
import resource
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from api.outgoing import OwnAddresses
from bridge.clock import SystemClock
from bridge.store.memory.process import MemoryProcess
from bridge.store.memory.store import MemoryCluster
from checker.call import EndpointCall, EndpointReply, Failure
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.http_caller import HttpCaller, resolve_name
from tests.integration.checker.hostile import (
    OK_HEAD,
    Behaviour,
    HostileServer,
    answering,
    closing,
    repeating,
    sending,
    server_context,
    trusting_context,
)

LOOPBACK = CallbackPolicy(parse_networks(["127.0.0.0/8", "::1/128"]))
PATIENT_MS = 20_000  # a deadline that does not end the call in these tests
SHORT_MS = 300
Start = Callable[..., Awaitable[HostileServer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts servers that end with the test."""
    started: list[HostileServer] = []

    async def make(
        behaviour: Behaviour, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> HostileServer:
        server = HostileServer(behaviour)
        started.append(server)
        await server.start(context, host)
        return server

    yield make
    for server in started:
        await server.stop()


async def call(
    url: str,
    *,
    timeout_ms: int = PATIENT_MS,
    policy: CallbackPolicy = LOOPBACK,
    resolve: Callable[[str, int], Sequence[str]] | None = None,
    trust: bool = True,
    body: bytes = b"{}",
) -> EndpointReply:
    """One call by a caller of its own."""
    context = trusting_context() if trust else None
    caller = HttpCaller(policy, SystemClock(), ssl_context=context, resolve=resolve or (lambda host, port: [host]))
    try:
        return await caller.call(EndpointCall(url, {"webhook-id": "check_1"}, body, timeout_ms, 1_000))
    finally:
        await caller.close()


def url_of(server: HostileServer, host: str = "127.0.0.1", scheme: str = "http") -> str:
    return f"{scheme}://{host}:{server.port}/check"


def finding(addresses: Sequence[str]) -> Callable[[str, int], Sequence[str]]:
    """A name server that knows these addresses."""
    return lambda host, port: addresses


@pytest.mark.parametrize(
    "behaviour",
    [
        sending(),
        sending(OK_HEAD),
        sending(OK_HEAD + b"Content-Length: 10\r\n\r\n"),
        sending(OK_HEAD + b"Content-Length: 10\r\n\r\n12345"),
        sending(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n"),
        sending(b"HTTP/1.1 100 Continue\r\n\r\n"),
        repeating(OK_HEAD + b"Content-Length: 500\r\n\r\n", b"x", 0.02),
        repeating(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", 0.02),
    ],
    ids=["silent", "half-head", "no-body", "half-body", "half-chunked", "continue", "trickled-body", "trickled-head"],
)
async def test_deadline_holds_over_the_whole_exchange(start: Start, behaviour: Behaviour) -> None:
    """Hanging or trickling at any point; the connection is closed then."""
    server = await start(behaviour)
    reply = await call(url_of(server), timeout_ms=SHORT_MS)
    assert (reply.failure, reply.body) == (Failure.TIMEOUT, b"")
    async with asyncio.timeout(10):
        await server.closed.get()


async def test_status_is_told_though_its_body_never_comes(start: Start) -> None:
    """Nobody waits long for words that only people read."""
    server = await start(sending(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n"))
    reply = await call(url_of(server))
    assert (reply.status, reply.failure, reply.body) == (404, Failure.STATUS, b"")


async def test_endpoint_that_does_not_read_meets_the_deadline_too(start: Start) -> None:
    """A large body nobody takes."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.get_running_loop().create_future()

    server = await start(deaf)
    reply = await call(url_of(server), timeout_ms=SHORT_MS, body=b"x" * 30_000_000)
    assert reply.failure is Failure.TIMEOUT


@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [
        (repeating(OK_HEAD + b"\r\n", b"x" * 1_000), Failure.TOO_LARGE),
        (repeating(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), Failure.TOO_LARGE),
        (sending(OK_HEAD + b"Content-Length: 1001\r\n\r\n"), Failure.TOO_LARGE),
        (sending(OK_HEAD + b"Content-Length: 99999999999999999999\r\n\r\n"), None),
        (repeating(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), Failure.TOO_LARGE),
        (repeating(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" * 100), Failure.TOO_LARGE),
        (sending(OK_HEAD + b"X-Huge: " + b"x" * 20_000 + b"\r\n\r\n"), None),
        (sending(OK_HEAD + b"X-Many: x\r\n" * 500 + b"\r\n"), None),
        (repeating(b"HTTP/1.1 200 OK\r\n", b"X-Endless: x\r\n" * 100), None),
        (sending(b"HTTP/1.1 200 " + b"x" * 20_000 + b"\r\n\r\n"), None),
        (sending(OK_HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 10**7)), Failure.COMPRESSED),
        (sending(OK_HEAD + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx"), Failure.COMPRESSED),
        (sending(b"SSH-2.0-OpenSSH_9.9\r\n"), None),
        (sending(b"\x00\xff" * 500), None),
        (sending(b"HTTP/1.1 abc\r\n\r\n"), None),
        (sending(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n"), None),
        (sending(OK_HEAD + b"Content-Length: -1\r\n\r\n"), None),
        (sending(OK_HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc"), None),
        (sending(OK_HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), None),
        (sending(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), Failure.STATUS),
        (closing, Failure.CLOSED),
    ],
)
async def test_broken_answers_are_cut(start: Start, behaviour: Behaviour, failure: Failure | None) -> None:
    """Within the caps, long before the deadline, and never an exception; the connection is closed."""
    server = await start(behaviour)
    reply = await call(url_of(server))
    assert reply.body == b""
    assert (
        reply.failure is failure if failure else reply.failure in {Failure.MALFORMED, Failure.CLOSED, Failure.TOO_LARGE}
    )
    async with asyncio.timeout(10):
        await server.closed.get()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_never_followed(start: Start, status: int) -> None:
    """The other server hears nothing."""
    other = await start(answering(b"{}"))
    target = url_of(other).encode()
    server = await start(sending(b"HTTP/1.1 %d Moved\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % (status, target)))
    reply = await call(url_of(server))
    assert (reply.status, reply.failure) == (status, Failure.REDIRECT)
    assert other.connections == 0


async def test_what_is_sent(start: Start) -> None:
    """One POST, Host with the name, no compression, nothing kept open."""
    server = await start(answering(b"{}"))
    reply = await call(url_of(server, "shop.example"), resolve=finding(["127.0.0.1"]))
    assert (reply.failure, reply.body) == (None, b"{}")
    head = server.requests[0].decode().lower()
    assert head.startswith("post /check http/1.1\r\n")
    for line in (
        f"host: shop.example:{server.port}",
        "accept-encoding: identity",
        "content-type: application/json",
        "content-length: 2",
        "connection: close",
        "webhook-id: check_1",
    ):
        assert f"\r\n{line}\r\n" in head
    assert "cookie" not in head
    async with asyncio.timeout(10):
        await server.closed.get()


async def test_cookies_are_not_kept(start: Start) -> None:
    """Nor is a connection: each call has its own."""
    server = await start(
        sending(OK_HEAD + b"Set-Cookie: a=b; Path=/\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}")
    )
    caller = HttpCaller(LOOPBACK, SystemClock())
    for _ in range(2):
        reply = await caller.call(EndpointCall(url_of(server), {}, b"{}", PATIENT_MS, 1_000))
        assert reply.failure is None
    await caller.close()
    assert server.connections == 2
    assert all(b"ookie" not in request for request in server.requests)


async def test_proxies_of_the_environment_are_ignored(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve the name itself."""
    proxy = await start(answering(b"{}"))
    server = await start(answering(b"{}"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, url_of(proxy))
    assert (await call(url_of(server))).failure is None
    assert (proxy.connections, server.connections) == (0, 1)


async def test_tls_with_the_name_in_sni(start: Start) -> None:
    """The certificate is checked against the name, the connection goes to the checked address."""
    names: list[str | None] = []
    context = server_context()
    context.sni_callback = lambda _, name, __: names.append(name)
    server = await start(answering(b"{}"), context)
    reply = await call(url_of(server, "shop.example", "https"), resolve=finding(["127.0.0.1"]))
    assert (reply.failure, reply.body) == (None, b"{}")
    assert names == ["shop.example"]


@pytest.mark.parametrize(("host", "trust"), [("other.example", True), ("shop.example", False)])
async def test_certificates_that_do_not_verify(start: Start, host: str, trust: bool) -> None:
    """Another name, or nobody known: nothing is sent."""
    server = await start(answering(b"{}"), server_context())
    reply = await call(url_of(server, host, "https"), resolve=finding(["127.0.0.1"]), trust=trust)
    assert reply.failure is Failure.TLS
    assert server.requests == []


async def test_old_tls_is_refused(start: Start) -> None:
    """1.2 is the least."""
    context = server_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    server = await start(answering(b"{}"), context)
    reply = await call(url_of(server, "shop.example", "https"), resolve=finding(["127.0.0.1"]))
    assert reply.failure in {Failure.TLS, Failure.REFUSED}
    assert server.requests == []


async def test_no_tls_on_the_other_side(start: Start) -> None:
    """Plain HTTP where https was asked for."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Never reached: the greeting is no HTTP head."""

    server = await start(plain)
    reply = await call(url_of(server, "shop.example", "https"), resolve=finding(["127.0.0.1"]), timeout_ms=SHORT_MS)
    assert reply.failure in {Failure.TLS, Failure.REFUSED, Failure.TIMEOUT, Failure.CLOSED}


async def test_process_without_a_descriptor_left_does_not_blame_the_endpoint(start: Start) -> None:
    """ "refused" would send its owner, and whoever is told of the group that fails, to look for a fault there."""
    server = await start(answering(b"{}"))
    caller = HttpCaller(LOOPBACK, SystemClock(), ssl_context=trusting_context(), resolve=finding(["127.0.0.1"]))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        reply = await caller.call(EndpointCall(url_of(server, "shop.example"), {}, b"{}", PATIENT_MS, 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await caller.close()
    assert reply.failure is Failure.NO_SOCKET


async def test_one_denied_address_and_nothing_is_sent(start: Start) -> None:
    """Neither to it nor to the allowed ones beside it."""
    server = await start(answering(b"{}"))
    for addresses in (
        ["127.0.0.1", "10.0.0.1"],
        ["169.254.169.254"],
        ["127.0.0.1", "8.8.8.8"],
        ["::ffff:127.0.0.1"],
        [],
    ):
        reply = await call(url_of(server, "shop.example"), resolve=finding(addresses))
        assert reply.failure is Failure.FORBIDDEN
    assert server.connections == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "https://127.0.0.1/", "http://localhost:{port}/", "x"])
async def test_loopback_is_not_called_unless_allowed(start: Start, url: str) -> None:
    """The default: https to the public internet alone."""
    server = await start(answering(b"{}"))
    reply = await call(url.format(port=server.port), policy=CallbackPolicy(), resolve=finding(["127.0.0.1"]))
    assert reply.failure is Failure.FORBIDDEN
    assert server.connections == 0


async def test_name_that_leads_to_kafka_later_is_not_called(start: Start) -> None:
    """A good name when it was registered; now it leads to what the bridge itself uses, in an allowed network."""
    server, other = await start(answering(b"{}")), await start(answering(b"{}"))
    own = OwnAddresses(MemoryProcess(MemoryCluster(SystemClock()), "bridge").admin, [], SystemClock(), resolve_name)
    await own.add("127.0.0.1", server.port)
    policy = CallbackPolicy(LOOPBACK.allow_networks, own)
    for address in ("127.0.0.1", "127.0.0.3"):
        reply = await call(url_of(server, "shop.example"), policy=policy, resolve=finding([address]))
        assert (reply.failure, server.connections) == (Failure.FORBIDDEN, 0)
    assert (await call(url_of(other, "shop.example"), policy=policy, resolve=finding(["127.0.0.1"]))).status == 200


async def test_private_address_behind_a_public_name() -> None:
    """A good URL whose name points inside."""
    reply = await call("https://shop.example/", policy=CallbackPolicy(), resolve=finding(["192.168.0.1"]))
    assert reply.failure is Failure.FORBIDDEN


async def test_name_is_resolved_once(start: Start) -> None:
    """A name that points elsewhere the second time changes nothing."""
    asked: list[tuple[str, int]] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    server = await start(answering(b"{}"))
    assert (await call(url_of(server, "shop.example"), resolve=rebinding)).failure is None
    assert asked == [("shop.example", server.port)]


async def test_name_that_does_not_resolve() -> None:
    """A failure like any other."""

    def failing(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    assert (await call("http://shop.example:8080/", resolve=failing)).failure is Failure.DNS


async def test_slow_name_server_meets_the_deadline() -> None:
    """Resolving is part of the exchange, and holds up nobody else."""
    release = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        release.wait(30)
        return ["127.0.0.1"]

    try:
        assert (await call("http://shop.example:8080/", resolve=slow, timeout_ms=SHORT_MS)).failure is Failure.TIMEOUT
    finally:
        release.set()


@pytest.mark.parametrize("names", [1, 300])
async def test_name_that_no_name_server_answers_for_holds_up_no_other_name(start: Start, names: int) -> None:
    """However many calls to it, or to names like it, come and end meanwhile: a call that ends leaves the question
    behind, and whoever has a domain has as many names as he likes."""
    server, release = await start(answering(b"{}")), threading.Event()

    def resolve(host: str, port: int) -> Sequence[str]:
        if host.endswith("hangs.example"):
            release.wait()
        return ["127.0.0.1"]

    caller = HttpCaller(LOOPBACK, SystemClock(), resolve=resolve)
    try:
        urls = [f"http://n{n % names}.hangs.example:8080/" for n in range(max(100, names))]
        calls = [EndpointCall(url, {}, b"{}", SHORT_MS, 1_000, "theirs") for url in urls]
        replies = await asyncio.gather(*map(caller.call, calls))
        assert {reply.failure for reply in replies} == {Failure.TIMEOUT}
        other = EndpointCall(url_of(server, "shop.example"), {}, b"{}", PATIENT_MS // 4, 1_000, "shop")
        assert (await caller.call(other)).failure is None
    finally:
        release.set()
        await caller.close()


async def test_system_resolver_and_ipv6(start: Start) -> None:
    """`localhost` as the machine knows it; an address of version 6 in brackets."""
    server = await start(answering(b"{}"))
    caller = HttpCaller(LOOPBACK, SystemClock())
    reply = await caller.call(EndpointCall(url_of(server, "localhost"), {}, b"{}", PATIENT_MS, 1_000))
    assert reply.failure is None
    try:
        six = await start(answering(b"{}"), None, "::1")
    except OSError:
        return  # a machine without IPv6
    reply = await caller.call(EndpointCall(url_of(six, "[::1]"), {}, b"{}", PATIENT_MS, 1_000))
    assert reply.failure is None
    await caller.close()


async def test_many_hostile_calls_leave_nothing_open(start: Start) -> None:
    """Sockets and tasks are gone when the calls are over."""
    server = await start(repeating(OK_HEAD + b"\r\n", b"x" * 500))
    before = len(asyncio.all_tasks())
    caller = HttpCaller(LOOPBACK, SystemClock())
    calls = [caller.call(EndpointCall(url_of(server), {}, b"{}", PATIENT_MS, 1_000)) for _ in range(50)]
    replies = await asyncio.gather(*calls)
    assert {reply.failure for reply in replies} == {Failure.TOO_LARGE}
    async with asyncio.timeout(10):
        for _ in range(50):
            await server.closed.get()
    assert len(asyncio.all_tasks()) <= before + len(server._connections)
    await caller.close()
