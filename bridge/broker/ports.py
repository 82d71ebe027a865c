"""TCP ports on loopback: is one free, who has it, which one to take; and the errors of the development broker."""

import random
import socket
import sys
from collections import deque

import psutil

from bridge.broker.server_properties import HOST


class BrokerError(Exception):
    """Root of the errors of this package; `remedy` is one sentence for the user."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class JavaMissing(BrokerError):
    """There is no Java that can run Kafka, 17 or newer."""


class JarsUnavailable(BrokerError):
    """Kafka's jars could not be downloaded; retrying helps."""


class JarCorrupt(BrokerError):
    """A jar is not the file that was pinned; retrying may help."""


class CacheUnusable(BrokerError):
    """The jars cannot be stored."""


class DataFolderInUse(BrokerError):
    """A living process holds the data folder."""


class DataFolderUnusable(BrokerError):
    """The data folder cannot be written, or another Kafka made it."""


class PortTaken(BrokerError):
    """A port the broker needs is in use."""


class BrokerFailed(BrokerError):
    """Kafka ended or did not start in time; its log says why."""


# Below the range of outgoing connections: a client that keeps calling a dead broker in that range
# can connect to itself and so take the port away from it.
_FREE_FROM, _FREE_TO = 17_000, 32_000
_TRIES = 200
_MOST_HELD = 200
_chance = random.SystemRandom()  # not seeded by anybody: two processes must not choose alike
_held: deque[socket.socket] = deque()


def is_port_free(port: int) -> bool:
    """Whether a server may listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_free_port() -> int:
    """A port nobody has. On Linux the port is held for its user while this process lives.

    Of the last 200, that is. Nobody else chooses it or connects from it; a server that sets SO_REUSEADDR, as nearly
    all do (Java, uvicorn, asyncio, `socket.create_server`), can listen on it, also again after it has ended.
    """
    for _ in range(_TRIES):
        port = _chance.randrange(_FREE_FROM, _FREE_TO)
        if _hold(port):
            return port
    raise PortTaken(f"no free port between {_FREE_FROM} and {_FREE_TO}", "Name the ports yourself.")


def _hold(port: int) -> bool:
    """Binds it without listening: first so that two can never have it, from then on so that a server can share it."""
    if sys.platform != "linux":  # elsewhere a bound port cannot be shared so (socket(7), SO_REUSEADDR)
        return is_port_free(port)
    holder = socket.socket()
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return False
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(holder)
    if len(_held) > _MOST_HELD:
        _held.popleft().close()
    return True


def check_port(port: int, remedy: str) -> None:
    """Raises PortTaken, naming the process that has it where the system shows it."""
    if not is_port_free(port):
        raise PortTaken(f"port {port} is in use{_describe_holder(port)}", remedy)


def _describe_holder(port: int) -> str:
    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid
        }
        return "".join(f" by process {pid} ({psutil.Process(pid).name()})" for pid in sorted(pids))
    except psutil.Error:
        return ""
