"""How a bridge is reached, and in words why it was not."""

import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from outbox.client.http_messages import BrokenAnswer

OTHER_ADDRESS_S = 0.25  # a name with several addresses: the next one is tried too. Source: RFC 8305
_MAX_TIMEOUT_S = 1_000_000.0  # a socket counts in milliseconds, in 31 bits
_AddressInfo: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo has it


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
    """A thread asks, and is left behind if a name server is silent: asking has no time limit of its own."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: SimpleQueue[Sequence[_AddressInfo] | OSError | UnicodeError] = SimpleQueue()

    def look() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.put(error)

    threading.Thread(target=look, name="outbox-resolve", daemon=True).start()
    try:
        told = found.get(timeout=left_s(deadline_s))
    except Empty:
        raise TimeoutError from None
    if isinstance(told, Exception):
        raise told
    return told


def left_s(deadline_s: float) -> float:
    """Raises TimeoutError if none is left: a socket would take 0 for no blocking at all."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return min(left_s, _MAX_TIMEOUT_S)
