"""A bridge that asks for keys, as three processes: whoever calls it proves who they are, or is told what to do."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import outbox
from bridge.core.access_key import RANDOM_BYTES, make_key_text
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


class Keyed(NamedTuple):
    """Two API processes and an engine. `admin`: the key of the settings; `topic`: what `shop` may publish to."""

    first: BridgeProcess
    second: BridgeProcess
    admin: str
    topic: str
    kafka: str
    folder: Path

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
    settings = {"OUTBOX_BRIDGE_INSECURE_NO_AUTH": "false", "OUTBOX_BRIDGE_AUTH__ADMIN_KEY": admin}
    bridge = Bridge.create(kafka, folder, **settings)
    with ExitStack() as stack:
        engine, first, second = [
            stack.enter_context(bridge.start(role)) for role in ("settler,projector", "api", "api")
        ]
        for process in (engine, first, second):
            process.wait_ready()
        yield Keyed(first, second, admin, topic, kafka, folder)


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
