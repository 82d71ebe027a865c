"""Settings of the producer's side; bounds are checked when they are made."""

import logging
import math
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from outbox.client.errors import OutboxConfigError
from outbox.client.message import Encoder

_LOG = logging.getLogger("outbox")
_LOOK_EACH_S = 1.0

# Source: RFC 9110 section 5
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEY_NAME = "OUTBOX_BRIDGE_KEY"
_KEY = re.compile(r"[\x21-\x7e]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def _read_variable(name: str) -> str | None:
    return os.environ.get(f"OUTBOX_BRIDGE_{name}") or None


def read_secret(name: str) -> str | None:
    """The environment variable, or what is in the file that `NAME_FILE` names. Raises OutboxConfigError."""
    secret, path = os.environ.get(name), os.environ.get(f"{name}_FILE")
    return secret or (_read_secret_file(name, path) if path else None)


def _read_secret_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OutboxConfigError(f"{name}_FILE: cannot read {path}: {error}") from None


class _KeyOfFile(str):
    """The key that was in the file which the environment names, and which may be written anew."""

    __slots__ = ()


def _read_key() -> str | None:
    key = read_secret(_KEY_NAME)
    return key if key is None or _read_variable("KEY") else _KeyOfFile(key)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How the bridge is reached. `key`: an API key of the bridge, else that of the environment variable
    `OUTBOX_BRIDGE_KEY`, or of the file that `OUTBOX_BRIDGE_KEY_FILE` names, as it is now. `headers`: sent with every
    request.

    `ca_file`: whose certificate an https bridge must show, else those that the system trusts; `client_cert_file`,
    `client_key_file`: the certificate that is shown to it (PEM). Each is read when a connection is first needed, and
    again when it is written anew; its name is the environment variable's with `OUTBOX_BRIDGE_` before it if not given
    here. `ssl_context`: counts instead of them.
    `slack_s`: how long an exchange may take beyond the time that the bridge was asked to wait. `trust_env`: whether
    proxies and netrc of the environment count.
    """

    connect_timeout_s: float = 2.0
    slack_s: float = 4.0
    max_connections: int = 32
    keep_alive_s: float = 15.0  # below the bridge's own, or it closes a connection just when it is used
    key: str | None = field(default_factory=_read_key, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = field(default_factory=partial(_read_variable, "CA_FILE"))
    client_cert_file: str | None = field(default_factory=partial(_read_variable, "CLIENT_CERT_FILE"))
    client_key_file: str | None = field(default_factory=partial(_read_variable, "CLIENT_KEY_FILE"))
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    trust_env: bool = False

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "slack_s", "keep_alive_s"):
            check_seconds(name, getattr(self, name))
        check_count("max_connections", self.max_connections)
        if self.key is not None and _KEY.fullmatch(self.key) is None:
            raise OutboxConfigError("a key is printable ASCII without spaces")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise OutboxConfigError("client_key_file needs client_cert_file")
        for name, value in self.headers.items():
            if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
                raise OutboxConfigError("a header has a name of letters, digits and - and a value without line ends")

    @property
    def proof(self) -> dict[str, str]:
        """The header that carries the key, if there is one."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def make_tls(self) -> ssl.SSLContext:
        """What speaks to an https bridge. Raises OutboxConfigError."""
        if self.ssl_context is not None:
            return self.ssl_context
        what, where = "ca_file", self.ca_file
        try:
            tls = ssl.create_default_context(cafile=where)
            what, where = "client_cert_file", self.client_cert_file
            if where is not None:
                tls.load_cert_chain(where, self.client_key_file, _refuse_password)
        except (OSError, ValueError) as error:  # an SSLError is the first
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            place = f"{what} {where}" + (f" with {self.client_key_file}" if what == "client_cert_file" else "")
            raise OutboxConfigError(f"{place} cannot be used: {reason}") from error
        return tls


T = TypeVar("T")


class Renewed(Generic[T]):
    """What some files hold, as they are now: certificates and keys are renewed while a service runs."""

    def __init__(self, what: str, files: Sequence[str | None], read: Callable[[], T], current: T | None = None) -> None:
        """`current`: counts until the first look, else what `read` returns. Raises what that does."""
        self._what = what
        self._files = [path for path in files if path]
        self._read = read
        self._look_at_s = 0.0
        self._told = ""  # why the newest files are not used
        self._written = [*map(_stamp_of, self._files)] if current is None else []
        self.current = read() if current is None else current

    def look(self, now_s: float) -> bool:
        """Whether other files count from now on; those that cannot be used yet are looked at again. Once a second."""
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + _LOOK_EACH_S
        if (written := [*map(_stamp_of, self._files)]) == self._written:
            return False
        try:
            self.current = self._read()
        except OutboxConfigError as error:
            if str(error) != self._told:
                _LOG.warning("%s_kept reason=%s", self._what, error)
            self._told = str(error)
            return False
        self._written, self._told = written, ""
        return True


def renewed_tls(config: HttpConfig) -> Renewed[ssl.SSLContext]:
    """What speaks to an https bridge. Raises OutboxConfigError."""
    own = (config.ca_file, config.client_cert_file, config.client_key_file)
    return Renewed("certificates", own if config.ssl_context is None else (), config.make_tls)


def renewed_proof(config: HttpConfig) -> Renewed[Mapping[str, str]]:
    """The header that carries the key."""
    path = _read_variable("KEY_FILE") if isinstance(config.key, _KeyOfFile) else None
    return Renewed(
        "key", (path,), lambda: replace(config, key=_read_secret_file(_KEY_NAME, path or "")).proof, config.proof
    )


def _stamp_of(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """Limits of one connection to the bridge.

    `call_timeout_s`: for a call with all its repeats. `block_timeout_s`: for all calls of a block or of a
    `send_message_in_transaction` together: so long its users wait, and its database connection may be held, while the
    bridge is away. `max_in_flight`: so many calls of one kind under way make further ones wait 50 ms for the next
    request, in which they travel together, and so many requests at once are the most. `max_waiting`: calls of one kind
    that may wait.
    `are_prepares_keyed`: whether a prepare without an idempotency key gets one, so that it can be repeated; without,
    a prepare whose answer is lost fails, and leaves a half message for the back-check.
    `check_threads`, `max_waiting_checks`: for listeners' answers to checks.
    `encoder`: for values of `transaction.send` that have no form in JSON; gives one that has.
    """

    call_timeout_s: float = 15.0
    block_timeout_s: float = 3.0
    close_timeout_s: float = 10.0
    max_in_flight: int = 4
    max_batch_items: int = 500
    max_batch_bytes: int = 1_000_000
    max_waiting: int = 10_000
    are_prepares_keyed: bool = True
    check_threads: int = 4
    max_waiting_checks: int = 2_000  # RocketMQ checkRequestHoldMax
    encoder: Encoder | None = None
    http: HttpConfig = field(default_factory=HttpConfig)

    def __post_init__(self) -> None:
        if self.encoder is not None and not callable(self.encoder):
            raise OutboxConfigError("encoder is a function from a value to one that JSON has a form for")
        check_seconds("call_timeout_s", self.call_timeout_s)
        check_seconds("block_timeout_s", self.block_timeout_s)
        check_seconds("close_timeout_s", self.close_timeout_s, least=0.0)
        for name in ("max_in_flight", "max_batch_bytes", "max_waiting", "check_threads", "max_waiting_checks"):
            check_count(name, getattr(self, name))
        check_count("max_batch_items", self.max_batch_items, most=1_000)


def _refuse_password() -> str:
    """Called for an enciphered key; without it OpenSSL would ask on the terminal."""
    raise ValueError("the key has a password")


def check_url(url: str) -> str:
    """The address of a bridge without a slash at its end. Raises OutboxConfigError."""
    url = url.strip()  # a variable's value may have come with the end of its line
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in {"http", "https"} and (parts.hostname or "").encode("idna") and parts.port != 0
    except ValueError:  # no port, half an IPv6 address, or no name that DNS could have
        is_right = False
    if not is_right or not url.isprintable() or parts.query or parts.fragment:
        raise OutboxConfigError("the bridge's address is http(s)://host[:port][/path]")
    if parts.username or parts.password:
        raise OutboxConfigError("a key belongs into HttpConfig.key or OUTBOX_BRIDGE_KEY, not into the address")
    return parts.geturl().rstrip("/")  # HTTPS:// is https://


def check_seconds(name: str, seconds: float, least: float = 0.001) -> None:
    """Raises OutboxConfigError unless it is a finite time of at least `least`."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds < least:
        raise OutboxConfigError(f"{name} is a number of seconds from {least:g}")


def check_count(name: str, count: int, most: int = 2**31 - 1) -> None:
    """Raises OutboxConfigError unless it is an integer from 1 to `most`."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise OutboxConfigError(f"{name} is an integer from 1 to {most}")
