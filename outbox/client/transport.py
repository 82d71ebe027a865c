"""Connections to one bridge, kept for the next request: for threads, or for an event loop."""

import asyncio
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from outbox.client.calls import Request
from outbox.client.config import HttpConfig
from outbox.client.http_messages import (
    OTHER_ADDRESS_S,
    AnswerReader,
    BrokenAnswer,
    LookedUp,
    NoneFree,
    NotReached,
    RequestHead,
    as_not_reached,
    find_route,
    left_s,
    look_up,
    name_failure,
    reach,
    read_numeric,
)
from outbox.client.replies import Answer, NoReply

_RECEIVED_BYTES = 64 * 1024


class Connection(Protocol):
    """One request at a time. `idle_since_s`: when the last one ended."""

    idle_since_s: float

    @property
    def is_usable(self) -> bool:
        """Whether it can carry another request."""
        ...

    async def ask(self, raw: bytes, reader: AnswerReader, deadline_s: float) -> AnswerReader:
        """Sends a request and reads its whole answer. Raises BrokenAnswer, OSError."""
        ...

    def abort(self) -> None:
        """Gives it up, and whatever is on its way."""
        ...


C = TypeVar("C", bound=Connection)


class Transport(Generic[C]):
    """Sends requests and reads their answers; this much is the same for threads and for event loops."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        self.is_closed = False
        self._config = config
        self._route = find_route(urlsplit(url), config)
        self._head = RequestHead(urlsplit(url), config, self._route)
        self._lock = threading.Lock()
        self._idle: deque[C] = deque()
        self._open: set[C] = set()
        self._stale: set[C] = set()  # in use, and made with certificates that have been renewed since

    async def exchange(self, request: Request, timeout_s: float) -> Answer | NoReply:
        """One request and its whole answer; never raises for what happens on the way."""
        if self.is_closed:
            return NoReply("closed before it was sent", is_sent=False)
        raw = self._head.encode(request)
        deadline_s = self.now() + timeout_s
        connection: C | None = None
        try:
            connection = await self._take(deadline_s)
            reader = await connection.ask(raw, AnswerReader(), deadline_s)
            received = None if reader.retry_after is None else datetime.now(UTC)
            return Answer(reader.status, bytes(reader.body), reader.retry_after, received, reader.kafka_time_ms)
        except NotReached as error:
            return NoReply(f"not reached: {error}", False, is_away=not error.is_ours, cause=error.__cause__)
        except TimeoutError as error:
            return NoReply(f"no answer within {timeout_s:.1f} s", is_away=True, cause=error)
        except (BrokenAnswer, OSError) as error:
            return NoReply(f"the connection broke: {name_failure(error)}", is_away=True, cause=error)
        finally:
            if connection is not None:
                self._give_back(connection)

    def now(self) -> float:
        """Seconds of a clock that is never set."""
        raise NotImplementedError

    async def pause(self, pause_s: float) -> None:
        """Waits so long, or until it is closed."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes all connections, and those that are only being made."""
        raise NotImplementedError

    async def _take(self, deadline_s: float) -> C:
        """A connection to send on. Raises NotReached."""
        raise NotImplementedError

    def _none_free(self) -> NotReached:
        return NoneFree(f"all {self._config.max_connections} connections are in use")

    def _take_idle(self) -> C | None:
        """The one used last; those that have been idle for too long are closed."""
        now_s = self.now()
        oldest_s = now_s - self._config.keep_alive_s
        with self._lock:
            if self._route.tls is not None and self._route.tls.look(now_s):
                self._stale = set(self._open)
            while self._idle and self._idle[0].idle_since_s < oldest_s:
                self._drop(self._idle.popleft())
            while self._idle:
                connection = self._idle.pop()
                if self._can_go_on(connection):
                    return connection
                self._drop(connection)
        return None

    def _can_go_on(self, connection: C) -> bool:
        return connection not in self._stale and connection.is_usable

    def _give_back(self, connection: C) -> None:
        with self._lock:
            if connection in self._open and self._can_go_on(connection):
                connection.idle_since_s = self.now()
                self._idle.append(connection)
            else:
                self._drop(connection)

    def _drop(self, connection: C) -> None:
        self._open.discard(connection)
        self._stale.discard(connection)
        connection.abort()


class LoopTransport(Transport["_LoopConnection"]):
    """Belongs to the event loop it is made in."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        super().__init__(url, config)
        self._loop = asyncio.get_running_loop()
        self._connect_options: dict[str, Any] = {}
        if isinstance(self._loop, asyncio.BaseEventLoop):  # uvloop's does not know it
            self._connect_options["happy_eyeballs_delay"] = OTHER_ADDRESS_S
        self._places = asyncio.Semaphore(config.max_connections)
        self._closed = asyncio.Event()

    def now(self) -> float:
        return self._loop.time()

    async def pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._closed.wait()

    async def close(self) -> None:
        self.is_closed = True
        self._closed.set()
        self._idle.clear()
        for connection in self._open:
            connection.abort()
        self._open.clear()
        await asyncio.sleep(0)  # the loop closes them in its next turn

    async def _take(self, deadline_s: float) -> "_LoopConnection":
        if not self._places.locked():
            await self._places.acquire()  # at once
            if (idle := self._take_idle()) is not None:
                return idle
            self._places.release()
        connect_s = min(deadline_s, self.now() + self._config.connect_timeout_s)
        try:
            async with asyncio.timeout_at(connect_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise self._none_free() from error
        with as_not_reached():
            try:
                async with asyncio.timeout_at(connect_s):
                    return self._take_idle() or await self._connect(deadline_s)
            except BaseException:
                self._places.release()
                raise

    def _give_back(self, connection: "_LoopConnection") -> None:
        self._places.release()
        super()._give_back(connection)

    async def _await_name(self) -> None:
        """Returns once the name server has answered. The loop asks it on threads that are the service's too, and few:
        a silent one would hold them all."""
        host, port, found = self._route.host, self._route.port, self._loop.create_future()

        def note(told: LookedUp) -> None:
            if isinstance(told, Exception) and not found.done():
                found.set_exception(told)
            elif not found.done():
                found.set_result(told)

        def tell(told: LookedUp) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(note, told)

        if not read_numeric(host, port):
            look_up(host, port, tell)
            await found

    async def _connect(self, deadline_s: float) -> "_LoopConnection":
        route = self._route
        await self._await_name()
        connection = _LoopConnection()
        direct = route.tls.current if route.tls is not None and route.tunnel is None else None
        _, _ = await self._loop.create_connection(
            lambda: connection,
            route.host,
            route.port,
            ssl=direct,
            server_hostname=route.server_name if direct else None,
            **self._connect_options,
        )
        if self.is_closed:
            connection.abort()
            raise ConnectionAbortedError
        self._open.add(connection)
        try:
            if route.tunnel is not None and route.tls is not None:
                await _open_tunnel(connection, route.tunnel, deadline_s)
                await connection.secure(route.tls.current, route.server_name)
        except BaseException:
            self._drop(connection)
            raise
        return connection


async def _open_tunnel(connection: Connection, connect: bytes, deadline_s: float) -> None:
    """Asks a proxy for one. Raises BrokenAnswer, OSError."""
    reader = await connection.ask(connect, AnswerReader(is_tunnel=True), deadline_s)
    if not 200 <= reader.status < 300:
        raise BrokenAnswer(f"the proxy answered {reader.status}")


class _LoopConnection(asyncio.Protocol):
    """Read by its event loop."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._whole: asyncio.Future[None] | None = None
        self._is_lost = False

    @property
    def is_usable(self) -> bool:
        return not self._is_lost and self._whole is None

    async def ask(self, raw: bytes, reader: AnswerReader, deadline_s: float) -> AnswerReader:
        if self._transport is None or self._is_lost:
            raise BrokenAnswer("ended before it was used")
        self._reader, self._whole = reader, asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        async with asyncio.timeout_at(deadline_s):
            await self._whole
        self._reader = self._whole = None
        self._is_lost = self._is_lost or not reader.is_reusable
        return reader

    async def secure(self, tls: ssl.SSLContext, server_name: str) -> None:
        """Speaks TLS from now on. Raises BrokenAnswer, OSError."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(self._transport, self, tls, server_hostname=server_name)
        if secured is None:
            raise BrokenAnswer("ended before it was secured")
        self._transport = secured
        self._is_lost = False

    def abort(self) -> None:
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._whole is None or self._whole.done():
            self.abort()  # nothing was asked
            return
        try:
            if self._reader.feed(data):
                self._whole.set_result(None)
        except BrokenAnswer as error:
            self._whole.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
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


class ThreadTransport(Transport["_ThreadConnection"]):
    """For threads: each sends and reads by itself. Its coroutines never suspend."""

    def __init__(self, url: str, config: HttpConfig) -> None:
        super().__init__(url, config)
        self._places = threading.Semaphore(config.max_connections)
        self._closed = threading.Event()
        self._finalizer = weakref.finalize(self, _abort_all, self._open)

    def now(self) -> float:
        return time.monotonic()

    async def pause(self, pause_s: float) -> None:
        self._closed.wait(pause_s)

    async def close(self) -> None:
        """Those that are used are cut off: the threads that use them close them then."""
        self.is_closed = True
        self._closed.set()
        with self._lock:
            used = self._open.difference(self._idle)
            _abort_all(self._idle)
            self._idle.clear()
            self._open.clear()
        for connection in used:
            connection.cut()

    def abandon(self) -> None:
        """After a fork: what is closed here goes on in the parent."""
        _abort_all(self._open)
        self._open.clear()

    async def _take(self, deadline_s: float) -> "_ThreadConnection":
        connect_s = min(deadline_s, self.now() + self._config.connect_timeout_s)
        if not self._places.acquire(timeout=max(0.0, connect_s - self.now())):
            raise self._none_free()
        with as_not_reached():
            try:
                return self._take_idle() or await self._connect(connect_s)
            except BaseException:
                self._places.release()
                raise

    def _give_back(self, connection: "_ThreadConnection") -> None:
        self._places.release()
        super()._give_back(connection)

    async def _connect(self, deadline_s: float) -> "_ThreadConnection":
        route = self._route
        connection = _ThreadConnection(reach(route.host, route.port, deadline_s))
        try:
            if route.tunnel is not None:
                await _open_tunnel(connection, route.tunnel, deadline_s)
            if route.tls is not None:
                connection.secure(route.tls.current, route.server_name, deadline_s)
            self._note_open(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _note_open(self, connection: "_ThreadConnection") -> None:
        with self._lock:
            if self.is_closed:
                raise ConnectionAbortedError
            self._open.add(connection)


def _abort_all(connections: Iterable["_ThreadConnection"]) -> None:
    for connection in list(connections):
        connection.abort()


class _ThreadConnection:
    """Read by the thread that uses it."""

    def __init__(self, connected: socket.socket) -> None:
        self.idle_since_s = 0.0
        self._socket = connected
        self._is_lost = False

    @property
    def is_usable(self) -> bool:
        if self._is_lost:
            return False
        self._socket.settimeout(0)
        try:  # past TLS: whatever has come by itself, or the end, is no answer to what is asked next
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def ask(self, raw: bytes, reader: AnswerReader, deadline_s: float) -> AnswerReader:
        self._is_lost = True  # unless it comes to its end
        self._socket.settimeout(left_s(deadline_s))
        self._socket.sendall(raw)
        while True:
            self._socket.settimeout(left_s(deadline_s))
            received = self._socket.recv(_RECEIVED_BYTES)
            if not received:
                reader.end()
                return reader
            if reader.feed(received):
                self._is_lost = not reader.is_reusable
                return reader

    def secure(self, tls: ssl.SSLContext, server_name: str, deadline_s: float) -> None:
        """Speaks TLS from now on. Raises OSError."""
        self._socket.settimeout(left_s(deadline_s))
        self._socket = tls.wrap_socket(self._socket, server_hostname=server_name)
        self._is_lost = False

    def cut(self) -> None:
        """Ends what another thread waits for."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def abort(self) -> None:
        self._is_lost = True
        self._socket.close()
