"""One small protocol of transactional messages, spoken by the model of RocketMQ's way and by the real bridge."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum
from typing import Any, Protocol

import httpx2

from tests.support.bridge_process import (
    Bridge,
    CheckEndpoint,
    check_endpoint,
    create_topics,
    read_committed,
    wait_until,
)
from tests.support.cluster_acts import set_topic_config
from tests.support.kafka_proxy import END_TXN, ProxiedBroker
from tests.support.rocketmq_model import DISCARD, STEP_MS, Half, Resolution, Response, RocketBroker, RocketSettings

GROUPS = ("shop", "canary", "ghost")
MAX_CHECKS = 2
_MODEL_PATIENCE_MS = 60_000
_PATIENCE_S = 40.0


class Told(Enum):
    """What a producer hears about its end."""

    DONE = "DONE"
    REFUSED = "REFUSED"
    UNKNOWN = "UNKNOWN"


class MessageSystem(Protocol):
    """Groups: shop, canary, ghost. Checks begin after 1 s, then every second, at most 2; times are the system's own."""

    def join(self, group: str, answer: str) -> None:
        """A producer of the group that answers all checks so."""

    def prepare(self, group: str, text: str, *, immunity_seconds: int | None = None) -> str:
        """A transaction with one message; its name."""

    def commit(self, transaction: str) -> Told:
        """Ends it."""

    def rollback(self, transaction: str) -> Told:
        """Ends it."""

    def commit_and_die(self, transaction: str) -> None:
        """The server dies in the commit, after it has written the message and before it does more; then starts."""

    def crash(self) -> None:
        """The server dies and starts again."""

    def commit_unsafely(self, transaction: str) -> Told:
        """Commits while the log takes writes and cannot make them safe; then its power fails and comes back."""

    def break_discards(self) -> None:
        """The topic of discarded messages refuses writes."""

    def repair_discards(self) -> None:
        """It takes them again, after at least one was refused."""

    def wait_until(self, what: Callable[[], bool]) -> bool:
        """Lets time pass until it is true; False when it does not come."""

    def visible(self) -> list[str]:
        """Texts that consumers have."""

    def discarded(self) -> list[str]:
        """Texts in the topic of discarded messages."""

    def asked(self, transaction: str) -> int:
        """How often a producer was asked about it."""


class RocketSystem:
    """The model. Texts are names: each is used once."""

    def __init__(self) -> None:
        self._broker = RocketBroker(RocketSettings(check_max=MAX_CHECKS))
        self._halves: dict[str, Half] = {}

    def join(self, group: str, answer: str) -> None:
        self._broker.producers[group] = lambda _: Resolution[answer]

    def prepare(self, group: str, text: str, *, immunity_seconds: int | None = None) -> str:
        immunity_ms = None if immunity_seconds is None else immunity_seconds * 1_000
        self._halves[text] = self._broker.prepare(group, "orders", text, immunity_ms)
        return text

    def commit(self, transaction: str) -> Told:
        return self._end(transaction, Resolution.COMMIT)

    def rollback(self, transaction: str) -> Told:
        return self._end(transaction, Resolution.ROLLBACK)

    def commit_and_die(self, transaction: str) -> None:
        self._broker.die_after_publishing = True
        assert self.commit(transaction) is Told.UNKNOWN
        self._broker.crash()

    def crash(self) -> None:
        self._broker.crash()

    def commit_unsafely(self, transaction: str) -> Told:
        self._broker.log.is_flushing = False
        told = self.commit(transaction)
        self._broker.crash(is_power_lost=True)
        return told

    def break_discards(self) -> None:
        self._broker.log.refusing.add(DISCARD)

    def repair_discards(self) -> None:
        self._broker.advance(5 * self._broker.settings.interval_ms)
        self._broker.log.refusing.clear()

    def wait_until(self, what: Callable[[], bool]) -> bool:
        for _ in range(0, _MODEL_PATIENCE_MS, STEP_MS):
            if what():
                return True
            self._broker.advance(STEP_MS)
        return False

    def visible(self) -> list[str]:
        return [message.body for message in self._broker.log.queue("orders")]

    def discarded(self) -> list[str]:
        return [message.body for message in self._broker.log.queue(DISCARD)]

    def asked(self, transaction: str) -> int:
        return self._broker.asked.count(transaction)

    def _end(self, transaction: str, resolution: Resolution) -> Told:
        response = self._broker.end(self._halves[transaction], resolution)
        return {Response.SUCCESS: Told.DONE, Response.NONE: Told.UNKNOWN}.get(response, Told.REFUSED)


class BridgeWorld:
    """The running bridge: an api process beside the proxy, a settler behind it."""

    def __init__(self, kafka: ProxiedBroker, bridge: Bridge) -> None:
        self.kafka = kafka
        self.bridge = bridge
        self.front = bridge.start("api,projector")
        self.settler = bridge.start("settler", kafka=kafka.proxy.bootstrap)
        self.wait_ready()
        for group in GROUPS:
            self.put_group(group, [])

    def wait_ready(self) -> None:
        """Until both processes are."""
        self.front.wait_ready()
        self.settler.wait_ready()

    def restart_settler(self) -> None:
        """SIGKILL, and another one; it takes over when the dead one's session has ended."""
        self.settler.__exit__(None, None, None)
        self.settler = self.bridge.start("settler", kafka=self.kafka.proxy.bootstrap)

    def restart_front(self) -> None:
        """Another api process."""
        self.front.__exit__(None, None, None)
        self.front = self.bridge.start("api,projector")

    def put_group(self, group: str, urls: list[str]) -> None:
        """Short check times, and these endpoints."""
        check = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": MAX_CHECKS}
        body = {"endpoints": [{"url": url} for url in urls], "check": check}
        reply = self.front.http.put(f"/v1/producer-groups/{group}", json=body)
        assert reply.status_code in {200, 201}, reply.text

    def close(self) -> None:
        """Ends both processes."""
        for process in (self.front, self.settler):
            process.__exit__(None, None, None)


class BridgeSystem:
    """One story on the running bridge, in a topic of its own."""

    def __init__(self, world: BridgeWorld, name: str) -> None:
        self._world = world
        self._topic = f"holes.{name}"
        self._endpoints: dict[str, CheckEndpoint] = {}
        self._stack = ExitStack()
        create_topics(world.kafka.direct, {self._topic: 1})

    def close(self) -> None:
        """All producers leave."""
        for group in self._endpoints:
            self._world.put_group(group, [])
        self._stack.close()

    def join(self, group: str, answer: str) -> None:
        endpoint = self._stack.enter_context(check_endpoint(answer))
        self._endpoints[group] = endpoint
        self._world.put_group(group, [endpoint.url])

    def prepare(self, group: str, text: str, *, immunity_seconds: int | None = None) -> str:
        body: dict[str, Any] = {"producer_group": group, "messages": [{"topic": self._topic, "value": text}]}
        if immunity_seconds is not None:
            body["check_immunity_seconds"] = immunity_seconds
        reply = self._world.front.post("/v1/transactions", body)
        assert reply.status_code == 201, reply.text
        transaction: str = reply.json()["transaction_id"]
        return transaction

    def commit(self, transaction: str) -> Told:
        return self._end(transaction, "commit")

    def rollback(self, transaction: str) -> Told:
        return self._end(transaction, "rollback")

    def commit_and_die(self, transaction: str) -> None:
        """All of the Kafka transaction is written, its end is on the wire: the settler is killed, the end lost."""
        world = self._world
        gate = world.kafka.proxy.hold(END_TXN, client=f"{world.bridge.prefix}outbox-bridge-")
        committing = threading.Thread(target=self.commit, args=(transaction,))
        committing.start()
        gate.wait_caught()
        world.settler.kill()
        gate.cut()
        world.restart_settler()
        world.settler.wait_ready()
        committing.join()

    def crash(self) -> None:
        world = self._world
        world.front.kill()
        world.settler.kill()
        world.restart_front()
        world.restart_settler()
        world.wait_ready()

    def commit_unsafely(self, transaction: str) -> Told:
        """Kafka's process stands still: it takes what is sent and answers nothing; then it is killed."""
        broker = self._world.kafka.broker
        broker.pause()
        told = self._end(transaction, "commit?wait_seconds=1")
        broker.kill()
        broker.start()
        self._world.wait_ready()
        return told

    def break_discards(self) -> None:
        self._limit_parked("100")

    def repair_discards(self) -> None:
        log = self._world.settler.log
        wait_until(lambda: "not_copied" in log.read_text(), _PATIENCE_S, "a refused discard")
        self._limit_parked(str(16 * 1024 * 1024))
        self._world.wait_ready()  # it may have looked meanwhile, and refuses prepares for that

    def wait_until(self, what: Callable[[], bool]) -> bool:
        try:
            wait_until(what, _PATIENCE_S)
        except AssertionError:
            return False
        return True

    def visible(self) -> list[str]:
        records = read_committed(self._world.kafka.direct, [self._topic])
        return [(record.value or b"").decode() for record in records]

    def discarded(self) -> list[str]:
        records = read_committed(self._world.kafka.direct, [self._world.bridge.parked_topic])
        here = [record for record in records if self._topic.encode() in (dict(record.headers)["properties"] or b"")]
        return [(record.value or b"").decode() for record in here]

    def asked(self, transaction: str) -> int:
        return sum(endpoint.asked(transaction) for endpoint in self._endpoints.values())

    def show(self, transaction: str) -> dict[str, Any]:
        """The transaction as the bridge shows it."""
        reply = self._world.front.get(f"/v1/transactions/{transaction}")
        assert reply.status_code == 200, reply.text
        shown: dict[str, Any] = reply.json()
        return shown

    def _end(self, transaction: str, path: str) -> Told:
        try:
            status = self._world.front.post(f"/v1/transactions/{transaction}/{path}").status_code
        except httpx2.TransportError:
            return Told.UNKNOWN
        told = {200: Told.DONE, 409: Told.REFUSED, 503: Told.UNKNOWN, 504: Told.UNKNOWN}.get(status)
        assert told is not None, status
        return told

    def _limit_parked(self, size: str) -> None:
        set_topic_config(self._world.kafka.direct, self._world.bridge.parked_topic, {"max.message.bytes": size})
