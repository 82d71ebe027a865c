"""What the same client can be pointed at: a real RocketMQ, and a bridge with a door."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from benchmarks.peers.rocketmq.broker import RocketMq, running_rocketmq
from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed
from tests.support.broker import running_broker
from tests.support.remoting_client import RemotingClient

# An interval of more than twice the 3 s that RocketMQ keeps its marks in memory, as by default.
TIMEOUT_S, INTERVAL_S, MOST_CHECKS = 2, 7, 3
_MAKE_TOPIC, _MAX_OFFSET = 17, 30
_PUT_ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"


class Side(Protocol):
    """One of the two. Times of checks are the same in both: TIMEOUT_S, INTERVAL_S, MOST_CHECKS."""

    def open(self, topic: str, group: str) -> None:
        """Makes the topic, and the group where groups are made."""

    def connect(self, group: str) -> RemotingClient:
        """A producer of the group, which can be asked."""

    def count_visible(self, topic: str) -> int:
        """Messages that consumers of the topic get."""

    def count_put_aside(self) -> int:
        """Transactions of which nobody knew what became of them."""

    def restart(self) -> None:
        """Kills whatever keeps transactions, and starts it again."""


class RocketMqSide:
    """A broker, whose topics are counted by their offsets."""

    def __init__(self, peer: RocketMq) -> None:
        self._peer = peer

    def open(self, topic: str, group: str) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        client = RemotingClient(self._peer.broker_port, group)
        answer = client.ask(_MAKE_TOPIC, fields)
        client.close()
        assert answer is not None
        assert answer.code == 0, answer

    def connect(self, group: str) -> RemotingClient:
        client = RemotingClient(self._peer.broker_port, group)
        client.join()
        return client

    def count_visible(self, topic: str) -> int:
        client = RemotingClient(self._peer.broker_port)
        answer = client.ask(_MAX_OFFSET, {"topic": topic, "queueId": "0"})
        client.close()
        return int(answer.fields["offset"]) if answer is not None and answer.code == 0 else 0

    def count_put_aside(self) -> int:
        return self.count_visible(_PUT_ASIDE)

    def restart(self) -> None:
        self._peer.restart_broker()


class DoorSide:
    """One process with all roles, on a Kafka of its own."""

    def __init__(self, kafka: str, folder: Path) -> None:
        self._kafka = kafka
        self._port, self._door = choose_free_port(), choose_free_port()
        self._bridge = Bridge.create(kafka, folder, OUTBOX_BRIDGE_REMOTING__PORT=str(self._door))
        self._process = self._start()

    def _start(self) -> BridgeProcess:
        process = self._bridge.start("api,settler,projector,remoting", port=self._port)
        process.wait_ready()
        return process

    def open(self, topic: str, group: str) -> None:
        create_topics(self._kafka, {topic: 1})
        check = {
            "mode": "pull", "transaction_timeout_seconds": TIMEOUT_S, "interval_seconds": INTERVAL_S,
            "max_checks": MOST_CHECKS,
        }  # fmt: skip
        assert self._process.http.put(f"/v1/producer-groups/{group}", json={"check": check}).is_success

    def connect(self, group: str) -> RemotingClient:
        client = RemotingClient(self._door, group)
        client.join()
        return client

    def count_visible(self, topic: str) -> int:
        return len(read_committed(self._kafka, [topic]))

    def count_put_aside(self) -> int:
        return int(self._process.get("/v1/stats").json()["parked"])

    def restart(self) -> None:
        self.end()
        self._process = self._start()

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.http.close()


@contextmanager
def rocketmq() -> Iterator[Side]:
    """Raises PeerUnavailable where RocketMQ cannot be run."""
    settings = {
        "transactionTimeOut": f"{TIMEOUT_S * 1000}",
        "transactionCheckInterval": f"{INTERVAL_S * 1000}",
        "transactionCheckMax": f"{MOST_CHECKS}",
    }
    with running_rocketmq(settings) as peer:
        yield RocketMqSide(peer)


@contextmanager
def door() -> Iterator[Side]:
    """A bridge."""
    with TemporaryDirectory() as folder, running_broker() as broker:
        side = DoorSide(broker.bootstrap, Path(folder))
        try:
            yield side
        finally:
            side.end()
