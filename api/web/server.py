"""Serves the application with uvicorn: bounded, and drained before it ends."""

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import structlog
import uvicorn
from fastapi import FastAPI

from api.web.certificates import Certificates
from api.web.guard import is_loopback
from api.web.protocol import BoundedProtocol
from api.web.road import Road
from api.web.secured import Secured
from api.web.short_way import ShortWay
from bridge.core.errors import ConfigError

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
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
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
