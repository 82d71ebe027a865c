"""Backups of SQL and Kafka under traffic, and their restores, with the commands of docs/operating.md."""

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from bridge.broker.dev_broker import DevBroker
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.broker import BrokerFactory
from tests.support.cluster_acts import delete_topic, forget_all

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

TOPIC = "backup.orders"
_PAUSE_S = 0.02  # each of them is asked for afterwards
ENDS = {0: "commit", 1: "rollback", 2: None}


@dataclass(slots=True)
class Traffic:
    """A producer that goes on until the bridge is away, and what it was told, by value."""

    process: BridgeProcess
    name: str = "v"
    ids: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Every third is committed, rolled back, left alone; every second has an idempotency key."""
        number = 0
        while not self._is_over.wait(_PAUSE_S):
            value = f"{self.name}-{number}"
            try:
                self._one(value, number)
            except httpx2.TransportError:
                self.unknown.add(value)
            number += 1

    def _one(self, value: str, number: int) -> None:
        body = body_of(value, is_keyed=number % 2 == 0)
        answer = self.process.post("/v1/transactions", body)
        if answer.status_code != 201:
            self.unknown.add(value)
            return
        self.ids[value] = answer.json()["transaction_id"]
        self.told[value] = "PREPARED"
        end = ENDS[number % 3]
        if end is not None:
            self.unknown.add(value)
            answer = self.process.post(f"/v1/transactions/{self.ids[value]}/{end}")
            if answer.status_code == 200:
                self.told[value] = answer.json()["state"]
                self.unknown.discard(value)

    def wait_more(self, count: int = 30) -> None:
        """Returns when so many more were told."""
        wanted = len(self.told) + count
        wait_until(lambda: len(self.told) >= wanted, 60, "traffic")

    def are(self, state: str) -> set[str]:
        """Those of which this state was told last, and nothing is unknown."""
        return {value for value, told in self.told.items() if told == state} - self.unknown

    def stop(self) -> None:
        """No more."""
        self._is_over.set()


@contextmanager
def traffic(process: BridgeProcess, name: str = "order") -> Iterator[Traffic]:
    """Runs beside the block."""
    producer = Traffic(process, name)
    thread = threading.Thread(target=producer.run)
    thread.start()
    try:
        yield producer
    finally:
        producer.stop()
        thread.join(60)


def body_of(value: str, *, is_keyed: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"producer_group": "shop", "messages": [{"topic": TOPIC, "key": value, "value": value}]}
    return body | {"idempotency_key": value} if is_keyed else body


class Sqlite:
    """A file, backed up with SQLite's own command."""

    def __init__(self, folder: Path) -> None:
        self._file, self._backup = folder / "bridge.db", folder / "backup.db"
        self.url = f"sqlite:///{self._file}"

    def back_up(self) -> None:
        new = self._backup.with_suffix(".new")  # SQLite writes over nothing
        new.unlink(missing_ok=True)
        subprocess.run(["sqlite3", self._file, f"VACUUM INTO '{new}'"], check=True, timeout=60)
        new.replace(self._backup)

    def restore(self) -> None:
        """What is beside the file belongs to the one that is replaced."""
        for name in ("bridge.db-wal", "bridge.db-shm"):
            (self._file.parent / name).unlink(missing_ok=True)
        shutil.copyfile(self._backup, self._file)

    def empty(self) -> None:
        for file in self._file.parent.glob("bridge.db*"):
            file.unlink()


class Postgres:
    """A database, backed up and restored with PostgreSQL's own commands."""

    def __init__(self, server: "PostgresServer", folder: Path) -> None:
        self._server, self._dump = server, folder / "bridge.dump"
        self.url = server.create()

    def back_up(self) -> None:
        self._server.run_tool("pg_dump", "--format=custom", f"--file={self._dump}", _plain(self.url))

    def restore(self) -> None:
        self.url = self._server.create()
        self._server.run_tool(
            "pg_restore", "--exit-on-error", "--no-owner", f"--dbname={_plain(self.url)}", str(self._dump)
        )


def _plain(url: str) -> str:
    return url.replace("postgresql+psycopg:", "postgresql:")


@pytest.fixture
def broker(broker_factory: BrokerFactory) -> DevBroker:
    """Of this test's own, to kill."""
    made = broker_factory()
    create_topics(made.bootstrap, {TOPIC: 2})
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_older_backup_of_sql_beside_newer_kafka(
    broker: DevBroker, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing acknowledged is lost or doubled; keys, groups and secrets are those of the backup (L, D, F)."""
    sql = Sqlite(tmp_path) if kind == "sqlite" else Postgres(request.getfixturevalue("postgres"), tmp_path)
    bridge = Bridge.create(broker.bootstrap, tmp_path, database_url=sql.url)
    with bridge.serve() as process, traffic(process) as producer:
        kept, revoked = make_key(process, "kept"), make_key(process, "revoked")
        secret = put_group(process, "before")
        producer.wait_more()
        sql.back_up()
        producer.wait_more()
        later = make_key(process, "later")
        assert process.http.delete(f"/v1/keys/{revoked[4:12]}").is_success
        rotated = process.post("/v1/producer-groups/before/rotate-secret").json()["secret"]
        put_group(process, "after")
        producer.wait_more()
        process.kill()
        producer.stop()
    broker.kill()
    sql.restore()
    bridge.database_url = sql.url
    broker.start()
    assert "up to date" in bridge.run("migrate")
    with bridge.serve() as process:
        assert [calls_as(process, key) for key in (kept, revoked, later)] == [200, 200, 401]
        assert process.get("/v1/producer-groups/before").status_code == 200
        assert process.get("/v1/producer-groups/after").status_code == 404
        assert secret != rotated
        everything_holds(process, producer, broker.bootstrap)


def everything_holds(process: BridgeProcess, producer: Traffic, kafka: str, others: Collection[str] = ()) -> None:
    """Each transaction is what its producer was told; repeats are none; what was left is ended now. `others`: values
    that may be visible, once."""
    for value, name in producer.ids.items():
        answer = process.get(f"/v1/transactions/{name}")
        assert answer.status_code == 200, answer.text
        assert value in producer.unknown or answer.json()["state"] == producer.told[value]
    for value in producer.are("COMMITTED") | producer.are("PREPARED"):
        if int(value.rpartition("-")[2]) % 2 == 0:
            answer = process.post("/v1/transactions", body_of(value, is_keyed=True))
            assert answer.json()["transaction_id"] == producer.ids[value], answer.text
    for value in producer.are("PREPARED"):
        answer = process.post(f"/v1/transactions/{producer.ids[value]}/commit")
        assert (answer.status_code, answer.json()["state"]) == (200, "COMMITTED")
    visible = Counter(record.value.decode() for record in read_committed(kafka, [TOPIC]) if record.value)
    assert [value for value, count in visible.items() if count > 1] == []
    wanted = producer.are("COMMITTED") | producer.are("PREPARED")
    assert wanted - visible.keys() == set()
    assert visible.keys() - wanted - producer.unknown - set(others) == set()


def make_key(process: BridgeProcess, name: str) -> str:
    """A key that may read."""
    put = process.http.put(f"/v1/principals/{name}", json={"grants": [{"verbs": ["read"]}]})
    assert put.status_code == 201, put.text
    answer = process.post(f"/v1/principals/{name}/keys", {})
    assert answer.status_code == 201, answer.text
    key: str = answer.json()["key"]
    return key


def calls_as(process: BridgeProcess, key: str) -> int:
    return process.get("/v1/stats", headers={"Authorization": f"Bearer {key}"}).status_code


def put_group(process: BridgeProcess, name: str) -> str:
    answer = process.http.put(f"/v1/producer-groups/{name}", json={"endpoints": []})
    assert answer.status_code == 201, answer.text
    secret: str = answer.json()["secret"]
    return secret


class KafkaData:
    """A broker's folder, copied as a snapshot of its disk has it, without a clean stop."""

    def __init__(self, broker: DevBroker, folder: Path) -> None:
        self._broker, self._copy = broker, folder / "kafka-backup"

    def back_up(self) -> None:
        self._broker.kill()
        shutil.copytree(self._broker._folder, self._copy)
        self._broker.start()

    def restore(self) -> None:
        self._broker.kill()
        shutil.rmtree(self._broker._folder)
        shutil.copytree(self._copy, self._broker._folder)
        self._broker.start()


@pytest.mark.timeout(600)
def test_restored_kafka(broker: DevBroker, tmp_path: Path) -> None:
    """Beside newer, older and no SQL: nothing is published a second time, nothing of before the backup is lost (63)."""
    sql, data = Sqlite(tmp_path), KafkaData(broker, tmp_path)
    bridge = Bridge.create(broker.bootstrap, tmp_path, database_url=sql.url)
    with bridge.serve() as process, traffic(process, "first") as first:
        first.wait_more()
        sql.back_up()
        first.wait_more()
        first.stop()
        process.kill()
    data.back_up()
    with bridge.serve() as process, traffic(process, "second") as second:
        second.wait_more()
        second.stop()
        process.kill()
    data.restore()
    newer_sql_gives_up(bridge, first)
    for bring in (sql.restore, sql.empty):
        data.restore()
        bring()
        assert "as they must be" in migrate(bridge)
        with bridge.serve() as process:
            found = {process.get(f"/v1/transactions/{name}").status_code for name in second.ids.values()}
            assert found == {404}
            everything_holds(process, first, broker.bootstrap)


def migrate(bridge: Bridge, *options: str) -> str:
    """What it prints. In a restored Kafka the settlers of its time are members until their sessions end."""
    end_s = time.monotonic() + 60
    while True:
        try:
            return bridge.run("migrate", *options)
        except AssertionError as error:
            if "settlers are running" not in str(error) or time.monotonic() > end_s:
                raise
        time.sleep(1)


def newer_sql_gives_up(bridge: Bridge, first: Traffic) -> None:
    """What SQL knows to have happened is not done again: the log is refused, and what was pending is told."""
    assert "--accept-identity" in bridge.run_refused("migrate")
    losses = json.loads(migrate(bridge, "--accept-identity", "--yes", "-o", "json"))
    told = {one["transaction_id"] for loss in losses for one in loss["transactions"]}
    assert {first.ids[value] for value in first.are("PREPARED")} - told == set()
    with bridge.serve() as process:
        for name in told:
            answer = process.post(f"/v1/transactions/{name}/commit")
            assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "given-up")
        (new,) = publish(process, "new")
        assert new["state"] == "COMMITTED"
    visible = Counter(record.value.decode() for record in read_committed(bridge.kafka, [TOPIC]) if record.value)
    assert set(visible.values()) == {1}
    assert first.are("COMMITTED") | {"new"} <= visible.keys() <= first.are("COMMITTED") | first.unknown | {"new"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["restored", "lost"])
def test_sql_of_before_a_log_was_given_up(broker: DevBroker, what: str, tmp_path: Path) -> None:
    """The act once more: no repeat of before is taken for new, what came since goes on, the audit is whole (D, L)."""
    sql = Sqlite(tmp_path)
    bridge = Bridge.create(broker.bootstrap, tmp_path, queues=1, database_url=sql.url)
    with bridge.serve() as process, traffic(process, "before") as before:
        before.wait_more()
        sql.back_up()
        before.wait_more()
        before.stop()
    delete_topic(broker.bootstrap, bridge.op_topic)
    migrate(bridge, "--accept-identity", "--yes")
    with bridge.serve() as process, traffic(process, "since") as since:
        since.wait_more()
        process.stop()
        since.stop()
    sql.restore() if what == "restored" else sql.empty()
    assert "--accept-identity" in bridge.run_refused("migrate")
    losses = json.loads(migrate(bridge, "--accept-identity", "--yes", "-o", "json"))
    assert {loss["kind"] for loss in losses} == {"older-database"}
    with bridge.serve() as process:
        for value in before.ids:
            if int(value.rpartition("-")[2]) % 2 == 0:
                answer = process.post("/v1/transactions", body_of(value, is_keyed=True))
                assert (answer.status_code, answer.json().get("state")) in {
                    (200, "COMMITTED"), (200, "ROLLED_BACK"), (409, "PREPARED"),
                }  # fmt: skip
        everything_holds(process, since, broker.bootstrap, others=before.ids)
    if what == "lost":
        wait_until(lambda: "findings" not in bridge.run("audit", "verify"), 30, "the audit is whole")


@pytest.mark.timeout(600)
def test_backup_of_sql_that_is_older_than_the_journal(broker: DevBroker, tmp_path: Path) -> None:
    """The process is not ready, and says what to do; a rebuild is enough (L, 63)."""
    sql = Sqlite(tmp_path)
    bridge = Bridge.create(broker.bootstrap, tmp_path, queues=1, database_url=sql.url)
    with bridge.serve() as process:
        publish(process, "a0", "a1")
        sql.back_up()
        published = publish(process, "b0", "b1", "b2")
        process.stop()
    forget_all(broker.bootstrap, bridge.half_topic)
    sql.restore()
    with bridge.start() as process:
        wait_until(lambda: "projection rebuild" in look(process), 60, "the remedy is said")
        bridge.run("projection", "rebuild")
        process.wait_ready()
        for one in published:
            assert process.get(f"/v1/transactions/{one['transaction_id']}").json()["state"] == "COMMITTED"
    assert len(read_committed(broker.bootstrap, [TOPIC])) == 5


def look(process: BridgeProcess) -> str:
    """What /readyz says; nothing before it answers."""
    try:
        return process.get("/readyz?verbose").text
    except httpx2.TransportError:
        return ""


def publish(process: BridgeProcess, *values: str) -> list[dict[str, Any]]:
    """Without a local transaction; the answers."""
    answers = [process.post("/v1/messages", body_of(value, is_keyed=False)) for value in values]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json() for answer in answers]
