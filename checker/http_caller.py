"""CheckCaller on aiohttp, for endpoints that may be slow, broken or hostile.

A call resolves its name once, refuses if any address is denied, connects to those addresses alone, with the
name in Host and SNI, and looks at the peer before anything is sent. Each call has a connection of its own:
nothing an endpoint sends can reach another call.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client import ClientRequest, ClientTimeout
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from bridge.clock import Clock
from bridge.directory import place_of
from bridge.turns import take_error
from checker.call import FIRST_BYTES, TELLING_STATUSES, CheckCaller, EndpointCall, EndpointReply, Failure, failure_of
from checker.endpoint_guard import CallbackPolicy, CheckedUrl, check_addresses, check_url

_MAX_LINE_BYTES = 8_190
_MAX_HEADERS = 100
_OVERHEAD_BYTES = 64 * 1024  # status lines, headers, chunk sizes
_RESOLVERS, _RESOLVERS_OF_ONE = 256, 4
_FIRST_BYTES_S = 0.25
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}  # says nothing of the endpoint
_NO_TIMEOUT = ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)

Resolve = Callable[[str, int], Sequence[str]]


def resolve_name(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, in the system's order. Blocks; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class HttpCaller(CheckCaller):
    """`resolve` blocks and runs in a thread of its own pool, so that slow name servers hold up nobody else."""

    def __init__(
        self,
        policy: CallbackPolicy,
        clock: Clock,
        *,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = resolve_name,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._ssl = ssl_context or ssl.create_default_context()
        self._resolve = resolve
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolve-endpoint")
        self._resolving: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by owner

    async def call(self, call: EndpointCall) -> EndpointReply:
        start_ms = self._clock.monotonic_ms()
        checked = check_url(call.url, self._policy)
        if isinstance(checked, str):
            return EndpointReply(place_of(call.url), 0, failure=Failure.FORBIDDEN)
        reply = await self._exchange(call, checked)
        latency_ms = self._clock.monotonic_ms() - start_ms
        status, body, retry_after, failure = reply
        return EndpointReply(checked.shown, latency_ms, status, body, retry_after, failure)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _exchange(self, call: EndpointCall, checked: CheckedUrl) -> "_Exchange":
        try:
            async with asyncio.timeout(call.timeout_ms / 1000):
                addresses = await self._addresses_of(checked, call.owner)
                if isinstance(addresses, Failure):
                    return _failed(addresses)
                async with self._session(call, addresses) as (session, connector):
                    try:
                        return await _post(session, call)
                    except aiohttp.ClientError as error:
                        return _failed(connector.failure or _name_failure(error))
        except TimeoutError:
            return _failed(Failure.TIMEOUT)

    async def _addresses_of(self, checked: CheckedUrl, owner: str) -> Sequence[str] | Failure:
        place = checked.host, checked.port
        try:
            addresses = await asyncio.shield(self._resolving.get(place) or await self._begin_resolving(place, owner))
        except (OSError, UnicodeError):
            return Failure.DNS
        refusal = check_addresses(checked, addresses, self._policy)
        return addresses if refusal is None else Failure.FORBIDDEN

    async def _begin_resolving(self, place: tuple[str, int], owner: str) -> "asyncio.Future[Sequence[str]]":
        """One thread for all who ask for a name at once, and few for the names of one owner: a thread may stay with a
        name server long after their calls ended, and there are only so many."""
        turns = self._turns.setdefault(owner, asyncio.Semaphore(_RESOLVERS_OF_ONE))
        await turns.acquire()
        resolving = self._resolving.get(place)  # somebody may have asked meanwhile
        if resolving is not None:
            turns.release()
            return resolving
        resolving = asyncio.get_running_loop().run_in_executor(self._threads, self._resolve, *place)
        self._resolving[place] = resolving
        resolving.add_done_callback(lambda _: self._resolving.pop(place))
        resolving.add_done_callback(lambda _: turns.release())
        resolving.add_done_callback(take_error)
        return resolving

    @asynccontextmanager
    async def _session(
        self, call: EndpointCall, addresses: Sequence[str]
    ) -> "AsyncIterator[tuple[aiohttp.ClientSession, _PinnedConnector]]":
        max_bytes = 2 * call.max_answer_bytes + _OVERHEAD_BYTES
        connector = _PinnedConnector(addresses, self._ssl, max_bytes)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=_NO_TIMEOUT,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            max_headers=_MAX_HEADERS,
            headers={"User-Agent": "outbox-bridge", "Accept": "application/json", "Accept-Encoding": "identity"},
        )
        try:
            yield session, connector
        finally:
            connector.cut()
            await session.close()


_Exchange = tuple[int, bytes, str | None, Failure | None]


def _failed(failure: Failure) -> _Exchange:
    return 0, b"", None, failure


async def _post(session: aiohttp.ClientSession, call: EndpointCall) -> _Exchange:
    url = URL(call.url, encoded=True)
    headers = {"Content-Type": "application/json", **call.headers}
    async with session.post(url, data=BytesIO(call.body), headers=headers, allow_redirects=False) as response:
        status = response.status
        failure = failure_of(status)
        if failure is not None:
            first = await _read_first(response) if status in TELLING_STATUSES else b""
            return status, first, response.headers.get("Retry-After"), failure
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            return status, b"", None, Failure.COMPRESSED
        body = await _read(response, call.max_answer_bytes)
        return (status, b"", None, Failure.TOO_LARGE) if body is None else (status, body, None, None)


async def _read_first(response: aiohttp.ClientResponse) -> bytes:
    """The first bytes of an answer whose status already says that it is none; they are not waited for long."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_FIRST_BYTES_S):
            return await response.content.read(FIRST_BYTES)
    return b""


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; None if it is larger."""
    if (response.content_length or 0) > most:
        return None
    body = bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


def _name_failure(error: aiohttp.ClientError) -> Failure:
    """Order matters: aiohttp's errors inherit from each other."""
    if isinstance(error, OSError) and error.errno in _OURS:
        return Failure.NO_SOCKET
    table: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Failure], ...] = (
        ((aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch), Failure.TLS),
        (aiohttp.ClientConnectorCertificateError, Failure.TLS),
        (aiohttp.ClientConnectorError, Failure.REFUSED),
        (aiohttp.ClientResponseError, Failure.MALFORMED),
        (aiohttp.InvalidURL, Failure.FORBIDDEN),
    )
    return next((failure for kinds, failure in table if isinstance(error, kinds)), Failure.CLOSED)


class _PinnedResolver(AbstractResolver):
    """Knows the checked addresses and asks nobody."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Holds nothing."""


class _PinnedConnector(aiohttp.TCPConnector):
    """One connection to one of the checked addresses; counts what it receives."""

    def __init__(self, addresses: Sequence[str], context: ssl.SSLContext, max_bytes: int) -> None:
        super().__init__(
            resolver=_PinnedResolver(addresses), use_dns_cache=False, force_close=True, limit=1, ssl=context
        )
        self._checked = frozenset(addresses)
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport | None = None
        self._counter: _CountingProtocol | None = None

    @property
    def failure(self) -> Failure | None:
        """TOO_LARGE if the endpoint sent more than the cap, whatever it was."""
        is_over = self._counter is not None and self._counter.is_over
        return Failure.TOO_LARGE if is_over else None

    async def connect(  # the signature is the parent's
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        transport, protocol = connection.transport, connection.protocol
        peer = transport.get_extra_info("peername") if transport is not None else None
        if transport is None or protocol is None or peer is None or peer[0] not in self._checked:
            connection.close()
            raise aiohttp.ClientConnectionError("connected to another address")
        self._transport = transport
        self._counter = _CountingProtocol(protocol, transport, self._max_bytes)
        transport.set_protocol(self._counter)
        return connection

    def cut(self) -> None:
        """Closes without waiting for what was not sent or read."""
        if self._transport is not None:
            self._transport.abort()


class _CountingProtocol(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol until too much has come: also of 1xx answers and headers."""

    def __init__(self, inner: asyncio.Protocol, transport: asyncio.Transport, max_bytes: int) -> None:
        self._inner = inner
        self._transport = transport
        self._left = max_bytes

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
