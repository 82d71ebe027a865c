"""Kinds of sends of an unmodified RocketMQ client: signed or not, by TLS or in clear, compressed, in batches, plain."""

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from bridge.broker.ports import choose_free_port
from bridge.core.keyring import RANDOM_BYTES, make_key_text
from tests.support.authority import Authority
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.rocketmq_clients import compile_program, find_jars, java, run_program

_PULL = {"check": {"mode": "pull", "transaction_timeout_seconds": 1, "interval_seconds": 1}}


class Signing(NamedTuple):
    """AccessKey and SecretKey of a client."""

    key: str = "-"
    secret: str = ""


class Guarded(NamedTuple):
    """A bridge that asks for keys, with a door that takes TLS and plain connections."""

    kafka: str
    process: BridgeProcess
    address: str
    folder: Path

    def make_key(self, principal: str, groups: str, topics: str) -> Signing:
        """A producer's key."""
        grants = [{"verbs": ["prepare", "decide", "check"], "groups": groups, "topics": topics}]
        assert self.process.http.put(f"/v1/principals/{principal}", json={"grants": grants}).is_success
        made = self.process.http.post(f"/v1/principals/{principal}/keys").json()
        return Signing(made["key_id"], made["signing_secret"])

    def send(self, signing: Signing, group: str, topic: str, kinds: str, *options: str) -> Sequence[str]:
        """What a Java client says of its sends."""
        jars = find_jars("5.5.0")
        compile_program("Sends", jars, self.folder)
        command = [*java(jars, self.folder, *options), "Sends", self.address, topic, group, *signing, kinds]
        code, lines = run_program(command)
        assert code == 0, lines[-20:]
        return lines

    def read(self, topic: str, count: int) -> Counter[str]:
        """What is on the topic."""
        wait_until(lambda: len(read_committed(self.kafka, [topic])) >= count, 30, f"{count} messages on {topic}")
        return Counter((record.value or b"").decode()[:7] for record in read_committed(self.kafka, [topic]))


@pytest.fixture(scope="module")
def guarded(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One for all tests here: the door is a process of its own."""
    folder, port = tmp_path_factory.mktemp("sends"), choose_free_port()
    authority, admin = Authority(folder), make_key_text(secrets.token_bytes(RANDOM_BYTES))
    files = authority.issue()
    bridge = Bridge.create(kafka, folder, OUTBOX_BRIDGE_INSECURE_NO_AUTH="false", OUTBOX_BRIDGE_AUTH__ADMIN_KEY=admin)
    door = {
        "OUTBOX_BRIDGE_REMOTING__PORT": str(port),
        "OUTBOX_BRIDGE_REMOTING__TLS": "permissive",
        "OUTBOX_BRIDGE_HTTP__TLS__CERT": str(files.cert),
        "OUTBOX_BRIDGE_HTTP__TLS__KEY": str(files.key),
    }
    with bridge.serve("api,settler,projector") as process, bridge.start("remoting", **door) as remoting:
        process.http.headers["Authorization"] = f"Bearer {admin}"
        remoting.http.close()
        remoting.http = httpx2.Client(base_url=f"https://127.0.0.1:{remoting.port}", verify=authority.client())
        remoting.wait_ready()
        yield Guarded(kafka, process, f"127.0.0.1:{port}", folder)


def test_grants_hold_for_sends_ends_and_answers(guarded: Guarded) -> None:
    """A signing client is served as its key may; wrong secret, other group, other topic and no key are refused."""
    create_topics(guarded.kafka, {"signed": 1, "unsigned": 1})
    assert guarded.process.http.put("/v1/producer-groups/shop", json=_PULL).is_success
    shop = guarded.make_key("shop", "shop", "signed")
    lines = guarded.send(shop, "shop", "signed", "commit,rollback,check,plain,batch")
    assert [line for line in lines if "SEND_OK" in line] == [
        f"{kind} SEND_OK" for kind in ("commit", "rollback", "check", "plain", "batch")
    ]
    assert "asked check" in lines
    assert guarded.read("signed", 5) == Counter(["commit", "check", "plain", "batch-1", "batch-2"])
    refused = {
        "unauthenticated": [
            guarded.send(shop._replace(secret=f"{shop.secret[:-4]}AAAA"), "shop", "signed", "commit"),
            guarded.send(Signing(), "shop", "signed", "commit,plain"),
        ],
        "forbidden": [
            guarded.send(shop, "thieves", "signed", "commit"),
            guarded.send(shop, "shop", "unsigned", "commit"),
        ],
    }
    for word, told in refused.items():
        for lines in told:
            assert _is_refused(lines, word), lines
    assert guarded.process.http.delete(f"/v1/keys/{shop.key}").is_success
    wait_until(lambda: _is_refused(guarded.send(shop, "shop", "signed", "commit"), "unauthenticated"), 20, "end")
    assert sum(guarded.read("signed", 5).values()) == 5


def test_tls_and_plain_clients_share_a_port(guarded: Guarded) -> None:
    """`tls.enable=true` beside a client that knows of none; both are asked on their connections."""
    create_topics(guarded.kafka, {"secured": 1})
    assert guarded.process.http.put("/v1/producer-groups/tls", json=_PULL).is_success
    signing = guarded.make_key("tls", "tls", "secured")
    for option in ("-Dtls.enable=true", "-Dtls.enable=false"):
        lines = guarded.send(signing, "tls", "secured", "commit,check", option)
        assert {"commit SEND_OK", "check SEND_OK", "asked check"} <= set(lines), lines
    assert guarded.read("secured", 4) == Counter({"commit": 2, "check": 2})


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies_are_inflated(guarded: Guarded, kind: str) -> None:
    """LZ4 and ZSTD with the extra `rocketmq`."""
    topic = f"large-{kind}"
    create_topics(guarded.kafka, {topic: 1})
    signing = guarded.make_key(f"large-{kind}", "large", "large*")
    lines = guarded.send(signing, "large", topic, "large", f"-Drocketmq.message.compressType={kind}")
    assert "large SEND_OK" in lines, lines
    assert guarded.read(topic, 1) == Counter({"largela": 1})


def _is_refused(lines: Sequence[str], word: str) -> bool:
    """Whether the exception has our words, and no local transaction was run."""
    is_local = any(line.startswith("local") for line in lines)
    return not is_local and any("CODE: 13" in line and word in line for line in lines)
