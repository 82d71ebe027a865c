"""A stage for windows that random kills do not find: an owner behind the proxy, a successor beside it, one queue."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import count_members, read_states
from tests.support.kafka_proxy import END_TXN, PRODUCE, Gate, KafkaProxy, ProxiedBroker
from tests.support.process_pool import shared_pool

TAKE_OVER_S = 120.0


class Committing:
    """A commit on its way, repeated until its outcome is known."""

    def __init__(self, front: BridgeProcess, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        self.result: dict[str, Any] | None = None
        self._front = front
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self, seconds: float = TAKE_OVER_S) -> dict[str, Any]:
        """The settled transaction."""
        self._thread.join(seconds)
        assert self.result is not None, f"{self.transaction_id} is not settled"
        return self.result

    def _run(self) -> None:
        while self.result is None:
            try:
                reply = self._front.post(f"/v1/transactions/{self.transaction_id}/commit")
            except httpx2.TransportError:
                return  # the test is over
            if reply.status_code not in {503, 504}:
                self.result = reply.json()


class Stage:
    """One topic and one story. `owner` processes pass the proxy, `successor` processes do not."""

    def __init__(self, kafka: ProxiedBroker, bridge: Bridge, front: BridgeProcess, name: str) -> None:
        self.kafka = kafka
        self.bridge = bridge
        self.front = front
        self.topic = f"windows.{name}"
        self._stack = ExitStack()
        create_topics(kafka.direct, {self.topic: 1})

    @property
    def proxy(self) -> KafkaProxy:
        return self.kafka.proxy

    @property
    def writer(self) -> str:
        """What the client ids of the queue's two transactional producers have in common."""
        return f"{self.bridge.prefix}outbox-bridge-0-"

    def start_owner(self) -> BridgeProcess:
        """A settler behind the proxy; not waited for."""
        return self._start("owner", self.proxy.bootstrap)

    def start_successor(self) -> BridgeProcess:
        """A settler that reaches the broker directly, and is in the group as its second member."""
        successor = self._start("successor", self.kafka.direct)
        wait_until(lambda: count_members(self.kafka.direct, self.bridge.group) == 2, name="a second member")
        return successor

    def _start(self, name: str, bootstrap: str) -> BridgeProcess:
        module, bridge = "tests.support.settler_process", self.bridge
        command = [module, bootstrap, bridge.prefix, "1", bridge.database_url]
        log = self.bridge.directory / f"{self.topic}-{name}.log"
        child = shared_pool().start(command, os.environ, bridge.directory, log)
        return self._stack.enter_context(BridgeProcess(child, 0, log))

    def prepare(self, value: str) -> str:
        """A transaction with one message."""
        body = {"producer_group": "shop", "messages": [{"topic": self.topic, "value": value}]}
        reply = self.front.post("/v1/transactions", body)
        assert reply.status_code == 201, reply.text
        transaction_id: str = reply.json()["transaction_id"]
        return transaction_id

    def commit(self, value: str) -> Committing:
        """Prepares and begins to commit."""
        return Committing(self.front, self.prepare(value))

    def hold_closing(self, client: str = "") -> Gate:
        """Holds the op messages of the next Kafka transaction that publishes: its real messages are written."""
        return self.proxy.hold(PRODUCE, client=client or self.writer, containing=b"COMMITTED")

    def catch_end(self, closing: Gate) -> Gate:
        """Opens `hold_closing` and holds EndTxn of that Kafka transaction: everything is written."""
        end = self.proxy.hold(END_TXN, client=closing.wait_caught().client_id)
        closing.open()
        end.wait_caught()
        return end

    def visible(self) -> list[str]:
        """What a reader outside the bridge has."""
        return [(record.value or b"").decode() for record in read_committed(self.kafka.direct, [self.topic])]

    def final_ops(self, transaction_id: str) -> int:
        """How often the op topic says that it has ended and is published, or needs no publishing."""
        states = read_states(self.bridge)[transaction_id]
        return sum(s["state"] in {"COMMITTED", "ROLLED_BACK"} and not s.get("blocked") for s in states)

    def close(self) -> None:
        """Ends the settlers."""
        self._stack.close()


def take_overs(process: BridgeProcess) -> int:
    """How often it has taken its queue over."""
    return process.log.read_text().count('"event": "queue_taken_over"')


def wait_for_take_over(process: BridgeProcess, count: int = 1) -> None:
    """Until it has."""
    wait_until(lambda: take_overs(process) >= count, TAKE_OVER_S, f"take-over {count} by {process.log.name}")


@contextmanager
def bridge_front(kafka: ProxiedBroker, folder: Path) -> Iterator[tuple[Bridge, BridgeProcess]]:
    """A bridge with one queue and an api process, without a settler."""
    bridge = Bridge.create(kafka.direct, folder, queues=1)
    with bridge.start("api,projector") as front:
        wait_until(lambda: '"projector_active"' in front.log.read_text(), 60, "the front")
        yield bridge, front
