"""Secrets in the database of a bridge that runs: turned on without a stop, another key, a key that is missing."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.client.checks import SignatureVerifier
from tests.support.bridge_process import Bridge, BridgeProcess, CheckEndpoint, check_endpoint, create_topics, wait_until

TOPIC = "at-rest.orders"
KEYS, FIRST = "OUTBOX_BRIDGE_SECURITY__KEYS_FILE", f"k1:{'A' * 43}"
SECOND = f"k2:{'B' * 43}"


@pytest.fixture(scope="module")
def topic(kafka: str) -> str:
    """Where messages go."""
    create_topics(kafka, {TOPIC: 1})
    return TOPIC


@pytest.fixture
def endpoint() -> Iterator[CheckEndpoint]:
    """Of a group whose URL has a token."""
    with check_endpoint("COMMIT") as made:
        yield made


def put_group(process: BridgeProcess, endpoint: CheckEndpoint) -> str:
    """The group; its secret."""
    body = {"endpoints": [{"url": f"{endpoint.url}?token=t0ken"}], "check": {"transaction_timeout_seconds": 1}}
    answer = process.http.put("/v1/producer-groups/shop", json=body)
    assert answer.status_code == 201, answer.text
    secret: str = answer.json()["secret"]
    return secret


def is_checked(process: BridgeProcess, endpoint: CheckEndpoint, secret: str) -> None:
    """A transaction whose end never comes is asked about, with a right signature."""
    sent = {"producer_group": "shop", "messages": [{"topic": TOPIC, "value": "v"}]}
    made = process.post("/v1/transactions", sent).json()["transaction_id"]
    wait_until(lambda: process.get(f"/v1/transactions/{made}").json()["state"] == "COMMITTED", 60, "it is checked")
    call = endpoint.received[-1]
    SignatureVerifier([secret]).verify(call.headers, call.body, time.time_ns() // 1_000_000)


def find(folder: Path, *texts: str) -> list[tuple[str, str]]:
    """Which files of the database hold which of these."""
    files = [file for file in folder.iterdir() if file.name.startswith("bridge.db")]
    assert files
    return [(file.name, text) for file in files for text in texts if text.encode() in file.read_bytes()]


def test_bridge_that_begins_with_a_key_never_writes_a_secret_in_clear(
    kafka: str, topic: str, endpoint: CheckEndpoint, tmp_path: Path
) -> None:
    """Neither into its database nor into the journal beside it. Without the key it says what is missing."""
    (tmp_path / "keys").write_text(f"{FIRST}\n")
    bridge = Bridge.create(kafka, tmp_path, **{KEYS: str(tmp_path / "keys")})
    with bridge.serve() as process:
        secret = put_group(process, endpoint)
        second = process.post("/v1/producer-groups/shop/rotate-secret").json()["secret"]
        leased = {"url": f"{endpoint.url}/7?token=leased-t0ken"}
        assert process.post("/v1/producer-groups/shop/endpoints", leased).status_code == 200
        is_checked(process, endpoint, second)
        assert find(tmp_path, secret, second, "t0ken") == []
    assert find(tmp_path, secret, second, "t0ken") == []
    for text, missing in ((SECOND, "which is not in security.keys"), (f"k1:{'C' * 43}", "is another key")):
        (tmp_path / "keys").write_text(text)
        for command in (("serve", "--port", "0"), ("migrate",), ("projection", "rebuild")):
            said = bridge.run_refused(*command)
            assert (missing in said, "k1" in said, "what to do" in said) == (True, True, True), said
        (found,) = [one for one in json.loads(bridge.run_refused("doctor", "-o", "json")) if one["what"] == "endpoints"]
        assert missing in found["found"]


def test_secrets_are_encrypted_while_the_bridge_runs(
    kafka: str, topic: str, endpoint: CheckEndpoint, tmp_path: Path
) -> None:
    """First each process gets the key, then everything is encrypted; the same again with another key."""
    keys = tmp_path / "keys"
    bridge = Bridge.create(kafka, tmp_path)
    with bridge.serve() as old:
        secret = put_group(old, endpoint)
        keys.write_text(FIRST)
        bridge.settings[KEYS] = str(keys)
        with bridge.serve() as new:
            assert bridge.run("security", "show", "-o", "jsonl").split() == ['{"key":null,"secrets":3}']
            rotated = new.post("/v1/producer-groups/shop/rotate-secret").json()["secret"]
            is_checked(old, endpoint, secret)
            is_checked(old, endpoint, rotated)  # written by who has the key, read by who does not yet
            old.stop()
            bridge.run("security", "rewrap")
            assert json.loads(bridge.run("security", "show", "-o", "jsonl")) == {"key": "k1", "secrets": 4}
            is_checked(new, endpoint, rotated)
            keys.write_text(f"{SECOND}\n{FIRST}\n")
            with bridge.serve() as next_one:
                new.stop()
                bridge.run("security", "rewrap")
                keys.write_text(SECOND)
                is_checked(next_one, endpoint, rotated)
    with bridge.serve() as last:
        is_checked(last, endpoint, secret)
        acts = [(e["action"], e["target"]) for e in last.get("/v1/audit").json()["entries"] if "rewrap" in e["action"]]
        assert acts == [("secrets.rewrap", "key k2"), ("secrets.rewrap", "key k1")]
