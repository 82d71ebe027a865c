"""Serves the application with uvicorn: over TLS if asked, bounded, and drained before it ends."""

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import structlog
import uvicorn
from fastapi import FastAPI

from api.web.protocol import BoundedProtocol
from api.web.road import Road
from api.web.short_way import ShortWay
from api.web.transports import Certificates
from bridge.core.errors import ConfigError
from checker.endpoint_guard import is_loopback

# --- TLS between a connection and what serves it ---
# asyncio's own TLS tells of a connection only after its handshake, cannot end one side alone, and waits at the end for
# what the client says. This one is there from the first moment, so that connections before their handshake count, and
# it is bound by the times and buffers that bind a plain connection.

_RECORD_BYTES = 16 * 1024
_WRITTEN_BYTES = 256 * 1024  # enciphered at a time


class Secured(asyncio.Protocol):
    """A plain connection, for what listens; it tells `inner` what came, in clear, and whoever wants to know when it is
    secured."""

    def __init__(
        self, context: ssl.SSLContext, inner: asyncio.Protocol, on_secured: Callable[[ssl.SSLObject], None]
    ) -> None:
        self._inner: asyncio.Protocol | None = inner
        self._on_secured = on_secured
        self._context = context
        self._received = ssl.MemoryBIO()
        self._transport: SecuredTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Not secured yet: what is written before that is lost."""
        plain = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self._transport = SecuredTransport(plain, self._received, self._context)
        if self._inner is not None:
            self._inner.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        """A handshake, or records; broken ones end the connection."""
        transport, inner = self._transport, self._inner
        if transport is None or inner is None:
            return
        if transport.is_ended:  # nobody reads it any more, it is only counted
            inner.data_received(data)
            return
        self._received.write(data)
        was_secured = transport.is_secured
        clear, is_over = transport.read()
        if transport.is_secured and not was_secured and not transport.is_ended:
            self._on_secured(transport.tls)
        if clear:
            inner.data_received(clear)
        if is_over:
            transport.close()

    def eof_received(self) -> bool | None:
        """The client says no more."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of what it leads to: only a full garbage collection would free them together."""
        inner, self._inner, self._transport = self._inner, None, None
        if inner is not None:
            inner.connection_lost(exc)


class SecuredTransport(asyncio.Transport):
    """What is written here goes out enciphered, at once: buffers and their limits are those of the plain transport."""

    def __init__(self, plain: asyncio.Transport, received: ssl.MemoryBIO, context: ssl.SSLContext) -> None:
        super().__init__()
        self._plain = plain
        self._ready = ssl.MemoryBIO()  # enciphered, and to be sent
        self.tls = context.wrap_bio(received, self._ready, server_side=True)
        self.is_secured = False
        self.is_ended = False
        self.get_write_buffer_size = plain.get_write_buffer_size  # type: ignore[method-assign]
        self.is_closing = plain.is_closing  # type: ignore[method-assign]
        self.pause_reading = plain.pause_reading  # type: ignore[method-assign]
        self.resume_reading = plain.resume_reading  # type: ignore[method-assign]
        self.abort = plain.abort  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: object = None) -> object:
        """As asyncio's: `ssl_object` and `sslcontext` besides what the plain transport knows."""
        if name == "ssl_object":
            return self.tls
        return self.tls.context if name == "sslcontext" else self._plain.get_extra_info(name, default)

    def read(self) -> tuple[bytes, bool]:
        """What came, in clear, and whether nothing more will come."""
        try:
            if not self.is_secured:
                self.tls.do_handshake()
                self.is_secured = True
            return self._read_records()
        except ssl.SSLWantReadError:
            return b"", False
        except OSError:  # an SSLError is one: no TLS, none that is taken, a certificate that is not, a broken record
            self.is_ended = True  # its alert is the last word
            return b"", True
        finally:
            self._send()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """In pieces, so that there are not two of a large answer."""
        if not self.is_secured or self.is_ended:
            return
        left = memoryview(data)
        while left:
            try:
                written = self.tls.write(left[:_WRITTEN_BYTES])
            except OSError:  # after a fatal alert
                self.abort()
                return
            left = left[written:]
            self._send()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Ends our side, as RFC 8446 section 6.1 has it. What still comes is not deciphered."""
        self._end()
        self._plain.write_eof()

    def close(self) -> None:
        """Says that it ends, and waits for no answer to that."""
        self._end()
        self._plain.close()

    def _end(self) -> None:
        if self.is_secured and not self.is_ended:
            with suppress(OSError):  # it would wait for the client's end
                self.tls.unwrap()
            self._send()
        self.is_ended = True

    def _read_records(self) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        with suppress(ssl.SSLWantReadError):
            while piece := self.tls.read(_RECORD_BYTES):
                pieces.append(piece)
            return b"".join(pieces), True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), False

    def _send(self) -> None:
        if self._ready.pending and not self._plain.is_closing():
            self._plain.write(self._ready.read())


# --- serves the application with uvicorn: bounded, and drained before it ends ---

_LOG = structlog.get_logger()

EXIT_INTERRUPTED = 130
# not on loopback: browsers would want TLS of every other server of this machine too
_HSTS = ("strict-transport-security", "max-age=31536000")
_OTHER_FILES, _FILES_A_QUEUE = 256, 8


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where and how long is served."""

    host: str = "127.0.0.1"
    port: int = 8780
    backlog: int = 2_048
    keep_alive_s: int = 30
    drain_s: int = 10
    connections: int = 4_000
    head_s: float = 5.0
    send_s: float = 30.0
    reuse_port: bool = False  # several processes share the port; the system deals connections out to them
    allowed_hosts: Sequence[str] = ()  # names under which it is called besides its address
    certificates: Certificates | None = None  # for TLS


class _Server(uvicorn.Server):
    """uvicorn without its own signals: the process has other parts that must end in order."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """The HTTP server of a process. Binds at once, so that a taken port is known before anything starts."""

    def __init__(self, app: FastAPI, config: ServeConfig) -> None:
        self._config = config
        self._socket = bind(config.host, config.port, reuse_port=config.reuse_port)
        road: Road = app.state.road
        road.doorkeeper.listen(config.host, self.port, config.allowed_hosts)
        self._traffic = road.traffic
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_protocol_for(config, road),
                headers=[_HSTS] if self.is_secured and not is_loopback(config.host) else [],
                ws="none",
                loop="uvloop",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=config.backlog,
                timeout_keep_alive=config.keep_alive_s,
                timeout_graceful_shutdown=config.drain_s,
            )
        )

    @property
    def host(self) -> str:
        """Where it was told to listen."""
        return self._config.host

    @property
    def port(self) -> int:
        """The port it listens on, also if any was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def is_secured(self) -> bool:
        """Whether it speaks TLS."""
        return self._config.certificates is not None

    @property
    def is_started(self) -> bool:
        """Whether connections are accepted."""
        return self._server.is_listening.is_set()

    async def wait_started(self) -> None:
        """Returns when connections are accepted."""
        await self._server.is_listening.wait()

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Serves until `stop`; then takes nothing new, is not ready, and finishes what it has, bounded by drain_s."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self._server.serve(sockets=[self._socket]))
            watching = tasks.create_task(self._stop_at(stop))
            serving.add_done_callback(lambda _: watching.cancel())

    async def _stop_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        _LOG.info("draining", in_flight=self._traffic.in_flight, at_most_s=self._config.drain_s)
        self._traffic.drain()
        self._server.should_exit = True


def _protocol_for(config: ServeConfig, its_road: Road) -> type[asyncio.Protocol]:
    class Protocol(BoundedProtocol):
        idle: ClassVar[dict[BoundedProtocol, None]] = {}
        road = its_road
        short_way = ShortWay(its_road)
        budget = its_road.traffic.budget
        streams = its_road.traffic.streams
        max_connections = config.connections
        head_timeout_s = config.head_s
        send_timeout_s = config.send_s

    certificates = config.certificates
    if certificates is None:
        return Protocol

    def make_secured(**arguments: Any) -> Secured:  # noqa: ANN401 - uvicorn's
        protocol = Protocol(**arguments)

        def know(tls: ssl.SSLObject) -> None:
            if (peer := certificates.find_peer(tls)) is not None:
                protocol.know(peer)

        return Secured(certificates.context, protocol, know)

    return cast("type[asyncio.Protocol]", make_secured)


def fit_connections(wanted: int, open_files: int, queues: int) -> int:
    """How many connections fit beside what Kafka, SQL and calls of endpoints open, of so many files (RLIMIT_NOFILE)."""
    if open_files == resource.RLIM_INFINITY:
        return wanted
    rest = open_files - _OTHER_FILES - _FILES_A_QUEUE * queues
    return min(wanted, max(rest, open_files // 4, 1))


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that is ours from now on, or shared (SO_REUSEPORT, socket(7)). Raises ConfigError with what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen()  # two may bind one port; only the second one that listens hears that it is taken
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another with --port") from error
    listener.setblocking(False)
    return listener


def stop_at_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set `stop`; the second one ends the process at once, which is safe like any kill."""

    def on_signal() -> None:
        if stop.is_set():
            os._exit(EXIT_INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


async def finish_unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether it was done; where `stop` comes first it is cancelled. Raises what `work` raises."""
    tasks = working, _ = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
