"""Windows between an api process's append and its answer, staged on the real broker."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.bridge_process import (
    Bridge,
    BridgeProcess,
    check_endpoint,
    create_topics,
    read_committed,
    wait_until,
)
from tests.support.kafka_proxy import PRODUCE, ProxiedBroker, proxied_broker

SEEN_LIMIT_MS = 30_000  # a keyed half message appended later than this after its look-up is void for everybody
TOPIC = "windows.api"


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedBroker]:
    """A broker with a proxy before it."""
    with proxied_broker() as broker:
        create_topics(broker.direct, {TOPIC: 1})
        yield broker


@pytest.fixture(scope="module")
def bridge(kafka: ProxiedBroker, tmp_path_factory: pytest.TempPathFactory) -> Bridge:
    """With one queue."""
    return Bridge.create(kafka.direct, tmp_path_factory.mktemp("api"), queues=1)


@pytest.fixture(scope="module")
def whole(bridge: Bridge) -> Iterator[BridgeProcess]:
    """A process with all roles that reaches the broker directly."""
    with bridge.serve() as process:
        yield process


@pytest.fixture
def behind(bridge: Bridge, whole: BridgeProcess, kafka: ProxiedBroker) -> Iterator[BridgeProcess]:
    """An api process behind the proxy, which knows Kafka's time already. Messages of a call share a request."""
    options = json.dumps({"bootstrap.servers": kafka.proxy.bootstrap, "linger.ms": 100})
    with bridge.serve("api", OUTBOX_BRIDGE_KAFKA=options) as process:
        warm = {"producer_group": "shop", "messages": [{"topic": TOPIC, "value": "warm"}]}
        assert process.post("/v1/transactions", warm).status_code == 201
        yield process


def commit(process: BridgeProcess, transaction_id: str) -> dict[str, Any]:
    reply = process.post(f"/v1/transactions/{transaction_id}/commit")
    assert reply.status_code == 200, reply.text
    settled: dict[str, Any] = reply.json()
    return settled


def put_group(process: BridgeProcess, group: str, url: str) -> None:
    check = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "max_checks": 1_000}
    reply = process.http.put(f"/v1/producer-groups/{group}", json={"endpoints": [{"url": url}], "check": check})
    assert reply.status_code == 201, reply.text


def visible(kafka: ProxiedBroker, value: str) -> int:
    return [(record.value or b"").decode() for record in read_committed(kafka.direct, [TOPIC])].count(value)


def halves(kafka: ProxiedBroker, bridge: Bridge, key: str) -> list[dict[str, str]]:
    """The properties of half messages with this key, and when Kafka appended them."""
    found = []
    for record in read_committed(kafka.direct, [bridge.half_topic]):
        raw = (dict(record.headers)["properties"] or b"").decode()
        properties = dict(pair.split("\x01") for pair in raw.split("\x02") if pair)
        if properties["KIND"] == "H" and properties.get("IDEMPOTENCY_KEY") == key:
            found.append(properties | {"APPENDED": str(record.timestamp_ms)})
    return found


class Asking:
    """A call that gets no answer in time, or none at all."""

    def __init__(self, process: BridgeProcess, path: str, body: dict[str, Any]) -> None:
        self.reply: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(process, path, body), daemon=True)
        self._thread.start()

    def finish(self) -> list[dict[str, Any]]:
        """Until the call has ended: what it was told that is not "unknown"."""
        self._thread.join(60)
        results = [] if self.reply is None else self.reply.json().get("results", [self.reply.json()])
        return [result for result in results if result["status"] not in {503, 504}]

    def _run(self, process: BridgeProcess, path: str, body: dict[str, Any]) -> None:
        try:
            self.reply = httpx2.post(process.url + path, json=body, timeout=60)
        except httpx2.TransportError:
            return


def keyed(value: str, group: str) -> dict[str, Any]:
    return {"producer_group": group, "messages": [{"topic": TOPIC, "value": value}], "idempotency_key": f"{value}-key"}


def test_api_killed_between_append_and_answer(
    kafka: ProxiedBroker, bridge: Bridge, whole: BridgeProcess, behind: BridgeProcess
) -> None:
    """The half message is in the journal, the answer dies with its process: the repeat elsewhere is the same
    transaction, and so is the repeat after its end (A, D)."""
    gate = kafka.proxy.hold(PRODUCE, client="append", containing=b"killed-key")
    asking = Asking(behind, "/v1/transactions", keyed("killed", "shop"))
    frame = gate.wait_caught()
    kafka.proxy.deliver(frame)  # it arrives; its reply goes nowhere
    behind.kill()
    gate.cut()
    assert asking.finish() == []
    (written,) = halves(kafka, bridge, "killed-key")
    repeated = whole.post("/v1/transactions", keyed("killed", "shop"))
    assert repeated.status_code == 201, repeated.text
    transaction_id = repeated.json()["transaction_id"]
    assert commit(whole, transaction_id)["receipts"]
    again = whole.post("/v1/transactions", keyed("killed", "shop"))
    assert (again.status_code, again.json()["state"]) == (200, "COMMITTED")
    assert {half["UNIQ_KEY"] for half in [written, *halves(kafka, bridge, "killed-key")]} == {transaction_id}
    assert visible(kafka, "killed") == 1


def test_half_message_of_a_frozen_api_is_void(
    kafka: ProxiedBroker, bridge: Bridge, whole: BridgeProcess, behind: BridgeProcess
) -> None:
    """An api process freezes with two keyed half messages on the wire. One is repeated elsewhere and committed; then
    both arrive, too late after their look-up: void for everybody. The other never was; its repeat is new (D, A, F)."""
    with check_endpoint("UNKNOWN") as endpoint:
        put_group(whole, "late", endpoint.url)
        gate = kafka.proxy.hold(PRODUCE, client="append", containing=b"repeated-key")
        body = {"transactions": [keyed("repeated", "late"), keyed("forgotten", "late")]}
        asking = Asking(behind, "/v1/transactions/batch?wait_seconds=1", body)
        assert b"forgotten-key" in gate.wait_caught().raw
        sent_ms = time.time() * 1_000
        behind.pause()
        decided = whole.post("/v1/transactions", keyed("repeated", "late"))
        assert decided.status_code == 201, decided.text
        assert commit(whole, decided.json()["transaction_id"])["receipts"]
        wait_until(lambda: time.time() * 1_000 - sent_ms > SEEN_LIMIT_MS + 500, 40, "half a minute of Kafka's time")
        gate.open()
        (forgotten,) = wait_until(lambda: halves(kafka, bridge, "forgotten-key"), name="the late half messages")
        behind.resume()
        assert int(forgotten["APPENDED"]) - int(forgotten["SEEN"]) > SEEN_LIMIT_MS
        assert len(halves(kafka, bridge, "repeated-key")) == 2
        canary = whole.post("/v1/transactions", keyed("canary", "late")).json()["transaction_id"]
        wait_until(lambda: endpoint.asked(canary) >= 2, name="checks of what came later")
        assert endpoint.asked(forgotten["UNIQ_KEY"]) == endpoint.asked(decided.json()["transaction_id"]) == 0
    for told in asking.finish():  # the thawed process may see the end elsewhere before its own deadline
        assert (told["transaction_id"], told["state"]) == (decided.json()["transaction_id"], "COMMITTED")
    assert whole.get(f"/v1/transactions/{forgotten['UNIQ_KEY']}").status_code == 404
    fresh = whole.post("/v1/transactions", keyed("forgotten", "late"))
    assert (fresh.status_code, fresh.json()["transaction_id"]) == (201, forgotten["UNIQ_KEY"])
    assert commit(whole, forgotten["UNIQ_KEY"])["receipts"]
    assert visible(kafka, "repeated") == visible(kafka, "forgotten") == 1
