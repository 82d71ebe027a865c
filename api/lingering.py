"""The end of a connection whose client is still sending.

Closing it would reset it, and the client would lose the answer that says why. So the answer goes out, then our side is
closed, and what still comes is thrown away for a while. nginx calls this a lingering close.
"""

import asyncio
from collections.abc import Callable

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


class ClosingTransport:
    """What a cycle of uvicorn writes to: a transport whose end is somebody else's to decide."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
