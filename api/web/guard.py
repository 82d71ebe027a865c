"""What every request passes before its call: names and origins, load, bytes in flight.

A browser sends to this machine what a page asks for. Three things give such a page away: the `Origin` it comes
from; the `Host` it called, if its own name was made to point here (DNS rebinding); and, where neither is looked at
anywhere on the way, that it cannot send a JSON content type or a header of ours without asking first (preflight).
Forms of our own pages can do neither; they are taken with an `Origin` that is exactly the host they call.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import structlog

from api.web.limits import SMALL_BYTES, ByteBudget, QuotaConfig, Quotas, Streams
from api.web.problems import (
    CLOSE,
    FORBIDDEN,
    MALFORMED_REQUEST,
    NOT_ACCEPTABLE,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
)
from bridge.clock import SystemClock
from bridge.core.grants import Rights
from bridge.service.access import ANYBODY, AccessService, Caller
from bridge.service.issuers import BadToken
from bridge.turns import Recent
from checker.endpoint_guard import is_loopback

RawHeaders = Sequence[tuple[bytes, bytes]]

NOBODY = Caller("nobody", Rights(()))

MARK = "Outbox-Bridge-Request"
HEALTH = frozenset({"/livez", "/readyz", "/metrics"})
UNPROVEN = frozenset({"/livez", "/readyz"})  # answered without a credential

_MARK = MARK.lower().encode()
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TYPES = frozenset({b"application/json", b"application/x-ndjson"})
_USUAL_PORTS = {80, 443}  # browsers leave them out
_SHOWN = frozenset(
    {b"*/*", b"application/*", b"application/json", b"application/x-ndjson", b"application/problem+json"}
)
_API = "/v1/"
_PAGES = "/console/"
_LOG = structlog.get_logger()
_CLOCK = SystemClock()
_TOLD_EVERY_MS = 10_000
_KEYS_S = 5  # until an issuer's keys are probably known
_IDS_AT_ONCE = 64
_spare_ids: list[str] = []
_REMEDY = "list the name in http.allowed_hosts if it is this bridge's"


def make_request_id() -> str:
    if not _spare_ids:
        many = os.urandom(16 * _IDS_AT_ONCE).hex()  # one system call
        _spare_ids.extend([many[start : start + 32] for start in range(0, len(many), 32)])
    return _spare_ids.pop()


class Doorkeeper:
    """Knows the names of the address a process listens on. Before `listen`, those that no DNS can give are taken."""

    def __init__(self) -> None:
        self._names: frozenset[bytes] = frozenset()
        self._is_loopback = False

    def listen(self, host: str, port: int, allowed: Sequence[str]) -> None:
        """The address is known. `allowed`: names besides, each with a port, or without one for any."""
        self._is_loopback = is_loopback(host)
        own = {host} | ({"127.0.0.1", "::1", "localhost"} if self._is_loopback else set())
        names = [f"[{name}]" if ":" in name else name for name in own]
        with_port = [f"{name}:{port}" for name in names] + (names if port in _USUAL_PORTS else [])
        self._names = frozenset(name.lower().encode() for name in [*with_port, *allowed])

    def refuse(self, method: str, path: str, headers: RawHeaders) -> Problem | None:
        """Why this request is not let in."""
        hosts, origins, is_unforgeable = [], [], method in _READING
        for name, value in headers:
            if name == b"host":
                hosts.append(value.lower())
            elif name == b"origin":
                origins.append(value.lower())
            elif name == _MARK or (name == b"content-type" and value.partition(b";")[0].strip().lower() in _TYPES):
                is_unforgeable = True
        if path in HEALTH and not self._is_loopback:  # probes name whatever they like, and there is nothing to hide
            return None
        problem = self._refuse_names(hosts, origins)
        if problem is None and not is_unforgeable and not _is_own_form(path, hosts[0], origins):
            detail = f"a {method} needs Content-Type: application/json, also without a body, or the header {MARK}: 1"
            return Problem(UNSUPPORTED_MEDIA_TYPE, detail)
        return problem

    def _refuse_names(self, hosts: Sequence[bytes], origins: Sequence[bytes]) -> Problem | None:
        if len(hosts) != 1:
            return Problem(MALFORMED_REQUEST, "one Host is needed")
        if not self._is_own(hosts[0]):
            return Problem(FORBIDDEN, f"this bridge is not called {_show(hosts[0])}; {_REMEDY}")
        for origin in origins:
            if not self._is_same(origin, hosts[0]):
                return Problem(FORBIDDEN, f"pages of {_show(origin)} may not call this bridge; {_REMEDY}")
        return None

    def _is_own(self, host: bytes) -> bool:
        if host in self._names:
            return True
        name = _without_port(host)
        return name in self._names or (not self._is_loopback and _is_never_rebound(name))

    def _is_same(self, origin: bytes, host: bytes) -> bool:
        scheme, _, authority = origin.partition(b"://")
        is_named = authority == host or authority in self._names or _without_port(authority) in self._names
        return scheme in {b"http", b"https"} and is_named


def _is_own_form(path: str, host: bytes, origins: Sequence[bytes]) -> bool:
    """Whether a page of ours sends it, to one of ours: browsers say with every POST which page it comes from."""
    return path.startswith(_PAGES) and [origin.partition(b"://")[2] for origin in origins] == [host]


def _without_port(authority: bytes) -> bytes:
    name, colon, port = authority.rpartition(b":")
    return name if colon and port.isdigit() else authority


def _is_never_rebound(name: bytes) -> bool:
    """An address, or the one name that browsers resolve themselves: no DNS server of anybody's can point it here."""
    try:
        return name == b"localhost" or bool(ipaddress.ip_address(name.decode().removeprefix("[").removesuffix("]")))
    except ValueError:
        return False


def _show(text: bytes) -> str:
    return text[:200].decode("ascii", "replace")


def identify(access: AccessService, path: str, headers: RawHeaders, certified: str | None = None) -> Caller | Problem:
    """Who calls: by the credential of the request, else by the certificate of its connection (`certified`). Without
    one: nobody, unless the bridge is open."""
    found = _look_up(access, headers, certified)
    return NOBODY if isinstance(found, Problem) and path in UNPROVEN else found


def _look_up(access: AccessService, headers: RawHeaders, certified: str | None) -> Caller | Problem:
    proofs = [value for name, value in headers if name == b"authorization"]
    if not proofs:
        return _find_quiet(access, certified)
    scheme, _, proof = proofs[0].partition(b" ")
    if len(proofs) > 1 or scheme.lower() != b"bearer":
        return _refuse_proof("one Authorization: Bearer is needed")
    try:
        caller = access.identify(proof.strip().decode("latin-1"))
    except BadToken as error:
        if error.is_temporary:
            return Problem(UNAVAILABLE, str(error), retry_after_s=_KEYS_S)
        return _refuse_proof(str(error))
    if caller is None:
        return _refuse_proof("the credential is not known, has expired, or was revoked")
    access.note_use(caller)
    return caller


def _find_quiet(access: AccessService, certified: str | None) -> Caller | Problem:
    """Who sends no credential."""
    if certified is not None:
        return access.find_certified(certified)
    return ANYBODY if access.config.is_open else _refuse_proof("a credential is needed")


class RefusedProofs:
    """Tells the log of credentials that were refused: the last one, and how many there were, every ten seconds."""

    def __init__(self, now_ms: Callable[[], int] = _CLOCK.monotonic_ms) -> None:
        self._now_ms = now_ms
        self._told_ms = -_TOLD_EVERY_MS
        self._count = 0

    def note(self, address: str, detail: str) -> None:
        """One more."""
        self._count += 1
        now_ms = self._now_ms()
        if now_ms - self._told_ms >= _TOLD_EVERY_MS:
            _LOG.warning("credentials_refused", address=address, reason=detail, count=self._count)
            self._told_ms, self._count = now_ms, 0


def _refuse_proof(detail: str) -> Problem:
    return Problem(UNAUTHENTICATED, detail, headers={"WWW-Authenticate": 'Bearer realm="outbox-bridge"'})


class ByteLease:
    """The bytes of one request, from the first that comes until the request is over."""

    __slots__ = ("_budget", "_held", "_is_ended", "is_refused")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._is_ended = False
        self.is_refused = False  # a piece of the request was not taken, nor any after it

    def grow(self, size: int) -> bool:
        """Whether these bytes may be kept. Once False, it stays so: the request has a hole."""
        if self._is_ended:
            return False
        budget, held = self._budget, self._held + size
        used = budget.used + size
        if used > budget.for_large and (held > SMALL_BYTES or used > budget.total):
            self._is_ended = self.is_refused = True
            return False
        budget.used, self._held = used, held
        return True

    def shrink(self, size: int) -> None:
        """So many bytes are not kept any longer."""
        size = min(size, self._held)
        self._held -= size
        self._budget.used -= size

    def close(self) -> None:
        """The request is over. May be called again."""
        self._is_ended = True
        self.shrink(self._held)


@dataclass(slots=True)
class Traffic:
    """How many requests are being served, as many streams besides, their bytes, and whether new ones are taken.
    `looks`: what readiness finds, while it is being looked for."""

    max_in_flight: int = 2_000
    budget: ByteBudget = field(default_factory=ByteBudget)
    quotas: Quotas = field(default_factory=lambda: Quotas(QuotaConfig(), 2_000))
    in_flight: int = 0
    is_draining: bool = False
    refused_proofs: RefusedProofs = field(default_factory=RefusedProofs)
    looks: Recent[Sequence[Any]] = field(default_factory=lambda: Recent(0, _CLOCK.monotonic_ms))
    streams: Streams = field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.max_in_flight)

    def drain(self) -> None:
        """Takes nothing new, and ends streams where they are between two lines."""
        self.is_draining = True
        self.streams.drain()

    def refuse(self, path: str) -> Problem | None:
        """Why a request is not served now. Health is always answered."""
        if path in HEALTH:
            return None
        if self.is_draining:
            return Problem(UNAVAILABLE, "shutting down", retry_after_s=1, headers=CLOSE)
        if self.in_flight >= self.max_in_flight:
            return Problem(UNAVAILABLE, f"{self.max_in_flight} requests are being served", retry_after_s=1)
        return None


def refuse_accept(path: str, headers: RawHeaders) -> Problem | None:
    """Why no answer would be taken."""
    if path.startswith(_API):
        for name, value in headers:
            if name == b"accept" and value not in _SHOWN and not _is_acceptable(value):
                return Problem(NOT_ACCEPTABLE, "answers are application/json")
    return None


@lru_cache(maxsize=256)
def _is_acceptable(accept: bytes) -> bool:
    """Whether one of the listed ranges takes JSON. Source: RFC 9110 section 12.5.1."""
    if not accept.strip():
        return True
    for part in accept.split(b","):
        media, *parameters = [piece.strip().lower() for piece in part.split(b";")]
        if media in _SHOWN and not any(re.fullmatch(rb"q=0(\.0{0,3})?", piece) for piece in parameters):
            return True
    return False
