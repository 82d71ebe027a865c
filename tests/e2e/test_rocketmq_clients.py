"""Unmodified RocketMQ clients at the door; a read_committed reader finds exactly what their own log says."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.rocketmq_clients import compile_program, find_jars, java, run_program


class DoorStand(NamedTuple):
    """A bridge with a door."""

    kafka: str
    process: BridgeProcess
    door: str
    folder: Path


@pytest.fixture(scope="module")
def stand(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorStand]:
    """One for all clients."""
    folder, port = tmp_path_factory.mktemp("door"), choose_free_port()
    bridge = Bridge.create(kafka, folder, OUTBOX_BRIDGE_REMOTING__PORT=str(port))
    with bridge.serve("api,settler,projector,remoting") as process:
        yield DoorStand(kafka, process, f"127.0.0.1:{port}", folder)


_COUNTS = re.compile(r"Send Failed: (\d+) \| Check: (\d+) \| UnexpectedCheck: (\d+) \| DuplicatedCheck: (\d+)")
_CLIENTS = [("5.5.0", "JSON"), ("5.5.0", "ROCKETMQ"), ("4.9.8", "JSON"), ("4.9.8", "ROCKETMQ")]


@pytest.mark.parametrize(("version", "header"), _CLIENTS)
def test_a_client_sends_ends_and_is_checked(stand: DoorStand, version: str, header: str) -> None:
    """120 messages: committed, rolled back, or unknown until a check. The 4.9.8 ones are compressed."""
    jars = find_jars(version)
    compile_program("Transactions", jars, stand.folder)
    name = f"tx-{version}-{header}".replace(".", "_")
    create_topics(stand.kafka, {name: 2})
    check = {"mode": "pull", "transaction_timeout_seconds": 1, "interval_seconds": 1}
    assert stand.process.http.put(f"/v1/producer-groups/{name}", json={"check": check}).status_code == 201
    padding = "8000" if version == "4.9.8" else "0"
    options = java(jars, stand.folder, f"-Drocketmq.serialize.type={header}")
    code, lines = run_program([*options, "Transactions", stand.door, name, name, "120", padding, "60"])
    told = [(what, body.strip()) for what, _, body in (line.partition(" ") for line in lines)]
    committed = Counter(body for what, body in told if what == "committed")
    assert code == 0, lines[-30:]
    assert Counter(what for what, _ in told)["sent"] == 120, lines[-30:]
    assert not [line for line in lines if line.startswith(("late-", "strange", "not-", "ended-", "unknown-"))]
    records = read_committed(stand.kafka, [name])
    assert Counter((record.value or b"").decode().strip() for record in records) == committed
    assert set(committed.values()) == {1}
    assert len(committed) == 72
    first = next(record for record in records if record.key == b"order-0")
    assert {("TAGS", b"paid"), ("KEYS", b"order-0"), ("shop", b"one")} <= set(first.headers)
    first = stand.process.get(f"/v1/transactions?producer_group={name}&key=order-2").json()["transactions"][0]
    timeline = stand.process.get(f"/v1/transactions/{first['transaction_id']}/timeline").text
    assert "the database is away" in timeline


def test_a_client_that_has_sent_nothing_is_asked(stand: DoorStand) -> None:
    """As after its restart: by the route of TBW102 it says that it is there."""
    jars = find_jars("4.9.8")
    compile_program("Transactions", jars, stand.folder)
    create_topics(stand.kafka, {"asked": 1})
    check = {"mode": "pull", "transaction_timeout_seconds": 1, "interval_seconds": 1}
    assert stand.process.http.put("/v1/producer-groups/restarted", json={"check": check}).status_code == 201
    message = {"topic": "asked", "key": "order-2", "value": "order-2", "headers": {"KEYS": "order-2"}}
    prepared = stand.process.post("/v1/transactions", {"producer_group": "restarted", "messages": [message]})
    assert prepared.status_code == 201, prepared.text
    command = [*java(jars, stand.folder), "Transactions", stand.door, "asked", "restarted", "0", "0", "60"]
    code, lines = run_program(command)
    assert code == 0, lines
    assert lines[:2] == ["check order-2", "committed order-2"]
    wait_until(lambda: read_committed(stand.kafka, ["asked"]), name="published")


def test_rocketmqs_own_benchmark_finds_nothing_wrong(stand: DoorStand) -> None:
    """Commits, rollbacks and unknowns; by its own count no send fails, and no check is unexpected or comes twice."""
    jars = find_jars("5.5.0", "rocketmq-example")
    create_topics(stand.kafka, {"bench": 2})
    check = {"mode": "pull", "transaction_timeout_seconds": 2, "interval_seconds": 3}
    path = "/v1/producer-groups/benchmark_transaction_producer"
    assert stand.process.http.put(path, json={"check": check}).status_code == 201
    main = "org.apache.rocketmq.example.benchmark.TransactionProducer"
    rates = ["-sr", "0.2", "-su", "0.2", "-cr", "0.2", "-cu", "0.2", "-ri", "2000", "-i", "5"]
    command = [*java(jars, stand.folder), main, "-n", stand.door, "-t", "bench", "-w", "4", "-s", "1024", *rates]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    counted, lines = list[tuple[str, ...]](), list[str]()
    try:
        for line in process.stdout:
            lines.append(line)
            counted += _COUNTS.findall(line)
            if sum(checks != "0" for _, checks, _, _ in counted) >= 8:
                break
            assert len(counted) < 40, lines[-10:]
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert counted, lines[-20:]
    assert {(failed, strange, twice) for failed, _, strange, twice in counted} == {("0", "0", "0")}, lines[-10:]
