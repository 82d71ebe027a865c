"""Requests to a bridge and answers, as HTTP/1.1 has them, and how it is reached. Source: RFC 9112."""

import base64
import math
import netrc
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from outbox.client.calls import JSON, Request
from outbox.client.config import HttpConfig, Renewed, renewed_proof, renewed_tls
from outbox.client.errors import OutboxConfigError

# --- requests to a bridge and answers, as HTTP/1.1 has them, and the way that they take ---

_PORTS = {"http": 80, "https": 443}
_IN_PATHS = "/%:@!$&'()*+,;=~-._"

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class BrokenAnswer(Exception):
    """The connection ended too early, or what came is no HTTP/1.1 answer."""


class AnswerReader:
    """One answer. `is_tunnel`: to CONNECT, whose success has no body.

    `is_reusable`: the connection may carry another request, once the answer is whole.
    """

    def __init__(self, *, is_tunnel: bool = False) -> None:
        self.status = 0
        self.retry_after: str | None = None
        self.kafka_time_ms = 0
        self.body = bytearray()
        self.is_whole = False
        self.is_reusable = False
        self._is_tunnel = is_tunnel
        self._left_bytes = 0
        self._unread = bytearray()
        self._step = AnswerReader._read_head  # bound to itself, it would be left to the garbage collector

    def feed(self, data: bytes) -> bool:
        """Takes what came; whether the answer is whole. Raises BrokenAnswer."""
        self._unread += data
        while not self.is_whole and self._step(self):
            pass
        if len(self.body) + len(self._unread) > MAX_ANSWER_BYTES:
            raise BrokenAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        if self.is_whole and self._unread:
            self.is_reusable = False  # nothing was asked that this could answer
        return self.is_whole

    def end(self) -> None:
        """The connection has ended, which is the end of an answer without a length. Raises BrokenAnswer."""
        if self._step is not AnswerReader._read_rest:
            raise BrokenAnswer("ended within the answer")
        self.is_whole = True

    def _read_head(self) -> bool:
        end = self._unread.find(b"\r\n\r\n")
        if end < 0 or end > _MAX_HEAD_BYTES:
            if len(self._unread) > _MAX_HEAD_BYTES:
                raise BrokenAnswer("a head without an end")
            return False
        first, *lines = bytes(self._unread[:end]).split(b"\r\n")
        del self._unread[: end + 4]
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise BrokenAnswer("no HTTP/1.1")
        self.status = int(match[2])
        if self.status >= 200:  # before that it is only an interim answer
            self._read_headers(_split_headers(lines), is_old=match[1] == b"0")
        elif self.status == 101:
            raise BrokenAnswer("another protocol")
        return True

    def _read_headers(self, headers: dict[bytes, list[bytes]], *, is_old: bool) -> None:
        retry_after = headers.get(b"retry-after")
        self.retry_after = retry_after[0].decode("latin-1") if retry_after else None
        told = headers.get(b"outbox-kafka-time", [b""])[0]
        self.kafka_time_ms = int(told) if _NUMBER.fullmatch(told) else 0
        options = b",".join(headers.get(b"connection", [])).lower()
        self.is_reusable = not is_old and b"close" not in options
        lengths, codings = set(headers.get(b"content-length", [])), headers.get(b"transfer-encoding", [])
        if self.status in {204, 304} or (self._is_tunnel and self.status < 300):
            self.is_whole = True
        elif codings:
            if [coding.lower() for coding in codings] != [b"chunked"]:
                raise BrokenAnswer("a transfer coding that was not asked for")
            self.is_reusable = self.is_reusable and not lengths
            self._step = AnswerReader._read_chunk_size
        elif lengths:
            self._expect(lengths)
        else:
            self.is_reusable = False
            self._step = AnswerReader._read_rest

    def _expect(self, lengths: set[bytes]) -> None:
        length = lengths.pop()
        if lengths or _NUMBER.fullmatch(length) is None:
            raise BrokenAnswer("a length that is none")
        self._left_bytes = int(length)
        self._step = AnswerReader._read_length

    def _read_length(self) -> bool:
        self._take()
        self.is_whole = self._left_bytes == 0
        return False

    def _read_rest(self) -> bool:
        self.body += self._unread
        self._unread.clear()
        return False

    def _read_chunk_size(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise BrokenAnswer("a chunk without its size")
        self._left_bytes = int(match[1], 16)
        self._step = AnswerReader._read_chunk if self._left_bytes else AnswerReader._read_trailer
        return True

    def _read_chunk(self) -> bool:
        self._take()
        if self._left_bytes or len(self._unread) < 2:
            return False
        if self._take_line() != b"":
            raise BrokenAnswer("a chunk longer than its size")
        self._step = AnswerReader._read_chunk_size
        return True

    def _read_trailer(self) -> bool:
        line = self._take_line()
        self.is_whole = line == b""
        return line is not None

    def _take(self) -> None:
        """Moves what belongs to the body."""
        part = self._unread[: self._left_bytes]
        self.body += part
        del self._unread[: len(part)]
        self._left_bytes -= len(part)

    def _take_line(self) -> bytes | None:
        end = self._unread.find(b"\r\n")
        if end < 0:
            if len(self._unread) > _MAX_HEAD_BYTES:
                raise BrokenAnswer("a line without an end")
            return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 2]
        return line


def _split_headers(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    headers: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise BrokenAnswer("a header that is none")
        headers.setdefault(name.lower(), []).append(value.strip(b" \t"))
    return headers


@dataclass(frozen=True, slots=True)
class Route:
    """Where connections go. `tunnel`: a proxy's request for one; `proxy`: the headers for a proxy without one."""

    host: str
    port: int
    tls: Renewed[ssl.SSLContext] | None
    server_name: str
    tunnel: bytes | None = None
    proxy: str | None = None


def find_route(url: SplitResult, config: HttpConfig) -> Route:
    """The way to this address. Raises OutboxConfigError."""
    host, port = _host_of(url), url.port or _PORTS[url.scheme]
    # loading certificates takes long, and plain HTTP needs none
    tls = renewed_tls(config) if url.scheme == "https" else None
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
        self._first = headers
        self._own = config.headers
        self._last = route.proxy or "" if is_proxied else ""
        self._proof = renewed_proof(config)
        self._lines = self._write_lines()

    def encode(self, request: Request) -> bytes:
        """The bytes of a request."""
        if self._proof.look(time.monotonic()):
            self._lines = self._write_lines()
        start = f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n".encode("latin-1")
        if request.method == "GET":
            return b"%b%b\r\n" % (start, self._lines)
        first_ms, body = request.first_try_ms, request.body or b""
        first = b"" if first_ms is None else b"Outbox-First-Try: %d\r\n" % first_ms
        prefer = b"Prefer: respond-async\r\n" if request.prefers_async else b""
        of_body = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (JSON.encode(), len(body))
        return b"%b%b%b%b%b\r\n%b" % (start, self._lines, first, prefer, of_body, body)

    def _write_lines(self) -> bytes:
        """Headers with one name count once, the caller's own last."""
        named = {**self._proof.current, **self._own}
        headers = self._first | {name.lower(): f"{name}: {value}" for name, value in named.items()}
        return ("\r\n".join(headers.values()) + "\r\n" + self._last).encode("latin-1")


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


# --- how a bridge is reached, and in words why it was not ---

OTHER_ADDRESS_S = 0.25  # a name with several addresses: the next one is tried too. Source: RFC 8305
_MAX_TIMEOUT_S = 1_000_000.0  # a socket counts in milliseconds, in 31 bits
_AddressInfo: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo has it
LookedUp: TypeAlias = Sequence[_AddressInfo] | OSError | UnicodeError


class NotReached(Exception):
    """Nothing was sent. `is_ours`: for want of a free connection, which says nothing of the bridge."""

    is_ours = False


class NoneFree(NotReached):
    """All connections are in use."""

    is_ours = True


@contextmanager
def as_not_reached() -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError, BrokenAnswer) as error:  # a TimeoutError is an OSError, a name with .. the other
        raise NotReached(name_failure(error)) from error


def name_failure(error: BaseException) -> str:
    """What happened, in words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or type(error).__name__}"
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, BrokenAnswer):
        return str(error)
    said = error.strerror if isinstance(error, OSError) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def reach(host: str, port: int, deadline_s: float) -> socket.socket:
    """A connected socket. Each of several addresses has a moment to answer before all have the time that is left."""
    addresses = _find_addresses(host, port, deadline_s)
    failed: OSError = TimeoutError()
    for patience_s in (OTHER_ADDRESS_S, math.inf) if len(addresses) > 1 else (math.inf,):
        for family, kind, protocol, _, address in addresses:
            connecting = socket.socket(family, kind, protocol)
            try:
                connecting.settimeout(min(patience_s, left_s(deadline_s)))
                connecting.connect(address)
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                connecting.close()
                failed = error
            except BaseException:
                connecting.close()
                raise
            else:
                return connecting
    raise failed


def _find_addresses(host: str, port: int, deadline_s: float) -> Sequence[_AddressInfo]:
    if numeric := read_numeric(host, port):
        return numeric
    # by its module, as the thread is: gevent puts its own in their place, and the other kind would never be woken
    found: queue.SimpleQueue[LookedUp] = queue.SimpleQueue()
    look_up(host, port, found.put)
    try:
        told = found.get(timeout=left_s(deadline_s))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(told, Exception):
        raise told
    return told


def read_numeric(host: str, port: int) -> Sequence[_AddressInfo]:
    """Of an address, for which nobody need be asked; empty for a name."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return ()


def look_up(host: str, port: int, tell: Callable[[LookedUp], object]) -> None:
    """A thread asks, and is left behind if a name server is silent: asking has no time limit of its own."""

    def look() -> None:
        try:
            tell(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            tell(error)

    threading.Thread(target=look, name="outbox-resolve", daemon=True).start()


def left_s(deadline_s: float) -> float:
    """Raises TimeoutError if none is left: a socket would take 0 for no blocking at all."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return min(left_s, _MAX_TIMEOUT_S)
