"""The port of the door: connections, plain or by TLS on one port, each within limits, so that none slows another."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import cast

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from api.remoting.door import Door, DoorConfig, DoorParts
from api.remoting.frame import BadFrame, FrameBuffer, HeaderType
from api.remoting.gathering import FirstTries
from api.remoting.groups import ConnectedGroups, RemotingCallers
from api.remoting.message import KeyRule, RequestCode
from api.settings import Settings
from api.web.limits import ByteBudget, Quotas
from api.web.metrics import PREFIX
from api.web.server import Secured, bind
from api.web.transports import Certificates
from bridge.core.grants import Rights
from bridge.node import Node
from bridge.service.access import Caller

# --- the port of the door ---

_LOG = structlog.get_logger()
_HANDSHAKE = 0x16  # the first byte of TLS; a frame begins with 0, as none is longer than 16 MiB
_TURN_FRAMES, _TURN_S = 64, 0.01  # of one connection, before others have their turn
_MOST_READ_BYTES = 64 * 1024  # of frames that wait for their turn
_HIGH_BYTES = 1024 * 1024
_NOBODY = Caller("", Rights(()))
_SWEEP_S, _DRAIN_LOOK_S = 1.0, 0.02


@dataclass(frozen=True, slots=True)
class PortConfig:
    """Where the door listens, and its patience. `frame_s`: for a frame to become whole, or the first one to come;
    `idle_s`: clients say every 30 s that they are there; `send_s`: for a client to read what it was sent."""

    host: str = "127.0.0.1"
    port: int = 9876
    max_frame_bytes: int = 4 * 1024 * 1024
    connections: int = 2_000
    backlog: int = 2_048
    frame_s: float = 15
    idle_s: float = 120
    send_s: float = 30
    drain_s: float = 10
    is_plain_taken: bool = True
    certificates: Certificates | None = None
    budget: ByteBudget = field(default_factory=ByteBudget)  # of what has come of frames, on all connections


class RemotingConnection(asyncio.Protocol):
    """One client. Frames are handled in turns with those of other connections."""

    def __init__(self, server: "RemotingServer") -> None:
        self.header_type = HeaderType.JSON
        self.caller = _NOBODY
        self.groups: set[str] = set()
        self.tries = FirstTries()
        self._server = server
        self._buffer = FrameBuffer(server.config.max_frame_bytes)
        self._held_bytes = 0  # of the budget
        self._transport: asyncio.Transport | None = None
        self.is_behind = False  # frames wait for their turn
        now = server.now()
        self._heard_at = self._began_at = now
        self._is_whole = False  # between two frames
        self._stuck_at: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it reads what it is sent."""
        return self._transport is not None and self._stuck_at is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts from now on."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections[self] = None

    def data_received(self, data: bytes) -> None:
        """Keeps what has come as it came: what is decoded takes many times as much."""
        if self._transport is None:
            return
        now = self._server.now()
        if self._is_whole:
            self._began_at = now
        self._heard_at = now
        self._buffer.add(data)
        if not self.is_behind:
            self._work()
        if (held := self._count_held()) and self._server.config.budget.is_over(0, held):
            self._server.refuse(self, "too many bytes of frames are held")

    def _work(self) -> None:
        """As many frames as are one turn; of a client that has gone, the ends that had come."""
        frames, end, taken = self._buffer.take(), perf_counter() + _TURN_S, 0
        self.is_behind = False
        try:
            for taken, request in enumerate(frames, 1):
                self.header_type = request.header_type
                if self._transport is not None or request.code == RequestCode.END_TRANSACTION:
                    self._server.door.take(self, request)
                if taken == _TURN_FRAMES or perf_counter() >= end:
                    self.is_behind = True
                    break
        except BadFrame as error:
            self._server.refuse(self, str(error))
            return
        finally:
            frames.close()  # what was taken is dropped
        if taken:
            self._began_at = self._server.now()
        self._is_whole = not len(self._buffer)
        if self.is_behind:
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._transport is None or self._stuck_at is not None:
            return
        if not self.is_behind:
            self._transport.resume_reading()
        elif len(self._buffer) > _MOST_READ_BYTES:
            self._transport.pause_reading()

    def _go_on(self) -> None:
        self._work()
        self._forget_rest()
        self._count_held()

    def _forget_rest(self) -> None:
        if self._transport is None and not self.is_behind:
            self._buffer.clear()

    def _count_held(self) -> int:
        held = len(self._buffer)
        self._server.config.budget.used += held - self._held_bytes
        self._held_bytes = held
        return held

    def send(self, frame: bytes) -> None:
        """Writes a frame; to one who is gone, nothing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def pause_writing(self) -> None:
        """Reads no more requests of a client that does not read their answers."""
        self._stuck_at = self._server.now()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self._stuck_at = None
        if self._transport is not None and not self.is_behind:
            self._transport.resume_reading()

    def look(self, now: float) -> str | None:
        """Why the connection is ended now."""
        config = self._server.config
        if self._stuck_at is not None and now - self._stuck_at > config.send_s:
            return "it does not read what it is sent"
        if not self._is_whole and now - self._began_at > config.frame_s:
            return "its frame did not become whole"
        return "it said nothing" if now - self._heard_at > config.idle_s else None

    def connection_lost(self, exc: Exception | None) -> None:
        """It speaks for nobody any more."""
        self._transport = None
        self._forget_rest()
        self._count_held()
        self._server.connections.pop(self, None)
        self._server.door.leave(self)

    def close(self, *, at_once: bool = True) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort() if at_once else self._transport.close()


class _FirstByte(asyncio.Protocol):
    """A connection until its first byte says whether it speaks TLS."""

    def __init__(self, server: "RemotingServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One too many is closed at once; one that says nothing, soon."""
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        if len(server.connections) + len(server.strangers) >= server.config.connections:
            server.refused_connections += 1
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        server.strangers.add(self)
        self._timer = asyncio.get_running_loop().call_later(server.config.frame_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Hands the connection over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._forget()
        inner, server = self._server.make_connection(), self._server
        certificates, protocol = server.config.certificates, cast("asyncio.Protocol", inner)
        is_secured = data[0] == _HANDSHAKE
        if is_secured and certificates is not None:
            protocol = Secured(certificates.context, inner, _know_nobody)
        elif is_secured or not server.config.is_plain_taken:
            server.refused_connections += 1
            told = "its client speaks TLS, and remoting.tls is off" if is_secured else "remoting.tls is required"
            _LOG.info("remoting_connection_ended", reason=told)
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It never said anything."""
        self._forget()

    def _forget(self) -> None:
        self._server.strangers.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def _know_nobody(tls: ssl.SSLObject) -> None:
    """A certificate of a client says nothing here."""


class RemotingServer:
    """The door of a process. Binds at once, so that a taken port is known before anything starts."""

    now = staticmethod(monotonic)

    def __init__(self, make: Callable[[int], tuple[Door, ConnectedGroups]], config: PortConfig) -> None:
        self.config = config
        self.connections: dict[RemotingConnection, None] = {}
        self.strangers: set[_FirstByte] = set()
        self.refused_connections = 0
        self._socket = bind(config.host, config.port)
        self.door, self.groups = make(self.port)
        self._is_started = asyncio.Event()

    @property
    def port(self) -> int:
        """The port it listens on, also if any was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    def make_connection(self) -> RemotingConnection:
        """For a client that has said something."""
        return RemotingConnection(self)

    def refuse(self, connection: RemotingConnection, reason: str) -> None:
        """Ends a connection of which nothing can be expected any more."""
        _LOG.info("remoting_connection_ended", reason=reason)
        connection.close()

    def copy_metrics(self) -> Iterable[Metric]:
        """Of connections, sends, ends and checks."""
        sends, checks = self.door.totals, self.groups.totals
        yield GaugeMetricFamily(
            f"{PREFIX}remoting_connections", "Connections of RocketMQ's clients.", value=len(self.connections)
        )
        counters = {
            "connections_refused": ("Connections that were closed at once.", self.refused_connections),
            "sends": ("Messages that clients sent.", sends.sends),
            "sends_refused": ("Of them, those that were not stored, or perhaps not.", sends.refused),
            "first_tries": ("Of them, those that needed no look-up: their keys were new.", sends.first_tries),
            "ends": ("Ends of transactions, answers to checks included.", sends.ends),
            "ends_strange": ("Ends that name nothing which the bridge has given out.", sends.strange_ends),
            "ends_repeated": ("Times an end that may have been lost was put again.", sends.insisted),
            "ends_given_up": ("Ends that could not be put for a minute; a check finds out.", sends.given_up),
            "unauthenticated": ("Requests without a valid signature.", sends.unproven),
            "checks_sent": ("Checks sent to a connection of their group.", checks.sent),
            "checks_given_back": ("Checks claimed when no connection was left, given back unused.", checks.homeless),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{PREFIX}remoting_{name}", text, value=value)

    async def wait_started(self) -> None:
        """Returns when connections are accepted."""
        await self._is_started.wait()

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Serves until `stop`; then takes no sends, and gives those that it has, and ends, time to be kept."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: _FirstByte(self), sock=self._socket, backlog=self.config.backlog)
        self._is_started.set()
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            await stop.wait()
        finally:
            sweeping.cancel()
            listener.close()
            await self.groups.close()
        await self._drain()

    async def _drain(self) -> None:
        self.door.is_draining = True
        end = self.now() + self.config.drain_s
        while self._is_at_work() and self.now() < end:  # noqa: ASYNC110 - bounded, and at the end of a process only
            await asyncio.sleep(_DRAIN_LOOK_S)
        for connection in list(self.connections):
            connection.close(at_once=False)
        await asyncio.sleep(_DRAIN_LOOK_S)
        for connection in list(self.connections):
            connection.close()

    def _is_at_work(self) -> bool:
        return not self.door.is_idle or any(connection.is_behind for connection in self.connections)

    async def _sweep(self) -> None:
        """One timer for all connections."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.now()
            self.door.review(self.connections)
            for connection in list(self.connections):
                if (reason := connection.look(now)) is not None:
                    self.refuse(connection, reason)


# --- puts the door of a process together: settings, the node's service, the port ---

_BESIDE_BYTES = 512 * 1024  # of a frame: header and batch framing
_ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not listened on, but not advertised


def open_door(settings: Settings, node: Node, certificates: Certificates | None) -> RemotingServer:
    """The door, listening already. Raises ConfigError if the port is taken."""
    wanted, limits, clock = settings.remoting, settings.limits, node.backing.clock
    has_tls = wanted.tls != "off"
    budget = ByteBudget(limits.in_flight_bytes)
    config = PortConfig(
        wanted.host,
        wanted.port,
        max_frame_bytes=limits.body_bytes + _BESIDE_BYTES,
        connections=wanted.connections,
        drain_s=settings.http.drain_seconds,
        is_plain_taken=wanted.tls != "required",
        certificates=certificates if has_tls else None,
        budget=budget,
    )

    def make(port: int) -> tuple[Door, ConnectedGroups]:
        host = "127.0.0.1" if wanted.host in _ANY_HOST else wanted.host
        address = wanted.advertise or f"{host}:{port}"
        groups = ConnectedGroups(node.claims, node.directory, lambda: node.nonces, clock, address)
        rule = KeyRule(wanted.key_from, frozenset(wanted.dropped_properties), limits.headers_per_message)
        door_config = DoorConfig(address, limits.message_bytes, rule, limits.requests_in_flight, budget)
        callers = RemotingCallers(node.signing)
        quotas = Quotas(settings.quotas.of_principal, limits.requests_in_flight)
        parts = DoorParts(node.transactions, node.directory, groups, callers, lambda: node.nonces, clock, quotas)
        return Door(parts, door_config), groups

    return RemotingServer(make, config)
