"""Tokens of issuers: the right ones name a principal, all others are refused, whatever is wrong with them."""

import base64
import hmac
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, KeySet, OctKey, OKPKey, RSAKey

from bridge.service.issuers import BadToken, IssuerAway, IssuerConfig, Issuers
from tests.support.virtual_time import VirtualClock

ANYTHING = jws.JWSRegistry(strict_check_header=False, algorithms=list(jws.JWSRegistry.algorithms))
ANYTHING.max_header_length = ANYTHING.max_payload_length = 2**22
ISSUER, AUDIENCE = "https://login.example", "outbox-bridge"
HOUR_S = 3_600
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
with pytest.warns(SecurityWarning):
    WEAK = RSAKey.generate_key(1024, {"kid": "weak"})
SECRET = OctKey.generate_key(256, {"kid": "secret"})


class Login:
    """An issuer whose documents are read. `shown`: its key set; None: it is away."""

    def __init__(self, *keys: Key) -> None:
        self.shown: Mapping[str, Any] | None = KeySet([*keys]).as_dict()
        self.shown["keys"] += [SECRET.as_dict(private=True), {"kty": "later", "kid": "pq"}]
        self.read: list[str] = []
        self.names = ISSUER

    async def fetch(self, url: str) -> bytes:
        self.read.append(url)
        if self.shown is None:
            raise IssuerAway("away")
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": self.names, "jwks_uri": f"{ISSUER}/keys"}).encode()
        return json.dumps(self.shown).encode()


async def make_issuers(login: Login, clock: VirtualClock, **members: Any) -> Issuers:
    issuers = Issuers([IssuerConfig(ISSUER, AUDIENCE, **members)], login.fetch, clock)
    await issuers.refresh()
    return issuers


def claims(clock: VirtualClock, **others: Any) -> dict[str, Any]:
    now_s = clock.now_ms() // 1000
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "shop", "iat": now_s, "exp": now_s + 600}
    return {name: value for name, value in {**usual, **others}.items() if value is not None}


def sign(told: Mapping[str, Any], key: Key = RSA, alg: str = "RS256", **header: Any) -> str:
    with warnings.catch_warnings(action="ignore"):
        return jwt.encode({"alg": alg, "kid": key.kid, **header}, dict(told), key, registry=ANYTHING)


def sign_text(payload: bytes, header: Mapping[str, Any], key: Key = RSA) -> str:
    """Of bytes that no encoder would make."""
    return jws.serialize_compact({"alg": "RS256", "kid": "rsa", **header}, payload, key, registry=ANYTHING)


def encoded(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize(("key", "alg"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")])
async def test_right_token_names_its_principal(key: Key, alg: str) -> None:
    """With any of the algorithms that are pinned; alone or among audiences; believed for a minute at most."""
    clock = VirtualClock()
    issuers = await make_issuers(Login(RSA, EC, ED), clock, prefix="oidc:")
    for audience in (AUDIENCE, ["else", AUDIENCE]):
        holder = issuers.read(sign(claims(clock, aud=audience), key, alg))
        assert holder.principal == "oidc:shop"
        assert holder.until_ms == clock.now_ms() + 60_000
    assert (
        issuers.read(sign(claims(clock, exp=clock.now_ms() // 1000 + 0), key, alg)).until_ms <= clock.now_ms() + 60_000
    )


Forge = Callable[[VirtualClock], str]

BAD: dict[str, Forge] = {
    "no algorithm": lambda c: _with_header(sign(claims(c)), b'{"alg":"none"}').rpartition(".")[0] + ".",
    "no algorithm, with a kid": lambda c: (
        _with_header(sign(claims(c)), b'{"alg":"none","kid":"rsa"}').rpartition(".")[0] + "."
    ),
    "HMAC with the public key": lambda c: _sign_with_public_key(claims(c)),
    "HMAC with a secret that is shown": lambda c: sign(claims(c), SECRET, "HS256"),
    "an algorithm that is not pinned": lambda c: sign(claims(c), RSA, "PS256"),
    "another key of the same name": lambda c: sign(claims(c), STRANGER),
    "a key that is too short": lambda c: sign(claims(c), WEAK),
    "a key nobody shows": lambda c: sign(claims(c), RSA, kid="other"),
    "a path for a key": lambda c: sign(claims(c), RSA, kid="../../keys/rsa"),
    "critical extensions": lambda c: sign_text(json.dumps(claims(c)).encode(), {"crit": ["b64"], "b64": True}),
    "another kind": lambda c: sign(claims(c), typ="logout+jwt"),
    "another issuer": lambda c: sign(claims(c, iss="https://login.example.evil")),
    "an issuer with a slash more": lambda c: sign(claims(c, iss=f"{ISSUER}/")),
    "an issuer that is a list": lambda c: sign(claims(c, iss=[ISSUER])),
    "no issuer": lambda c: sign(claims(c, iss=None)),
    "another audience": lambda c: sign(claims(c, aud="else")),
    "no audience": lambda c: sign(claims(c, aud=None)),
    "audiences without us": lambda c: sign(claims(c, aud=["a", "b"])),
    "an audience that is a number": lambda c: sign(claims(c, aud=7)),
    "no end": lambda c: sign(claims(c, exp=None)),
    "expired": lambda c: sign(claims(c, exp=c.now_ms() // 1000 - 61)),
    "an end that is text": lambda c: sign(claims(c, exp=str(c.now_ms()))),
    "an end that is infinite": lambda c: sign_text(json.dumps(claims(c, exp=float("inf"))).encode(), {}),
    "an end that is no number": lambda c: sign_text(json.dumps(claims(c, exp=float("nan"))).encode(), {}),
    "valid for too long": lambda c: sign(claims(c, exp=c.now_ms() // 1000 + HOUR_S + 120)),
    "not valid yet": lambda c: sign(claims(c, nbf=c.now_ms() // 1000 + 120)),
    "issued in the future": lambda c: sign(claims(c, iat=c.now_ms() // 1000 + 120)),
    "no subject": lambda c: sign(claims(c, sub=None)),
    "an empty subject": lambda c: sign(claims(c, sub="")),
    "a subject that is a number": lambda c: sign(claims(c, sub=7)),
    "a subject with a line end": lambda c: sign(claims(c, sub="shop\n")),
    "a subject with a slash": lambda c: sign(claims(c, sub="shop/jwt@10.0.0.1")),
    "a subject of a megabyte": lambda c: sign(claims(c, sub="s" * 2**20)),
    "a claim twice": lambda c: sign_text(json.dumps(claims(c)).encode()[:-1] + b', "sub": "admin"}', {}),
    "a header twice": lambda c: _with_header(sign(claims(c)), b'{"alg":"RS256","kid":"rsa","alg":"RS256"}'),
    "claims that are a list": lambda c: sign_text(b"[1]", {}),
    "claims that are no JSON": lambda c: sign_text(b"{", {}),
    "claims that are deep": lambda c: sign_text(b"[" * 100_000, {}),
    "claims of another encoding": lambda c: sign_text(json.dumps(claims(c, sub="sh\xf6p")).encode("utf-16"), {}),
    "a digit more in the signature": lambda c: sign(claims(c)) + "A",
    "no signature": lambda c: sign(claims(c)).rpartition(".")[0] + ".",
    "a changed claim": lambda c: _with_body(sign(claims(c)), json.dumps(claims(c, sub="admin")).encode()),
    "padding": lambda c: sign(claims(c)).replace(".", "=.", 1),
    "two parts": lambda c: sign(claims(c)).rpartition(".")[0],
    "four parts": lambda c: sign(claims(c)) + ".e30",
    "five parts": lambda c: sign(claims(c)) + ".e30.e30",
    "empty parts": lambda _: "..",
    "no base64": lambda _: "\xfc.\xfc.\xfc",
    "a kid that is an object": lambda c: _with_header(sign(claims(c)), b'{"alg":"RS256","kid":{"a":1}}'),
    "a kind that is a list": lambda c: _with_header(sign(claims(c)), b'{"alg":"RS256","kid":"rsa","typ":["JWT"]}'),
    "an algorithm that is a list": lambda c: _with_header(sign(claims(c)), b'{"alg":["RS256"],"kid":"rsa"}'),
    "a key in the header": lambda c: sign_text(
        json.dumps(claims(c)).encode(), {"jwk": STRANGER.as_dict(private=False)}, STRANGER
    ),
}


_HMAC = b'{"alg":"HS256","kid":"rsa"}'


def _sign_with_public_key(told: Mapping[str, Any]) -> str:
    signed = f"{encoded(_HMAC)}.{encoded(json.dumps(told).encode())}"
    return f"{signed}.{encoded(hmac.digest(RSA.as_pem(private=False), signed.encode(), 'sha256'))}"


def _with_header(token: str, header: bytes) -> str:
    return ".".join([encoded(header), *token.split(".")[1:]])


def _with_body(token: str, body: bytes) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{encoded(body)}.{signature}"


@pytest.mark.parametrize("what", BAD)
async def test_token_that_is_not_right_is_refused(what: str) -> None:
    """Of no kind of error does anything else come."""
    clock = VirtualClock()
    issuers = await make_issuers(Login(RSA, EC, ED, WEAK), clock)
    with pytest.raises(BadToken) as refused:
        issuers.read(BAD[what](clock))
    assert not refused.value.is_temporary


async def test_where_a_header_says_that_keys_are_is_not_looked_at() -> None:
    """Neither `jku` nor `x5u` makes the bridge read anything."""
    clock, login = VirtualClock(), Login(RSA)
    issuers = await make_issuers(login, clock)
    before = list(login.read)
    with pytest.raises(BadToken):
        issuers.read(sign(claims(clock), STRANGER, jku="https://evil.example/keys", x5u="https://evil.example/cert"))
    await issuers.refresh()
    assert login.read == before == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


async def test_unknown_key_is_looked_for_once_a_minute() -> None:
    """However many tokens name one; a new key of the issuer is known then, and one that is gone is not."""
    clock, login = VirtualClock(), Login(RSA)
    issuers = await make_issuers(login, clock, jwks_url=f"{ISSUER}/keys")
    login.shown = KeySet([EC]).as_dict()
    for _ in range(50):
        with pytest.raises(BadToken):
            issuers.read(sign(claims(clock), EC, "ES256"))
        await issuers.refresh()
    assert len(login.read) == 1
    await clock.advance(60_000)
    await issuers.refresh()
    assert len(login.read) == 2
    assert issuers.read(sign(claims(clock), EC, "ES256")).principal == "shop"
    with pytest.raises(BadToken):
        issuers.read(sign(claims(clock)))


async def test_keys_stay_known_while_their_issuer_is_away() -> None:
    """And whoever comes before they were known is told to come again."""
    clock, login = VirtualClock(), Login(RSA)
    shown, login.shown = login.shown, None
    issuers = await make_issuers(login, clock)
    with pytest.raises(BadToken) as early:
        issuers.read(sign(claims(clock)))
    assert early.value.is_temporary
    login.shown = shown
    await clock.advance(60_000)
    await issuers.refresh()
    assert issuers.read(sign(claims(clock))).principal == "shop"
    login.shown = None
    for _ in range(3):
        await clock.advance(300_000)
        await issuers.refresh()
    assert issuers.read(sign(claims(clock))).principal == "shop"


ODD_KEYS: Mapping[str, object] = {
    "a curve that is not known": {**EC.as_dict(private=False), "kid": "odd", "crv": "brainpoolP256r1"},
    "another curve that is not known": {**ED.as_dict(private=False), "kid": "odd", "crv": "Ed999"},
    "a point that is on no curve": {**EC.as_dict(private=False), "kid": "odd", "x": EC.as_dict(private=False)["y"]},
    "without a modulus": {"kty": "RSA", "kid": "odd", "e": "AQAB"},
    "a number as its id": {**EC.as_dict(private=False), "kid": 7},
    "a use that is not known": {**EC.as_dict(private=False), "kid": "odd", "key_ops": ["sleep"]},
    "a list as its kind": {**EC.as_dict(private=False), "kid": "odd", "kty": ["EC"]},
    "no object": "key",
}


@pytest.mark.parametrize("what", ODD_KEYS)
async def test_key_that_cannot_be_used_hides_no_other(what: str) -> None:
    """Issuers show keys for others too: whoever signs with one that can be used is let in."""
    clock, login = VirtualClock(), Login(RSA)
    assert login.shown is not None
    login.shown["keys"].insert(0, ODD_KEYS[what])
    issuers = await make_issuers(login, clock)
    assert issuers.read(sign(claims(clock))).principal == "shop"


@pytest.mark.parametrize("document", ['{"keys": "none"}', '{"keys": {"kid": "rsa"}}', "[" * 100_000, '{"keys": [0]}'])
async def test_document_that_cannot_be_read_leaves_known_keys_known(document: str) -> None:
    """Of this issuer, and those of the next one are read all the same."""
    clock, login = VirtualClock(), Login(RSA)
    shown = [json.dumps(login.shown)] * 2

    async def fetch(url: str) -> bytes:
        return shown[url == "https://other.example/keys"].encode()

    configs = [IssuerConfig(name, AUDIENCE, f"{name}/keys") for name in (ISSUER, "https://other.example")]
    issuers = Issuers(configs, fetch, clock)
    await issuers.refresh()
    shown[:] = [document, json.dumps(KeySet([EC]).as_dict())]
    await clock.advance(300_000)
    await issuers.refresh()
    assert issuers.read(sign(claims(clock))).principal == "shop"
    assert issuers.read(sign(claims(clock, iss="https://other.example"), EC, "ES256")).principal == "shop"


async def test_discovery_document_of_another_issuer_is_not_believed() -> None:
    """Source: OpenID Connect Discovery 1.0, section 4.3."""
    clock, login = VirtualClock(), Login(RSA)
    login.names = "https://login.example.evil"
    issuers = await make_issuers(login, clock)
    with pytest.raises(BadToken) as early:
        issuers.read(sign(claims(clock)))
    assert early.value.is_temporary
    assert len(login.read) == 1
