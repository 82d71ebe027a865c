"""What a connection reads and writes through, and how a refused client is let go.

Closing the connection would reset it, and the client would lose the answer that says why. So the answer goes out, then
our side is closed, and what still comes is thrown away for a while. nginx calls this a lingering close.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

LINGER_S = 10.0
LINGER_BYTES = 32 * 1024 * 1024


class Lingering:
    """Takes what a client still sends, in bounded time and amount, then ends the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._left = LINGER_BYTES
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        transport.write_eof()

    def discard(self, size: int) -> None:
        """So many bytes came."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def stop(self) -> None:
        """The connection is lost."""
        self._timer.cancel()


class EndedTransport:
    """What a connection has as its transport once its last answer has gone out: what is written later goes nowhere."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.close = transport.close
        self.abort = transport.abort
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        """A request that was cut off may still be answered by whoever works on it."""

    def is_closing(self) -> bool:
        return True


class ClosingTransport:
    """What a cycle of uvicorn writes to: a transport whose end is somebody else's to decide."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class HeldFlow(FlowControl):
    """While it is held, nothing is read from the connection, whoever asks."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()

    def hold(self, *, is_held: bool) -> None:
        """Holds reading, or lets go of it."""
        if is_held == self.is_held:
            return
        self.is_held = is_held
        if is_held:
            self.pause_reading()
        else:
            self.resume_reading()
