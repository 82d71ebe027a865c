"""A bridge that asks for keys, as three processes: whoever calls it proves who they are, or is told what to do."""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

import outbox
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from outbox.hand_over import HttpHandOver
from outbox.relay import RelayConfig
from tests.support.bridge_process import (
    Bridge,
    BridgeProcess,
    check_endpoint,
    create_topics,
    read_committed,
    wait_until,
)
from tests.support.cli_process import run_command
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.sdk_twins import Session
from tests.support.user_database import UserDatabase


@contextmanager
def serving_login(keys: KeySet) -> Iterator[str]:
    """An OIDC issuer that shows these keys; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_keys = self.path == "/keys"
            told = keys.as_dict() if is_keys else {"issuer": url, "jwks_uri": f"{url}/keys"}
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


class Keyed(NamedTuple):
    """Two API processes and an engine. `admin`: the key of the settings; `topic`: what `shop` may publish to;
    `login`: an issuer whose tokens are believed, and its key.
    """

    first: BridgeProcess
    second: BridgeProcess
    admin: str
    topic: str
    kafka: str
    folder: Path
    login: str
    signer: ECKey

    def make_token(self, subject: str) -> str:
        """One of the issuer."""
        now_s = int(time.time())
        told = {"iss": self.login, "aud": "outbox-bridge", "sub": subject, "exp": now_s + 600}
        return jwt.encode({"alg": "ES256", "kid": self.signer.kid}, told, self.signer)

    def run(self, *arguments: str, key: str | None) -> "tuple[int, str, str]":
        """Exit code and output of a command that is told to ask the first process."""
        settings = {"OUTBOX_BRIDGE_URL": self.first.url} | ({} if key is None else {"OUTBOX_BRIDGE_KEY": key})
        done = run_command(*arguments, folder=self.folder, settings=settings)
        return done.returncode, done.stdout, done.stderr

    def make_key(self, principal: str, *grants: str) -> Mapping[str, str]:
        """A new key, made by the command."""
        code, told, errors = self.run("key", "create", principal, *grants, "-o", "json", key=self.admin)
        assert code == 0, errors
        made: Mapping[str, str] = json.loads(told)
        return made

    def revoke(self, key_id: str) -> None:
        """Revoked at the first process."""
        code, _, errors = self.run("key", "revoke", key_id, key=self.admin)
        assert code == 0, errors

    def status(self, process: BridgeProcess, key: str) -> int:
        """What a look with this key is answered with."""
        return process.get("/v1/transactions", headers=proof(key)).status_code


def proof(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def only_key(key: str | None) -> Iterator[None]:
    """The environment of a service whose operator set this key."""
    with pytest.MonkeyPatch.context() as patch:
        if key is None:
            patch.delenv("OUTBOX_BRIDGE_KEY", raising=False)
        else:
            patch.setenv("OUTBOX_BRIDGE_KEY", key)
        yield


@pytest.fixture(scope="module")
def keyed(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    admin, topic = make_key_text(os.urandom(RANDOM_BYTES)), f"keyed-{secrets.token_hex(4)}"
    create_topics(kafka, {topic: 1})
    signer = ECKey.generate_key("P-256", {"kid": "1"})
    with ExitStack() as stack:
        login = stack.enter_context(serving_login(KeySet([signer])))
        issuers = json.dumps([{"issuer": login, "audience": "outbox-bridge", "prefix": "login:"}])
        settings = {"OUTBOX_BRIDGE_AUTH__ADMIN_KEY": admin, "OUTBOX_BRIDGE_AUTH__ISSUERS": issuers}
        bridge = Bridge.create(kafka, folder, OUTBOX_BRIDGE_INSECURE_NO_AUTH="false", **settings)
        engine, first, second = [
            stack.enter_context(bridge.start(role)) for role in ("settler,projector", "api", "api")
        ]
        for process in (engine, first, second):
            process.wait_ready()
        yield Keyed(first, second, admin, topic, kafka, folder, login, signer)


def test_key_is_known_and_forgotten_in_every_process(keyed: Keyed) -> None:
    """Made at one, it is taken by both; revoked at one, it is refused by both."""
    made = keyed.make_key("reader", "--allow", "read:*")
    wait_until(lambda: keyed.status(keyed.second, made["key"]) == 200, 5, "the key to be known")
    assert keyed.status(keyed.first, made["key"]) == 200
    keyed.revoke(made["key_id"])
    assert keyed.status(keyed.first, made["key"]) == 401
    wait_until(lambda: keyed.status(keyed.second, made["key"]) == 401, 5, "the key to be refused")


def test_command_says_which_key_is_missing_or_refused(keyed: Keyed) -> None:
    """And what to do; what is granted works, what is not is refused with the verb that it needs."""
    reader = keyed.make_key("looker", "--allow", "read:*")["key"]
    code, _, errors = keyed.run("tx", "list", key=None)
    assert (code != 0, "OUTBOX_BRIDGE_KEY" in errors, "unauthenticated" in errors) == (True, True, True), errors
    code, _, errors = keyed.run("tx", "list", key=make_key_text(os.urandom(RANDOM_BYTES)))
    assert (code != 0, "not known" in errors) == (True, True), errors
    assert keyed.run("tx", "list", key=reader)[0] == 0
    code, _, errors = keyed.run("key", "list", key=reader)
    assert (code != 0, "admin" in errors) == (True, True), errors


def test_sdk_sends_its_key_and_does_nothing_without(keyed: Keyed) -> None:
    """Without a key, or with one for another topic, the local transaction is not committed."""
    shop = keyed.make_key("shop", "--producer", f"orders:{keyed.topic}")["key"]
    other = keyed.make_key("baker", "--producer", "orders:bread.*")["key"]
    for key, words in ((None, "a credential is needed"), (other, "prepare")):
        session = Session()
        with (
            only_key(key),
            outbox.Bridge(keyed.first.url, "orders", record=Session()) as face,
            pytest.raises(outbox.OutboxError, match=words),
            face.transaction(session) as transaction,
        ):
            transaction.send(keyed.topic, key="7", value="never")
        assert "commit" not in session.called
    with (
        only_key(shop),
        outbox.Bridge(keyed.first.url, "orders", record=Session()) as face,
        face.transaction(Session()) as transaction,
    ):
        transaction.send(keyed.topic, key="8", value="sent")
    assert transaction.result is not None
    assert transaction.result.is_settled
    assert [record.value for record in read_committed(keyed.kafka, [keyed.topic]) if record.key in {b"7", b"8"}] == [
        b"sent"
    ]


def test_rows_wait_while_the_relay_has_no_valid_key(keyed: Keyed, tmp_path: Path) -> None:
    """A revoked key parks no row: all go out with the next key."""
    world = OutboxWorld(UserDatabase("sqlite", f"sqlite:///{tmp_path / 'shop.db'}", ""))
    made = keyed.make_key("relay", "--producer", f"relayed:{keyed.topic}")
    keyed.revoke(made["key_id"])
    world.enqueue(*[Sent(keyed.topic, b"row", b"%d" % number) for number in range(3)])
    with only_key(made["key"]), closing(HttpHandOver(keyed.first.url, "relayed")) as hand_over:
        relay = world.relay(hand_over, RelayConfig(min_delay_ms=1, max_delay_ms=1))
        relay.run_once()
    assert (relay.read_parked(), world.count()[0]) == ([], 3)
    with only_key(keyed.make_key("relay")["key"]), closing(HttpHandOver(keyed.first.url, "relayed")) as hand_over:
        relay = world.relay(hand_over, RelayConfig(min_delay_ms=1, max_delay_ms=1))
        wait_until(lambda: relay.run_once() and world.count()[0] == 0, name="rows handed over")
    read = [record.value for record in read_committed(keyed.kafka, [keyed.topic]) if record.key == b"row"]
    assert sorted(value or b"" for value in read) == [b"0", b"1", b"2"]


def test_key_that_is_revoked_before_the_commit_loses_nothing(keyed: Keyed) -> None:
    """Checks need no key of the producer's: they are signed with the secret of its group."""
    made = keyed.make_key("hasty", "--producer", f"hasty:{keyed.topic}")
    headers = proof(keyed.admin)
    with check_endpoint() as endpoint:
        body = {"endpoints": [{"url": endpoint.url}], "check": {"transaction_timeout_seconds": 1}}
        assert keyed.first.http.put("/v1/producer-groups/hasty", json=body, headers=headers).status_code in {200, 201}
        sent = {"producer_group": "hasty", "messages": [{"topic": keyed.topic, "key": "hasty", "value": "kept"}]}
        prepared = keyed.first.post("/v1/transactions", sent, headers=proof(made["key"])).json()
        keyed.revoke(made["key_id"])
        place = f"/v1/transactions/{prepared['transaction_id']}"
        assert keyed.first.post(f"{place}/commit", headers=proof(made["key"])).status_code == 401
        endpoint.answers[prepared["transaction_id"]] = "COMMIT"
        wait_until(lambda: keyed.first.get(place, headers=headers).json()["state"] == "COMMITTED", 60, "the rescue")
    assert [r.value for r in read_committed(keyed.kafka, [keyed.topic]) if r.key == b"hasty"] == [b"kept"]


def test_token_of_an_issuer_names_a_principal_with_grants(keyed: Keyed) -> None:
    """Without any it may do nothing; what it does is audited in its name."""
    token = keyed.make_token("alice")
    wait_until(lambda: keyed.status(keyed.first, token) != 503, 30, "the issuer's keys")
    assert keyed.status(keyed.first, token) == 403
    code, _, errors = keyed.run("key", "grant", "login:alice", "--allow", "read,admin:*", key=keyed.admin)
    assert code == 0, errors
    assert keyed.status(keyed.first, token) == 200
    assert keyed.run("group", "put", "of-alice", key=token)[0] == 0
    entries = keyed.first.get("/v1/audit", headers=proof(token)).json()["entries"]
    assert [entry["actor"] for entry in entries if entry["target"] == "of-alice"] == ["login:alice/jwt@127.0.0.1"]
    stranger = ECKey.generate_key("P-256", {"kid": "1"})
    assert keyed.status(keyed.first, keyed._replace(signer=stranger).make_token("alice")) == 401
