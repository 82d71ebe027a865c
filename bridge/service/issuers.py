"""Callers that prove who they are by a token of an issuer (OIDC): signatures, claims, and the issuers' keys.

Source: RFC 7519, RFC 8725 (best current practices), OpenID Connect Discovery 1.0.
"""

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import JWKRegistry, Key, KeySet
from joserfc.jwt import JWTClaimsRegistry

from bridge.clock import Clock
from bridge.core.grants import USUAL_ALGORITHMS, is_principal_name
from bridge.core.message import refuse_constant, unique_members

_LOG = structlog.get_logger()
_LEEWAY_S = 60
_TRUSTED_MS = 60_000  # a token that was right is not looked at again for so long
_FRESH_MS, _RETRY_MS, _TICK_MS = 300_000, 60_000, 1_000
_MOST_BYTES = 8_192
_LEAST_RSA_TEXT = 342  # 2,048 bits in base64url
_PUBLIC = ("RSA", "EC", "OKP")  # a secret in a public set would make everybody an issuer
_DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[bytes]]
"""Reads a document of an issuer. Raises IssuerAway."""


class IssuerAway(Exception):
    """A document could not be read."""


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """Whose tokens are believed. `jwks_url`: of its keys; None: its discovery document says.

    `claim`: which one names the principal; `prefix`: put before it, so that no issuer can name others' principals.
    """

    issuer: str
    audience: str
    jwks_url: str | None = None
    algorithms: tuple[str, ...] = USUAL_ALGORITHMS
    claim: str = "sub"
    prefix: str = ""
    max_life_s: int = 3_600


class TokenHolder(NamedTuple):
    """Whom a token names, and until when it is believed without another look."""

    principal: str
    until_ms: int


class BadToken(Exception):
    """Why a token is not believed. `is_temporary`: the keys of its issuer are not known yet."""

    def __init__(self, why: str, *, is_temporary: bool = False) -> None:
        super().__init__(why)
        self.is_temporary = is_temporary


class Issuers:
    """The issuers, and their keys as far as they are known; read anew beside, kept while an issuer is away."""

    def __init__(self, configs: Sequence[IssuerConfig], fetch: Fetch, clock: Clock) -> None:
        self._issuers = {config.issuer: _Issuer(config) for config in configs}
        self._fetch = fetch
        self._clock = clock

    def read(self, token: str) -> TokenHolder:
        """Whom it names. Raises BadToken."""
        try:
            return self._read(token)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadToken(f"the token is not valid: {type(error).__name__}") from error

    def _read(self, token: str) -> TokenHolder:
        head, body, _ = token.split(".") if len(token) <= _MOST_BYTES else ("", "", "")
        header, claims = _parse(head), _parse(body)
        issuer = self._issuers.get(str(claims.get("iss")))
        if issuer is None:
            raise BadToken("the token is of an issuer that is not known")
        if "crit" in header or str(header.get("typ", "JWT")).lower() not in {"jwt", "at+jwt"}:
            raise BadToken("the token is of another kind")
        if issuer.keys is None:
            raise BadToken("the keys of the issuer are not known yet", is_temporary=True)
        kid = header.get("kid")
        if kid not in issuer.key_ids and not (kid is None and len(issuer.key_ids) == 1):
            issuer.is_wanted = True
            raise BadToken("the token is signed with a key that the issuer does not show")
        jws.deserialize_compact(token, issuer.keys, registry=issuer.registry)
        return issuer.find_holder(claims, self._clock.now_ms())

    async def run_forever(self) -> None:
        """Until cancelled."""
        while True:
            await self.refresh()
            await self._clock.sleep_ms(_TICK_MS)

    async def refresh(self) -> None:
        """Reads the keys that are old, missing, or asked for: of each issuer at most once a minute."""
        for issuer in self._issuers.values():
            now_ms = self._clock.monotonic_ms()
            if not issuer.is_due(now_ms):
                continue
            issuer.asked_ms, issuer.is_wanted = now_ms, False
            try:
                issuer.take_keys(await self._fetch(issuer.config.jwks_url or await self._discover(issuer.config)))
            except (IssuerAway, JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
                _LOG.warning("issuer_keys_not_read", issuer=issuer.config.issuer, reason=str(error)[:200])

    async def _discover(self, config: IssuerConfig) -> str:
        told = _load(await self._fetch(config.issuer.rstrip("/") + _DISCOVERY))
        if told.get("issuer") != config.issuer:
            raise IssuerAway("its discovery document names another issuer")
        return str(told["jwks_uri"])


class _Issuer:
    """One of them. `keys`: None until they were read once."""

    def __init__(self, config: IssuerConfig) -> None:
        self.config = config
        self.registry = _Pinned(strict_check_header=False, algorithms=list(config.algorithms))
        self.keys: KeySet | None = None
        self.key_ids: frozenset[str | None] = frozenset()
        self.asked_ms: int | None = None
        self.is_wanted = False

    def is_due(self, now_ms: int) -> bool:
        if self.asked_ms is None:
            return True
        is_soon = self.is_wanted or self.keys is None
        return now_ms - self.asked_ms >= (_RETRY_MS if is_soon else _FRESH_MS)

    def take_keys(self, document: bytes) -> None:
        shown = _load(document)["keys"]
        if not isinstance(shown, list) or not (usable := [key for one in shown if (key := _read_key(one))]):
            raise ValueError("no key that can be used")
        self.keys, self.key_ids = KeySet(usable), frozenset(key.kid for key in usable)

    def find_holder(self, claims: dict[str, Any], now_ms: int) -> TokenHolder:
        """Whom claims name whose signature is right. Raises JoseError and BadToken."""
        now_s = now_ms // 1000
        wanted = {
            "iss": {"essential": True, "value": self.config.issuer},
            "aud": {"essential": True, "value": self.config.audience},
            "exp": {"essential": True},
        }
        JWTClaimsRegistry(now_s, _LEEWAY_S, **wanted).validate(claims)  # type: ignore[arg-type]
        if claims["exp"] > now_s + self.config.max_life_s + _LEEWAY_S:
            raise BadToken(f"the token is valid for more than {self.config.max_life_s} s")
        name = claims.get(self.config.claim)
        principal = f"{self.config.prefix}{name}"
        if not isinstance(name, str) or not is_principal_name(principal):
            raise BadToken(f"the claim {self.config.claim} of the token is no name of a principal")
        until_ms = min((claims["exp"] + _LEEWAY_S) * 1000, now_ms + _TRUSTED_MS)
        return TokenHolder(principal, int(until_ms))


class _Pinned(jws.JWSRegistry):
    """Exactly the algorithms of the settings, and headers as issuers send them."""

    max_header_length = _MOST_BYTES

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library's own
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError(f"{name} is not allowed")
        return self.algorithms[name]  # also one that the library warns of: EdDSA, which issuers still call so


def _read_key(shown: object) -> Key | None:
    """A key to verify signatures with, that is long enough. None: another one, which hides none of those beside it.

    An RSA key is as long as its modulus. Source: RFC 7517, section 5.
    """
    if not isinstance(shown, dict) or shown.get("kty") not in _PUBLIC or shown.get("use", "sig") != "sig":
        return None
    try:
        is_long = shown["kty"] != "RSA" or len(shown["n"]) >= _LEAST_RSA_TEXT
        return JWKRegistry.import_key(shown) if is_long else None
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def _parse(segment: str) -> dict[str, Any]:
    """A part of a token. Raises ValueError."""
    if not segment.isascii() or "=" in segment:
        raise ValueError("not base64url")
    try:
        return _load(base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _load(document: bytes) -> dict[str, Any]:
    """A JSON object whose members have different names. Raises ValueError and TypeError."""
    told = json.loads(document, object_pairs_hook=unique_members, parse_constant=refuse_constant)
    if not isinstance(told, dict):
        raise TypeError("not a JSON object")
    return told
