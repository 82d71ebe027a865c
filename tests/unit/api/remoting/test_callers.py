"""Who signed a request, and what becomes of connections whose rights change."""

from collections.abc import Mapping
from typing import Any

import pytest

from api.remoting.door import Door, DoorConfig, DoorParts
from api.remoting.frame import RemotingCommand
from api.remoting.groups import RemotingCallers
from bridge.core.grants import Grant, Rights, Verb
from bridge.core.keyring import BridgeKey, Keyring
from bridge.service.access import ANYBODY, AccessConfig, Caller, SigningSecrets
from tests.support.remoting_client import sign as sign_fields

_OLD, _NEW = BridgeKey("1", b"o" * 32), BridgeKey("2", b"n" * 32)


class Access:
    """Keys by their ids."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.config = AccessConfig(is_open=is_open)
        self.generation = 1
        self.keys: dict[str, tuple[Caller, str]] = {}
        self.used: list[str | None] = []
        self.grant("shop")

    def grant(self, *groups: str) -> None:
        rights = Rights([Grant(Verb.CHECK, group) for group in groups])
        self.keys["k3v9q2ta"] = Caller("shop", rights, "k3v9q2ta"), "hash of the key"
        self.generation += 1

    def find_key(self, key_id: str) -> tuple[Caller, str] | None:
        return self.keys.get(key_id)

    def note_use(self, caller: Caller) -> None:
        self.used.append(caller.key_id)


def make_callers(access: Access, *keys: BridgeKey) -> tuple[RemotingCallers, SigningSecrets]:
    secrets = SigningSecrets(access, Keyring(keys or [_OLD]))  # type: ignore[arg-type]
    return RemotingCallers(secrets), secrets


def sign(secret: str, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
    """As AclClientRPCHook does."""
    return RemotingCommand(310, fields=sign_fields("k3v9q2ta", secret, fields, body), body=body)


def test_a_signature_proves_who_calls_for_what_it_covers() -> None:
    """Fields and body; not those of another request, and not with another's secret."""
    access = Access()
    callers, secrets = make_callers(access)
    secret = secrets.make("k3v9q2ta")
    assert secret is not None
    good = sign(secret, {"b": "orders", "a": "shop", "ü": "ü"}, b"paid")
    found = callers.identify(good)
    assert found is not None
    assert (found.name, access.used) == ("shop", ["k3v9q2ta"])
    for fields, body in (
        ({**good.fields, "b": "secrets"}, b"paid"),
        ({**good.fields, "z": "more"}, b"paid"),
        (good.fields, b"free"),
        ({**good.fields, "AccessKey": "aaaaaaaa"}, b"paid"),
        ({**good.fields, "Signature": ""}, b"paid"),
        ({name: text for name, text in good.fields.items() if name not in {"AccessKey", "Signature"}}, b"paid"),
    ):
        assert callers.identify(RemotingCommand(310, fields=fields, body=body)) is None
    assert callers.identify(sign(secret[:-1], {})) is None


def test_what_is_signed_must_be_right_even_where_nobody_has_to_sign() -> None:
    """As with keys over HTTP."""
    callers, secrets = make_callers(Access(is_open=True))
    assert callers.identify(RemotingCommand(310)) is ANYBODY
    assert callers.identify(sign(f"{secrets.make('k3v9q2ta')}x", {})) is None


def test_a_secret_ends_with_its_key_and_lives_on_beside_a_new_one_of_the_bridge() -> None:
    """Revoked, it is refused at once where that is known."""
    access = Access()
    secret = make_callers(access)[1].make("k3v9q2ta")
    assert secret is not None
    callers, secrets = make_callers(access, _NEW, _OLD)
    assert secrets.make("k3v9q2ta") != secret
    assert callers.identify(sign(secret, {})) is not None
    del access.keys["k3v9q2ta"]
    access.generation += 1
    assert callers.identify(sign(secret, {})) is None
    assert secrets.make("k3v9q2ta") is None


class Groups:
    """Who speaks for which group."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def leave(self, member: object, groups: list[str]) -> None:
        self.left += groups


@pytest.mark.parametrize(("granted", "left"), [(["shop", "till"], []), (["till"], ["shop"]), (None, ["shop", "till"])])
def test_checks_follow_the_rights_of_now(granted: list[str] | None, left: list[str]) -> None:
    """They show messages: a connection whose key has lost a group, or is over, is not asked any more."""
    access, groups, nobody = Access(), Groups(), Any
    callers, _ = make_callers(access)
    parts = DoorParts(nobody, nobody, groups, callers, lambda: nobody, nobody, nobody)  # type: ignore[arg-type]
    door = Door(parts, DoorConfig("127.0.0.1:9876", 1_000))

    class Peer:
        caller = access.keys["k3v9q2ta"][0]
        groups = {"shop", "till"}  # noqa: RUF012

    peer = Peer()
    if granted is None:
        access.keys.clear()
        access.generation += 1
    else:
        access.grant(*granted)
    door.review([peer])  # type: ignore[list-item]
    assert sorted(groups.left) == left
    assert peer.groups == {"shop", "till"}.difference(left)
