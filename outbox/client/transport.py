"""Connections of one event loop to one bridge, kept for the next request."""

import asyncio
import base64
import netrc
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from outbox.client.calls import JSON, Request
from outbox.client.config import HttpConfig
from outbox.client.errors import OutboxConfigError
from outbox.client.http_answer import AnswerReader, BrokenAnswer
from outbox.client.replies import Answer, NoReply

_PORTS = {"http": 80, "https": 443}
_IN_PATHS = "/%:@!$&'()*+,;=~-._"
_OTHER_ADDRESS_S = 0.25  # a name with several addresses: the next one is tried too. Source: RFC 8305


class Transport:
    """Sends requests and reads their answers. Belongs to the event loop it is made in."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._connect_options: dict[str, Any] = {}
        if isinstance(self._loop, asyncio.BaseEventLoop):  # uvloop's does not know it
            self._connect_options["happy_eyeballs_delay"] = _OTHER_ADDRESS_S
        self._route = _find_route(urlsplit(url), config)
        self._head = RequestHead(urlsplit(url), config, self._route)
        self._places = asyncio.Semaphore(config.max_connections)
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._is_closed = False

    async def exchange(self, request: Request, timeout_s: float) -> Answer | NoReply:
        """One request and its whole answer; never raises for what happens on the way."""
        raw = self._head.encode(request)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._take()
                reader = await connection.ask(raw, AnswerReader())
            received = datetime.now(UTC)
            return Answer(reader.status, bytes(reader.body), reader.retry_after, received, reader.kafka_time_ms)
        except NotReached as error:
            return NoReply(f"not reachable: {error}", is_sent=False)
        except TimeoutError:
            return NoReply(f"no answer within {timeout_s:.1f} s", is_sent=connection is not None)
        except (BrokenAnswer, OSError) as error:
            return NoReply(f"the connection broke: {type(error).__name__}")
        finally:
            if connection is not None:
                self._give_back(connection)

    async def close(self) -> None:
        """Closes all connections, and those that are only being made."""
        self._is_closed = True
        self._idle.clear()
        for connection in self._open:
            connection.abort()
        self._open.clear()
        await asyncio.sleep(0)  # the loop closes them in its next turn

    async def _take(self) -> "_Connection":
        """A connection to send on. Raises NotReached."""
        if not self._places.locked():
            await self._places.acquire()  # at once
            if (idle := self._take_idle()) is not None:
                return idle
            self._places.release()
        with _as_not_reached():
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._places.acquire()
                try:
                    return self._take_idle() or await self._connect()
                except BaseException:
                    self._places.release()
                    raise

    def _take_idle(self) -> "_Connection | None":
        """The one used last; those that have been idle for too long are closed."""
        oldest_s = self._loop.time() - self._config.keep_alive_s
        while self._idle and (not self._idle[0].is_usable or self._idle[0].idle_since_s < oldest_s):
            self._drop(self._idle.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            self._drop(connection)
        return None

    def _give_back(self, connection: "_Connection") -> None:
        self._places.release()
        if connection.is_usable and connection in self._open:
            connection.idle_since_s = self._loop.time()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.abort()

    async def _connect(self) -> "_Connection":
        route = self._route
        connection = _Connection()
        direct = route.tls if route.tunnel is None else None
        _, _ = await self._loop.create_connection(
            lambda: connection,
            route.host,
            route.port,
            ssl=direct,
            server_hostname=route.server_name if direct else None,
            **self._connect_options,
        )
        if self._is_closed:
            connection.abort()
            raise ConnectionAbortedError
        self._open.add(connection)
        try:
            if route.tunnel is not None and route.tls is not None:
                await connection.tunnel(route.tunnel, route.tls, route.server_name)
        except BaseException:
            self._drop(connection)
            raise
        return connection


class NotReached(Exception):
    """Nothing was sent."""


@contextmanager
def _as_not_reached() -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError, BrokenAnswer) as error:  # a TimeoutError is an OSError, a name with .. the other
        raise NotReached(type(error).__name__) from error


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._whole: asyncio.Future[None] | None = None
        self._is_lost = False

    @property
    def is_usable(self) -> bool:
        """Whether it can carry another request."""
        return not self._is_lost and self._whole is None

    async def ask(self, raw: bytes, reader: AnswerReader) -> AnswerReader:
        """Sends a request and reads its whole answer. Raises BrokenAnswer, OSError."""
        if self._transport is None or self._is_lost:
            raise BrokenAnswer("ended before it was used")
        self._reader, self._whole = reader, asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        await self._whole
        self._reader = self._whole = None
        self._is_lost = self._is_lost or not reader.is_reusable
        return reader

    async def tunnel(self, connect: bytes, tls: ssl.SSLContext, server_name: str) -> None:
        """Asks a proxy for a tunnel, and speaks TLS in it. Raises BrokenAnswer, OSError."""
        reader = await self.ask(connect, AnswerReader(is_tunnel=True))
        if not 200 <= reader.status < 300:
            raise BrokenAnswer(f"the proxy answered {reader.status}")
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(self._transport, self, tls, server_hostname=server_name)
        if secured is None:
            raise BrokenAnswer("ended before it was secured")
        self._transport = secured
        self._is_lost = False

    def abort(self) -> None:
        """Gives it up, and whatever is on its way."""
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._reader is None or self._whole is None or self._whole.done():
            self.abort()  # nothing was asked
            return
        try:
            if self._reader.feed(data):
                self._whole.set_result(None)
        except BrokenAnswer as error:
            self._whole.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self._is_lost = True
        if self._reader is None or self._whole is None or self._whole.done():
            return
        if error is not None:
            self._whole.set_exception(error)
            return
        try:
            self._reader.end()
            self._whole.set_result(None)
        except BrokenAnswer as broken:
            self._whole.set_exception(broken)


@dataclass(frozen=True, slots=True)
class Route:
    """Where connections go. `tunnel`: a proxy's request for one; `proxy`: the headers for a proxy without one."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str
    tunnel: bytes | None = None
    proxy: str | None = None


def _find_route(url: SplitResult, config: HttpConfig) -> Route:
    host, port = _host_of(url), url.port or _PORTS[url.scheme]
    # loading certificates takes long, and plain HTTP needs none
    tls = (config.ssl_context or ssl.create_default_context()) if url.scheme == "https" else None
    found = getproxies() if config.trust_env else {}
    address = found.get(url.scheme) or found.get("all")
    if address is None or proxy_bypass(f"{host}:{port}"):
        return Route(host, port, tls, host)
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise OutboxConfigError(f"the environment names a proxy that is reached by {proxy.scheme}, not by http")
    login = _basic(unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else ""
    said = f"Proxy-Authorization: {login}\r\n" if login else ""
    place = f"{_bracketed(host)}:{port}"
    tunnel = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{said}\r\n".encode("latin-1") if tls else None
    return Route(_host_of(proxy), proxy.port or _PORTS["http"], tls, host, tunnel, said)


class RequestHead:
    """What all requests to a bridge begin with."""

    def __init__(self, url: SplitResult, config: HttpConfig, route: Route) -> None:
        host = _bracketed(_host_of(url)) + (f":{url.port}" if url.port not in {None, _PORTS[url.scheme]} else "")
        is_proxied = route.proxy is not None and route.tunnel is None
        self._prefix = (f"http://{host}" if is_proxied else "") + quote(url.path, safe=_IN_PATHS)
        headers = {
            "host": f"Host: {host}",
            "accept": "Accept: application/json, application/problem+json",
            "user-agent": "User-Agent: outbox-bridge-python",
        }
        if config.trust_env and (login := _find_login(_host_of(url))) is not None:
            headers["authorization"] = f"Authorization: {login}"
        headers |= {name.lower(): f"{name}: {value}" for name, value in config.headers.items()}
        lines = "\r\n".join(headers.values()) + "\r\n" + (route.proxy or "" if is_proxied else "")
        self._lines = lines.encode("latin-1")

    def encode(self, request: Request) -> bytes:
        """The bytes of a request."""
        start = f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n".encode("latin-1")
        if request.method == "GET":
            return b"%b%b\r\n" % (start, self._lines)
        first_ms, body = request.first_try_ms, request.body or b""
        first = b"" if first_ms is None else b"Outbox-First-Try: %d\r\n" % first_ms
        of_body = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (JSON.encode(), len(body))
        return b"%b%b%b%b\r\n%b" % (start, self._lines, first, of_body, body)


def _host_of(url: SplitResult) -> str:
    host = url.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _find_login(host: str) -> str | None:
    """What the user's netrc says."""
    with suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc().authenticators(host)
        if found is not None:
            return _basic(found[0], found[2] or "")
    return None
