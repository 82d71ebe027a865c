"""What a connection reads and writes through: certificates, and how a refused client is let go.

Closing the connection would reset it, and the client would lose the answer that says why. So the answer goes out, then
our side is closed, and what still comes is thrown away for a while. nginx calls this a lingering close.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from cryptography.x509 import load_pem_x509_certificate
from uvicorn.protocols.http.flow_control import FlowControl

from bridge.clock import Clock
from bridge.core.errors import ConfigError

# --- the certificates that a process shows, and those of clients that it takes: read anew when their files change ---

_LOG = structlog.get_logger()
_LOOK_INTERVAL_MS = 1_000
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all good


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM. `client_ca`: certificates that clients show must be of these; `is_client_needed`: all must show one."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    is_client_needed: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, by the certificate that was shown. `until_s`: when that ends, Unix."""

    principal: str
    until_s: int


class Certificates:
    """`context` is that of the next connection; those that are open keep theirs. `end_s`: of what it shows, Unix.

    `principals`: whom names in certificates of clients mean, each as `DNS:name` in lower case or `URI:text`.
    """

    def __init__(self, files: TlsFiles, principals: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError."""
        self.files = files
        self._principals = principals or {}
        self._stamp = self._read_stamp()
        self.context, self.end_s = _load(files)
        self.fault = ""  # why the newest files are not used

    async def run_forever(self, clock: Clock) -> None:
        """Looks at the files every second."""
        told_s = 0.0
        while True:
            await clock.sleep_ms(_LOOK_INTERVAL_MS)
            self.look()
            if self.has_ended(clock) and told_s != self.end_s:
                told_s = self.end_s
                _LOG.error("certificate_ended", cert=str(self.files.cert))

    def has_ended(self, clock: Clock) -> bool:
        """Whether no client believes any more what is shown."""
        return self.end_s * 1_000 <= clock.now_ms()

    def look(self) -> None:
        """Takes files that have changed; what cannot be used is told, and looked at again."""
        stamp = self._read_stamp()
        if stamp == self._stamp and not self.fault:
            return
        try:
            self.context, self.end_s = _load(self.files)
        except ConfigError as error:
            if str(error) != self.fault:
                _LOG.error("certificates_kept", reason=str(error))
            self.fault = str(error)
        else:
            self.fault = ""
            _LOG.info("certificates_read", cert=str(self.files.cert))
        self._stamp = stamp

    def find_peer(self, tls: ssl.SSLObject) -> Peer | None:
        """None: no certificate was verified, or its names mean nobody, or more than one."""
        shown: dict[str, Any] = tls.getpeercert() or {}
        names = [f"{kind}:{text.lower() if kind == 'DNS' else text}" for kind, text in shown.get("subjectAltName", ())]
        meant = {self._principals[name] for name in names if name in self._principals}
        if len(meant) != 1:
            return None
        return Peer(meant.pop(), ssl.cert_time_to_seconds(shown["notAfter"]))

    def _read_stamp(self) -> tuple[object, ...]:
        files = self.files
        return tuple(_stamp_of(path) for path in (files.cert, files.key, files.client_ca) if path is not None)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load(files: TlsFiles) -> tuple[ssl.SSLContext, float]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    with _named(f"http.tls: certificate {files.cert} and key {files.key} cannot be used"):
        context.load_cert_chain(files.cert, files.key, _refuse_password)
        end_s = load_pem_x509_certificate(files.cert.read_bytes()).not_valid_after_utc.timestamp()
    if files.client_ca is not None:
        context.num_tickets = 0  # each connection shows its certificate, while that is valid
        context.verify_mode = ssl.CERT_REQUIRED if files.is_client_needed else ssl.CERT_OPTIONAL
        with _named(f"http.tls.client_ca {files.client_ca} cannot be used"):
            context.load_verify_locations(files.client_ca)
    return context, end_s


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors become a ConfigError that begins like this."""
    try:
        yield
    except (OSError, ValueError) as error:  # an SSLError is the first
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(f"{what}: {reason}") from error


def _refuse_password() -> str:
    """Called for an enciphered key; without it OpenSSL would ask on the terminal."""
    raise ValueError("the key has a password; give the file without one to the bridge's user alone")


# --- what a connection reads and writes through, and how a refused client is let go ---

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
