"""A TCP proxy before a broker that knows where Kafka's requests begin, what they are, and can hold one back.

with proxied_broker() as broker:                                # clients of `broker.proxy.bootstrap` pass the proxy,
    gate = broker.proxy.hold(END_TXN, client="-0")              # those of `broker.direct` do not
    ...
    frame = gate.wait_caught()                                  # the first such request; all behind it waits too
    gate.cut()                                                  # its connection is lost, the broker never saw it
    error = broker.proxy.deliver(frame)                         # a copy arrives after all
"""

import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bridge.broker.dev_broker import DevBroker
from bridge.broker.ports import choose_free_port

PRODUCE, OFFSET_FETCH, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 9, 22, 24, 26
_FLEXIBLE_END_TXN = 3
_WAIT_S = 40.0


class Frame(NamedTuple):
    """A request, or the reply to one. `raw` begins with the four bytes of its size."""

    api_key: int
    api_version: int
    client_id: str
    raw: bytes


class Gate:
    """Holds the first frame that fits, and all behind it on its connection and way, until it is opened or cut."""

    def __init__(self, api_key: int, client: str, containing: bytes, *, is_reply: bool) -> None:
        self.is_reply = is_reply
        self._wanted = (api_key, client, containing)
        self._caught = threading.Event()
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._frame: Frame | None = None
        self.is_cut = False

    def wait_caught(self, seconds: float = _WAIT_S) -> Frame:
        """The frame that is held."""
        assert self._caught.wait(seconds), f"nothing like {self._wanted} came by in {seconds} s"
        assert self._frame is not None
        return self._frame

    @property
    def has_caught(self) -> bool:
        return self._caught.is_set()

    @property
    def is_done(self) -> bool:
        """Whether it will never hold anything again."""
        return self._open.is_set()

    def open(self) -> None:
        """Lets the held frame, and everything later, pass."""
        self._open.set()

    def cut(self) -> None:
        """The connection of the held frame breaks; the frame is never forwarded."""
        self.is_cut = True
        self._open.set()

    def replace(self, raw: bytes) -> None:
        """These bytes pass in place of the held frame; everything later as it is."""
        assert self._frame is not None
        self._frame = self._frame._replace(raw=raw)
        self._open.set()

    def take(self, frame: Frame) -> bool:
        """Whether this frame is the one to hold. The first wins."""
        api_key, client, containing = self._wanted
        fits = frame.api_key == api_key and client in frame.client_id and containing in frame.raw
        with self._lock:
            if not fits or self._frame is not None or self._open.is_set():
                return False
            self._frame = frame
        self._caught.set()
        return True

    def pass_through(self) -> bytes | None:
        """Waits until the gate opens; what goes on then, None if the connection is to be cut."""
        self._open.wait()
        return None if self.is_cut or self._frame is None else self._frame.raw


class KafkaProxy:
    """Forwards connections to one broker on loopback."""

    def __init__(self, port: int, upstream_port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._upstream = ("127.0.0.1", upstream_port)
        self._gates: list[Gate] = []
        self._links: list[_Link] = []
        self._is_closing = False
        self._last_accepted = time.monotonic()
        self.delay_s = 0.0  # before each frame, in both directions: a slow network
        self.is_refusing = False  # nobody gets a connection
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._thread.start()

    def hold(self, api_key: int, *, client: str = "", containing: bytes = b"", is_reply: bool = False) -> Gate:
        """A closed gate for the next request (or reply) of this kind. `client`: a part of the client id."""
        gate = Gate(api_key, client, containing, is_reply=is_reply)
        self._gates = [each for each in self._gates if not each.is_done] + [gate]
        return gate

    def deliver(self, frame: Frame) -> int:
        """Sends a copy of a request over a connection of its own; the error code of an EndTxn's reply, else 0."""
        with socket.create_connection(self._upstream, timeout=_WAIT_S) as connection:
            connection.sendall(frame.raw)
            reply = _read_frame(connection)
        assert reply is not None, "the broker closed the connection"
        if frame.api_key != END_TXN:
            return 0
        start = 8 + (1 if frame.api_version >= _FLEXIBLE_END_TXN else 0) + 4  # size, correlation, tags, throttle
        code: int = struct.unpack_from(">h", reply, start)[0]
        return code

    @property
    def youngest_s(self) -> float:
        """The age of the youngest connection."""
        return time.monotonic() - self._last_accepted

    def cut(self, share: float, choice: random.Random) -> int:
        """Breaks this share of the connections; their number."""
        links = [link for link in self._links if not link.is_over]
        chosen = choice.sample(links, round(len(links) * share))
        for link in chosen:
            link.close()
        return len(chosen)

    def deafen(self) -> None:
        """Connections that exist stay, and nothing passes them any more; new ones are as ever."""
        for link in self._links:
            link.is_deaf = True

    def close(self) -> None:
        """Opens all gates and ends all connections."""
        self._is_closing = True
        self.is_over.set()
        for gate in self._gates:
            gate.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for link in self._links:
            link.close()
            link.join()

    def find_gate(self, frame: Frame, *, is_reply: bool) -> Gate | None:
        """The gate that holds this frame, if one does."""
        return next((gate for gate in self._gates if gate.is_reply == is_reply and gate.take(frame)), None)

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._let_go()
            self._last_accepted = time.monotonic()
            if self.is_refusing:
                client.close()
                continue
            try:
                broker = socket.create_connection(self._upstream, timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            self._links.append(_Link(self, client, broker))

    def _let_go(self) -> None:
        """Frees the sockets of connections that have ended."""
        for link in [link for link in self._links if link.is_over]:
            link.join()
            self._links.remove(link)


class _Link:
    """One connection of a client, and ours to the broker for it."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self.is_deaf = False
        self._sockets = (client, broker)
        self._asked: dict[int, Frame] = {}  # correlation id -> header of the request
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [
            threading.Thread(target=self._pump, args=(client, broker, False), name="proxy-ask", daemon=True),
            threading.Thread(target=self._pump, args=(broker, client, True), name="proxy-answer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing passes any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Wakes both threads."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Returns when nothing of it is left."""
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _pump(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        with suppress(OSError):
            while (raw := _read_frame(source)) is not None:
                frame = self._match_reply(raw) if is_reply else self._note_request(raw)
                gate = self._proxy.find_gate(frame, is_reply=is_reply)
                passing = raw if gate is None else gate.pass_through()
                if self.is_deaf:
                    self._proxy.is_over.wait()
                if passing is None or self.is_deaf:
                    break
                if self._proxy.delay_s:
                    time.sleep(self._proxy.delay_s)
                target.sendall(passing)
        self.close()

    def _note_request(self, raw: bytes) -> Frame:
        api_key, version, correlation, length = struct.unpack_from(">hhih", raw, 4)
        client_id = raw[14 : 14 + max(length, 0)].decode()
        self._asked[correlation] = Frame(api_key, version, client_id, b"")
        return Frame(api_key, version, client_id, raw)

    def _match_reply(self, raw: bytes) -> Frame:
        asked = self._asked.pop(struct.unpack_from(">i", raw, 4)[0])
        return asked._replace(raw=raw)


class ProxiedBroker(NamedTuple):
    """A broker with two doors. `direct`: past the proxy."""

    broker: DevBroker
    proxy: KafkaProxy
    direct: str


@contextmanager
def proxied_broker(settings: Mapping[str, str] | None = None) -> Iterator[ProxiedBroker]:
    """A broker of its own whose second listener is advertised at the proxy's port."""
    port, controller_port, behind_port, proxy_port = _choose_ports(4)
    listeners = f"P://127.0.0.1:{port},X://127.0.0.1:{behind_port},C://127.0.0.1:{controller_port}"
    doors = {
        "listeners": listeners,
        "advertised.listeners": f"P://127.0.0.1:{port},X://127.0.0.1:{proxy_port}",
        "listener.security.protocol.map": "P:PLAINTEXT,X:PLAINTEXT,C:PLAINTEXT",
    }
    with tempfile.TemporaryDirectory(prefix="outbox-bridge-kafka-", ignore_cleanup_errors=True) as folder:
        broker = DevBroker(
            Path(folder), port=port, controller_port=controller_port, settings={**doors, **(settings or {})}
        )
        broker.start()
        proxy = KafkaProxy(proxy_port, behind_port)
        try:
            yield ProxiedBroker(broker, proxy, broker.bootstrap)
        finally:
            proxy.close()
            broker.kill()


def _choose_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(choose_free_port())
    return list(ports)


def _read_frame(source: socket.socket) -> bytes | None:
    """One frame with its size; None at the end of the connection."""
    size = _read_exactly(source, 4)
    if size is None:
        return None
    body = _read_exactly(source, struct.unpack(">i", size)[0])
    return None if body is None else size + body


def _read_exactly(source: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = source.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
