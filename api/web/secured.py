"""TLS between a connection and what serves it.

asyncio's own TLS tells of a connection only after its handshake, cannot end one side alone, and waits at the end for
what the client says. This one is there from the first moment, so that connections before their handshake count, and
it is bound by the times and buffers that bind a plain connection.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

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
