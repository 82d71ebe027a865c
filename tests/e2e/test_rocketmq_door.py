"""The door on a real bridge: refusals with their remedy, repeats, and clients that mean no good."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from api.remoting.frame import RemotingCommand, encode_frame
from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.remoting_client import RemotingClient


class Door(NamedTuple):
    """A bridge with a door."""

    kafka: str
    port: int
    process: BridgeProcess

    def count(self, name: str) -> float:
        """A metric of the door."""
        lines = self.process.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"outbox_bridge_remoting_{name} "))


@contextmanager
def opened(port: int) -> Iterator[RemotingClient]:
    client = RemotingClient(port)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def door(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One for all tests here."""
    folder, port = tmp_path_factory.mktemp("raw-door"), choose_free_port()
    settings = {"OUTBOX_BRIDGE_REMOTING__PORT": str(port), "OUTBOX_BRIDGE_REMOTING__CONNECTIONS": "60"}
    bridge = Bridge.create(kafka, folder, **settings)
    with bridge.serve("api,settler,projector,remoting") as process:
        yield Door(kafka, port, process)


@pytest.mark.parametrize(("topic", "properties", "words"), [
    ("nowhere", {}, "unknown-topic: |outbox-bridge topic create"),
    ("RMQ_SYS_TRANS_HALF_TOPIC", {}, "reserved-topic: "),
    ("NS%orders", {}, "illegal-topic: |namespace"),
    ("orders", {"TIMER_DELAY_SEC": "5"}, "without a delay"),
    ("orders", {"properties": "x"}, "invalid-request: |reserved"),
    ("orders", {"PGROUP": "NS%shop"}, "invalid-request: |(/producer_group)"),
])  # fmt: skip
def test_refusals_reach_the_client_with_their_remedy(
    door: Door, topic: str, properties: dict[str, str], words: str
) -> None:
    """Code 13: a Java client does not try it again, and shows the words."""
    with opened(door.port) as client:
        answer = client.send(topic, f"K-{topic}-{len(properties)}", **properties)
    assert answer.code == 13, answer
    assert all(word in (answer.remark or "") for word in words.split("|")), answer.remark


def test_a_refused_send_makes_no_group(door: Door) -> None:
    """Each misspelt name left one behind, in the console and in SQL. One that is taken makes it, to be fetched from."""
    create_topics(door.kafka, {"made": 1})
    with opened(door.port) as client:
        found = []
        for topic in ("not-made", "made"):
            client.send(topic, f"K-{topic}", PGROUP="new-shop")
            found.append(door.process.get("/v1/producer-groups/new-shop"))
    assert [answer.status_code for answer in found] == [404, 200]
    assert found[1].json()["check"]["mode"] == "pull"


def test_what_is_not_served_is_refused_with_a_sentence(door: Door) -> None:
    """A consumer's pull, say."""
    with opened(door.port) as client:
        answer = client.ask(11, {"topic": "orders"})
        assert answer is not None
        assert answer.code == 3
        assert "consume them from Kafka" in (answer.remark or "")
        route = client.ask(105, {"topic": "anything"})
        assert route is not None
        assert msgspec.json.decode(route.body)["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{door.port}"}


def test_a_resend_is_one_transaction_and_is_refused_once_it_has_ended(door: Door) -> None:
    """RocketMQ would leave an orphan, or publish twice. A second commit by another connection changes nothing."""
    create_topics(door.kafka, {"resent": 1})
    with opened(door.port) as one, opened(door.port) as other:
        # properties have no order: the client for Go writes them in another one each time
        first, again = one.send("resent", "K1", a="1", b="2"), other.send("resent", "K1", b="2", a="1")
        assert (first.code, again.code) == (0, 0)
        assert first.fields["transactionId"] == again.fields["transactionId"]
        one.end(first.fields["transactionId"], 8)
        other.end(first.fields["transactionId"], 8)
        other.end(first.fields["transactionId"], 12)
        wait_until(lambda: read_committed(door.kafka, ["resent"]), 20, "commit")
        late = one.send("resent", "K1", a="1", b="2")
    assert late.code == 13
    assert "create a new Message" in (late.remark or "")
    assert [record.value for record in read_committed(door.kafka, ["resent"])] == [b"paid"]


def test_an_end_of_another_group_changes_nothing(door: Door) -> None:
    """Nor does an answer to a check that nobody asked."""
    create_topics(door.kafka, {"foreign": 1})
    with opened(door.port) as client:
        sent = client.send("foreign", "F1").fields["transactionId"]
        client.end(sent, 8, "thieves")
        client.end(f"{sent}.1-abcdefghijklmnopqrstuv0123456789", 8)
        client.end(sent, 12)
        later = client.send("foreign", "F2").fields["transactionId"]
        client.end(later, 8)
        wait_until(lambda: read_committed(door.kafka, ["foreign"]), 20, "the later one")
    assert len(read_committed(door.kafka, ["foreign"])) == 1


def test_metrics_count_what_clients_do(door: Door) -> None:
    """A sum that only grows; what names nothing of ours, apart."""
    create_topics(door.kafka, {"counted": 1})
    names = ("sends_total", "sends_refused_total", "ends_total", "ends_strange_total")
    before = [door.count(name) for name in names]
    with opened(door.port) as client:
        sent = client.send("counted", "N1").fields["transactionId"]
        client.send("nowhere", "N2")
        client.end(sent, 8)
        client.end("", 8)
        wait_until(
            lambda: [door.count(n) - old for n, old in zip(names, before, strict=True)] == [2, 1, 1, 1], 10, "all"
        )
        assert door.count("connections") >= 1


_HOSTILE = {
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
    "a huge length": struct.pack(">i", 0x7FFFFFFF) + bytes(1_000),
    "a handshake where TLS is off": b"\x16\x03\x01" + bytes(500),
    "half a frame": struct.pack(">ii", 1_000_000, 20) + bytes(100),
    "deep JSON": struct.pack(">ii", 4 + 40_000, 40_000) + b"[" * 40_000,
}


def test_hostile_clients_slow_nobody_else(door: Door) -> None:
    """Garbage, half-open connections, and clients that ask for routes and never read the answers, all at once."""
    kafka, port = door.kafka, door.port
    create_topics(kafka, {"calm": 1})
    stop = threading.Event()

    def flood() -> None:
        request = encode_frame(RemotingCommand(105, 1, 0, 513, None, {"topic": "t"})) * 500
        while not stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as greedy:
                    for _ in range(200):
                        greedy.sendall(request)
            except OSError:
                time.sleep(0.01)

    with ExitStack() as stack, opened(port) as client:
        assert client.send("calm", "warm").code == 0
        for raw in (*_HOSTILE.values(), b"", b"\x00"):
            for _ in range(4):
                other = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                with suppress(OSError):
                    other.sendall(raw)
        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            took = []
            for number in range(30):
                began = time.monotonic()
                assert client.send("calm", f"C{number}-{os.getpid()}").code == 0
                took.append(time.monotonic() - began)
        finally:
            stop.set()
            flooding.join(30)
    assert sorted(took)[len(took) // 2] < 2.0, took


def test_a_bad_frame_ends_its_connection_alone(door: Door) -> None:
    """At once."""
    for name, raw in _HOSTILE.items():
        if name == "half a frame":
            continue
        with opened(door.port) as bad:
            bad.socket.sendall(raw)
            with pytest.raises((ConnectionError, OSError)):
                bad.read()


def test_connections_have_a_bound(door: Door) -> None:
    """One too many is closed; when others are gone it is taken."""
    with ExitStack() as stack:
        clients = [stack.enter_context(opened(door.port)) for _ in range(80)]
        answered = 0
        for client in clients:
            try:
                answered += client.ask(46, {}) is not None
            except OSError:
                continue
        assert 40 <= answered <= 60
    wait_until(lambda: _is_served(door.port), 10, "room")


def test_many_connections_are_served_at_once(kafka: str, tmp_path: Path) -> None:
    """As many as are allowed, each with a group of its own: all half messages are out before the first is ended."""
    count = 2_000 if os.environ.get("FULL_SIZE") == "1" else 200
    create_topics(kafka, {"many": 2})
    port = choose_free_port()
    own = {"OUTBOX_BRIDGE_REMOTING__PORT": str(port), "OUTBOX_BRIDGE_REMOTING__CONNECTIONS": str(count)}
    bridge = Bridge.create(kafka, tmp_path, **own)
    with bridge.serve("api,settler,projector,remoting") as process, ExitStack() as stack:
        clients = [stack.enter_context(opened(port)) for _ in range(count)]
        for number, client in enumerate(clients):
            heartbeat = {"clientID": f"c{number}", "producerDataSet": [{"groupName": f"shop-{number}"}]}
            answer = client.ask(34, {}, msgspec.json.encode(heartbeat))
            assert answer is not None
            assert answer.code == 0
        for number, client in enumerate(clients):
            client.begin_send("many", f"M{number}", f"{number}".encode())
        sent = [client.read() for client in clients]
        assert {answer.code for answer in sent} == {0}
        for client, answer in zip(clients, sent, strict=True):
            client.end(answer.fields["transactionId"], 8)
        wait_until(lambda: len(read_committed(kafka, ["many"])) >= count, 60, "all")
        assert not _is_served(port)
        assert process.get("/readyz").status_code == 200
    assert sorted(record.value or b"" for record in read_committed(kafka, ["many"])) == sorted(
        f"{number}".encode() for number in range(count)
    )


def _is_served(port: int) -> bool:
    try:
        with opened(port) as client:
            return client.ask(46, {}) is not None
    except OSError:
        return False
