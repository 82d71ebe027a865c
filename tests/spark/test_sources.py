"""Kafka is read by tasks of ranges of offsets, on one window of real transactions."""

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from bridge.core.message import Message
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.core.transaction import make_transaction_id
from spark.errors import Indeterminate
from spark.read import sources
from spark.read.decode import SCHEMA, Decode, Records, decode_journal, decode_real, make_batch
from spark.read.envelope import APPEND_TIME, Evidence, QueuePlace
from spark.read.offsets import take_window
from spark.read.sources import KafkaAccess, land_kafka, read_landed
from spark.reconcile import explained
from spark.selftest.run import Injector, SeededTopics, make_tales
from tests.support.bridge_process import create_topics, wait_until
from tests.support.broker import BrokerFactory
from tests.support.odd_records import put_odd_header
from tests.support.source_tree import ROOT

KEY = ("topic", "part", "off")
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def put(kafka: str, topic: str, *values: bytes, **members: Any) -> None:
    """Records in its first partition."""
    producer = Producer({"bootstrap.servers": kafka})
    for value in values:
        producer.produce(topic, value, partition=0, **members)
    assert producer.flush(30) == 0


def read_range(wanted: sources._Range, options: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_batches(sources._read(wanted, options), SCHEMA)


def _range(topic: str, start: int, end: int, folder: Path) -> sources._Range:
    return sources._Range(topic, 0, start, end, decode_real, folder / "000001.parquet")


@pytest.fixture
def stage(kafka: str) -> Iterator[SeededTopics]:
    """Topics with one round of everything, and 20 ordinary transactions."""
    made = SeededTopics(f"sources-{time.time_ns()}.")
    injector = Injector({"bootstrap.servers": kafka}, made, time.time_ns() // 1_000_000)
    injector.create_topics()
    injector.plant(make_tales(20, 1))
    yield made
    injector.delete_topics()


def test_committed_records_are_read_once(spark: SparkSession, kafka: str, stage: SeededTopics, tmp_path: Path) -> None:
    """Up to the noted ends and no further, whatever the ranges; the same bytes each time, and none is read again."""
    options = {"bootstrap.servers": kafka}
    real = [
        name for name in stage.topics if name not in {stage.internal.half, stage.internal.op, stage.internal.parked}
    ]
    window = take_window(options, stage.internal, real)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    land_kafka(spark, window, KafkaAccess(options), whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_TASK_OFFSETS", 7)
        land_kafka(spark, window, KafkaAccess(options), cut)
        written = {path.name: path.stat().st_mtime_ns for path in cut.iterdir()}
        some = min(cut.iterdir())
        some.unlink()
        emptied = max(cut.glob("*.parquet"))
        emptied.write_bytes(b"")
        land_kafka(spark, window, KafkaAccess(options), cut)
    assert {path for path in cut.iterdir() if written[path.name] != path.stat().st_mtime_ns} == {some, emptied}
    first, second = (read_landed(spark, folder).sort(*KEY).collect() for folder in (whole, cut))
    assert first == second
    places = [tuple(row[name] for name in KEY) for row in first]
    assert len(places) == len(set(places)) > 100
    holes = sum(extent.end - extent.start for extent in window.extents.values()) - len(first)
    assert holes > 0  # markers, and what was aborted


@pytest.mark.parametrize("lost", ["start", "end"])
def test_offsets_that_are_not_there_are_told(
    spark: SparkSession, kafka: str, stage: SeededTopics, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed by retention while the job was on its way, or never written: no report on what is left."""
    options = {"bootstrap.servers": kafka}
    window = take_window(options, stage.internal, [stage.real("orders")])
    place = QueuePlace(stage.real("orders"), 0)
    extent = window.extents[place]
    if lost == "start":
        admin = AdminClient(options)
        removed = admin.delete_records([TopicPartition(*place, offset=extent.start + 2)])
        assert all(one.result(10) for one in removed.values())
    else:
        extent = replace(extent, end=extent.end + 2)
        monkeypatch.setattr(sources, "_PATIENCE_S", 0.5)
    alone = replace(window, extents={place: extent})
    with pytest.raises(Indeterminate, match=f"{place.topic}-0 cannot be read from {extent.start} to {extent.end}"):
        land_kafka(spark, alone, KafkaAccess(options), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("large", ["value", "key", "headers"])
def test_large_records_are_decoded_few_at_a_time(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    """A worker's memory is bounded in bytes, as a batch of large records is of few, whatever is large in them."""
    topic = f"large-{time.time_ns()}"
    create_topics(kafka, {topic: 1})
    much = b"x" * 900_000
    members = {"value": {}, "key": {"key": much}, "headers": {"headers": [("h", much)]}}[large]
    put(kafka, topic, *[much if large == "value" else b"v"] * 100, **members)
    sizes: list[int] = []

    def look(decoder: Decode, records: Records) -> pa.RecordBatch:
        sizes.append(len(records.offsets) * 900_000)
        return make_batch(decoder, records)

    monkeypatch.setattr(sources, "make_batch", look)
    assert read_range(_range(topic, 0, 100, tmp_path), {"bootstrap.servers": kafka}).num_rows == 100
    assert max(sizes) <= (16 << 20) + 16 * 900_000


def test_rows_are_written_a_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records can have many messages: no more rows are in memory than are some bytes, whatever their number."""
    listed = [Message("orders" * 40, None, None)] * 4_000
    half = encode_half(HalfMessage(make_transaction_id(0, 1), "shop", len(listed), 5), listed, "half", 0)
    columns = [half.key] * 5, [half.value] * 5, [half.headers] * 5
    handed: list[int] = []
    monkeypatch.setattr(sources, "_GROUP_BYTES", 8 << 20)

    def make() -> Iterator[pa.RecordBatch]:
        for start in range(0, 40, 5):
            batch = make_batch(decode_journal, Records("half", 0, range(start, start + 5), [5] * 5, *columns))
            handed.append(batch.nbytes)
            yield batch

    file = tmp_path / "000001.parquet"
    sources._write(make(), file)
    written = pq.ParquetFile(file)
    groups = [written.read_row_group(number) for number in range(written.num_row_groups)]
    assert max(group.nbytes for group in groups) <= sources._GROUP_BYTES + max(handed)
    assert [offset for group in groups for offset in group["off"].to_pylist()] == list(range(40))
    assert sum(handed) > 3 * sources._GROUP_BYTES
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def make_anew(kafka: str, topic: str) -> None:
    """Another topic of the same name, with other records."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for gone in admin.delete_topics([topic]).values():
        gone.result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 120, "the topic to be gone")
    create_topics(kafka, {topic: 1})
    put(kafka, topic, *[b"of the other topic"] * 9)


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_topic_that_was_made_again_is_not_read_for_the_one_that_was(
    spark: SparkSession, kafka: str, stage: SeededTopics, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are there, and mean something else: records of two topics are never judged as those of one."""
    options, topic = {"bootstrap.servers": kafka}, f"anew-{time.time_ns()}"
    create_topics(kafka, {topic: 1})
    put(kafka, topic, *[b"v"] * 9)
    window = take_window(options, stage.internal, [topic])
    if moment == "before":
        make_anew(kafka, topic)
    else:
        ship = sources._ship

        def dawdle(session: SparkSession) -> None:
            ship(session)
            make_anew(kafka, topic)

        monkeypatch.setattr(sources, "_ship", dawdle)
    with pytest.raises(Indeterminate, match=f"topic {topic} was deleted, or made anew"):
        land_kafka(spark, window, KafkaAccess(options), tmp_path)


def test_task_that_is_done_twice_leaves_its_rows_once(
    spark: SparkSession, kafka: str, stage: SeededTopics, tmp_path: Path
) -> None:
    """Beside each other, after one that was killed, or of a landing that was begun anew."""
    options = {"bootstrap.servers": kafka}
    window = take_window(options, stage.internal, [stage.real("orders")])
    tmp_path.joinpath(".000001.parquet-killed").write_bytes(b"PAR1")
    tmp_path.joinpath(f"{window.taken_ms - 1}-000001.parquet").write_bytes(b"PAR1")
    land_kafka(spark, window, KafkaAccess(options), tmp_path)
    landed = sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".json")
    rows = read_landed(spark, tmp_path).count()
    for wanted in sources._cut(window, KafkaAccess(options), tmp_path):
        assert sources._land(wanted, options) is None
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".json") == landed
    assert read_landed(spark, tmp_path).count() == rows > 100


def test_file_that_is_missing_is_told(spark: SparkSession, kafka: str, stage: SeededTopics, tmp_path: Path) -> None:
    """Or one that nobody landed, or that has lost its content with the machine's power: neither fewer rows nor more."""
    options = {"bootstrap.servers": kafka}
    land_kafka(spark, take_window(options, stage.internal, [stage.real("orders")]), KafkaAccess(options), tmp_path)
    file = min(tmp_path.glob("*.parquet"))
    file.rename(tmp_path / f"_{file.name}")
    with pytest.raises(Indeterminate, match=f"{file.name} is missing"):
        read_landed(spark, tmp_path)
    file.touch()
    with pytest.raises(Indeterminate, match=f"{file.name} is missing"):
        read_landed(spark, tmp_path)
    (tmp_path / f"_{file.name}").rename(file)
    (tmp_path / "stray.parquet").write_bytes(b"stray")
    with pytest.raises(Indeterminate, match=r"stray.parquet does not belong there"):
        read_landed(spark, tmp_path)


class Aborted:
    """A consumer in a row of aborted records: each call takes ten seconds and skips a hundred of them."""

    now_s = 0

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._tell, self._next = options["stats_cb"], 0

    def assign(self, places: object) -> None:
        """Whatever they are."""

    def consume(self, count: int, wait_s: float) -> list[object]:
        """Nothing, until the end of the partition."""
        Aborted.now_s += 10
        self._next += 100
        self._tell(json.dumps({"topics": {"orders": {"partitions": {"0": {"next_offset": self._next}}}}}))
        end = SimpleNamespace(error=lambda: KafkaError(KafkaError._PARTITION_EOF), offset=lambda: 1_000)
        return [end] if self._next == 1_000 else []

    def close(self) -> None:
        """Nothing is open."""


def test_records_that_were_aborted_are_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lie in a row, and however long they take: they are read, though none of them is handed over."""
    monkeypatch.setattr(sources, "Consumer", Aborted)
    monkeypatch.setattr(sources, "time", SimpleNamespace(monotonic=lambda: Aborted.now_s))
    assert read_range(_range("orders", 0, 1_000, tmp_path), {}).num_rows == 0


def test_broker_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the client says of it."""
    monkeypatch.setattr(sources, "_PATIENCE_S", 1)
    with pytest.raises(Indeterminate, match=r"nothing came for 1 s, .*Connection refused"):
        read_range(_range("orders", 0, 1, tmp_path), {"bootstrap.servers": "127.0.0.1:1"})


def test_right_to_the_group_is_not_needed(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """Nobody joins it: whoever may read the topic may have a report."""
    kafka = broker_factory(AUTHORIZER).bootstrap
    create_topics(kafka, {"orders": 1})
    group = AclBinding(
        ResourceType.GROUP, "outbox-bridge-report", ResourcePatternType.LITERAL, "User:somebody", "*",
        AclOperation.ALL, AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka})
    for made in admin.create_acls([group]).values():
        made.result(10)
    refused: list[KafkaError | None] = []
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": group.name})) as stranger:
        stranger.subscribe(["orders"])
        while not refused:
            refused = [message.error() for message in stranger.consume(1, 1)]
    assert refused[0] is not None
    assert refused[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    for number in range(5):  # each looks for the coordinator anew
        put(kafka, "orders", b"v")
        read = read_range(_range("orders", 0, number + 1, tmp_path), {"bootstrap.servers": kafka})
        assert read.num_rows == number + 1


def test_header_whose_name_is_no_utf8_ends_no_job(kafka: str, tmp_path: Path) -> None:
    """Other producers may write one into a real topic: their record is foreign."""
    topic = f"odd-{time.time_ns()}"
    create_topics(kafka, {topic: 1})
    put(kafka, topic, *[b"v"] * 100)  # so many that Python takes short cuts in loops
    put_odd_header(kafka, topic)
    put(kafka, topic, b"v")
    read = read_range(_range(topic, 0, 102, tmp_path), {"bootstrap.servers": kafka})
    assert read["leg"].to_pylist() == [Evidence.FOREIGN] * 102


def test_record_says_itself_whose_clock_its_timestamp_is(kafka: str, tmp_path: Path) -> None:
    """Whatever its topic is set to by now: what was published before that changed is as it was."""
    topic = f"clocks-{time.time_ns()}"
    create_topics(kafka, {topic: 1}, {"message.timestamp.type": "LogAppendTime"})
    put(kafka, topic, b"v", timestamp=77)
    wanted = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[wanted])
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)
    put(kafka, topic, b"v", timestamp=time.time_ns() // 1_000_000)
    read = read_range(_range(topic, 0, 2, tmp_path), {"bootstrap.servers": kafka})
    assert read["code"].to_pylist() == [APPEND_TIME, None]


def test_code_without_a_date_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in images that are made to have the same bytes each time."""
    (tmp_path / "spark").mkdir()
    code = tmp_path / "spark" / "code.py"
    code.touch()
    os.utime(code, (0, 0))
    monkeypatch.setattr(sources, "_PACKAGE", code.parent)
    shipped: list[str] = []
    context = SimpleNamespace(_temp_dir=str(tmp_path), addPyFile=shipped.append)
    sources._ship(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
    assert zipfile.ZipFile(shipped[0]).namelist() == ["spark/code.py"]


def test_workers_need_nothing_but_what_is_shipped() -> None:
    """The package of the job, and the libraries that it asks for."""
    code = "import sys; sys.modules['bridge'] = None; import spark.read.sources"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_error_in_a_worker_is_told_in_one_line(spark: SparkSession) -> None:
    """Such as a library that an executor lacks, and not where in Python it was missed."""

    def fail(_: int) -> int:
        raise ModuleNotFoundError("No module named 'confluent_kafka'")

    with pytest.raises(Indeterminate) as told, explained():
        spark.sparkContext.parallelize([1]).map(fail).collect()
    assert told.value.reason == "ModuleNotFoundError: No module named 'confluent_kafka'"
