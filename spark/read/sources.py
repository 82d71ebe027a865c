"""Where the envelope comes from: Kafka, read by tasks that each land a range of offsets, or files landed before."""

import gc
import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Delivered
from pyspark.sql import DataFrame, SparkSession

from spark.errors import Indeterminate
from spark.read.decode import (
    SCHEMA,
    Decode,
    Records,
    decode_journal,
    decode_op,
    decode_parked,
    decode_real,
    decode_real_content,
    make_batch,
)
from spark.read.envelope import EVENT_SCHEMA
from spark.read.formats import Headers
from spark.read.window import Window

_PACKAGE = Path(__file__).parents[1]
_SHIPPED = "outbox-bridge-report.zip"
_PATIENCE_S = 20.0  # of a read
_TAKEN = 16  # records at once, which may be of many megabytes each
_WAIT_S = 0.02  # for so many, which a range's last ones never are
_BATCH = 10_000
_BATCH_BYTES = 16 << 20  # of values; decoding needs several times as much
_TASK_OFFSETS = 250_000  # so that a large partition is read by all processors, and a task's rows fit into memory
_CLIENT = {
    "group.id": "outbox-bridge-report",  # wanted by the client, never joined
    "isolation.level": "read_committed",  # else aborted batches count as duplicates
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # else fewer rows are returned without an error
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,  # of the broker where a partition ends, as most ranges do; by default half a second each
    "queued.max.messages.kbytes": 8_192,  # what was fetched behind the range is thrown away
    "statistics.interval.ms": 1_000,  # tell how far it has come where nothing is committed
}
# Called as a method in a loop, it would not raise: Python then leaves out to ask whether there was an error, and what
# is returned beside one crashes the worker.
_ask_headers = methodcaller("headers")
_HARMLESS = {
    KafkaError._PARTITION_EOF,  # noqa: SLF001 - the client's public name
    KafkaError.GROUP_AUTHORIZATION_FAILED,  # the client looks for the group's coordinator, though nobody joins it
}


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How Kafka is reached: librdkafka's options. `by_receipts`: records that do not name a transaction are hashed
    too."""

    options: Mapping[str, Any]
    by_receipts: bool = False


class _Range(NamedTuple):
    """Offsets of one partition, what turns their records into the envelope, and where that is written."""

    topic: str
    part: int
    start: int
    end: int
    decode: Decode
    file: Path


def land_kafka(spark: SparkSession, window: Window, kafka: KafkaAccess, folder: Path) -> None:
    """Writes the envelope of a window as Parquet, a file for each range; those that are there are kept.

    A filter in each file tells which transactions it has nothing of. Raises Indeterminate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder.absolute()  # executors work in folders of their own
    ranges = [one for one in _cut(window, kafka, whole) if not one.file.exists()]
    if not ranges:
        return
    options = dict(kafka.options)
    _ship(spark)
    work = spark.sparkContext.parallelize(ranges, len(ranges))
    reasons = [reason for reason in work.map(lambda one: _land(one, options)).collect() if reason]
    if reasons:
        raise Indeterminate(reasons[0], "What was read is not judged; run it again.")


def read_landed(spark: SparkSession, *folders: Path) -> DataFrame:
    """The envelope as it was landed before, by a run or by a landing."""
    reader = spark.read.schema(EVENT_SCHEMA).option("recursiveFileLookup", "true")
    return reader.parquet(*[str(folder) for folder in folders])


def within(events: DataFrame, window: Window) -> DataFrame:
    """The events of the window."""
    parts = (
        f"(topic = '{place.topic}' AND part = {place.part} AND off >= {extent.start} AND off < {extent.end})"
        for place, extent in sorted(window.extents.items())
    )
    return events.where(" OR ".join(parts))


def _cut(window: Window, kafka: KafkaAccess, folder: Path) -> Iterator[_Range]:
    internal = {window.half: decode_journal, window.op: decode_op, window.parked: decode_parked}
    real = decode_real_content if kafka.by_receipts else decode_real
    numbers = count(1)
    for (topic, part), extent in sorted(window.extents.items()):
        for start in range(extent.start, extent.end, _TASK_OFFSETS):
            end = min(start + _TASK_OFFSETS, extent.end)
            file = folder / f"{next(numbers):06d}.parquet"
            yield _Range(topic, part, start, end, internal.get(topic, real), file)


def _ship(spark: SparkSession) -> None:
    """Gives the workers this package, wherever they are; they have the libraries that it asks for."""
    context = spark.sparkContext
    path = Path(context._temp_dir) / _SHIPPED  # noqa: SLF001 - it lasts as long as the context
    if path.exists():
        return
    with zipfile.ZipFile(path, "w", strict_timestamps=False) as archive:  # images may have files of 1970
        for file in sorted(_PACKAGE.rglob("*.py")):
            archive.write(file, file.relative_to(_PACKAGE.parent))
    context.addPyFile(str(path))


def _land(wanted: _Range, options: Mapping[str, Any]) -> str:
    """Runs in a worker. What went wrong with Kafka, if anything did."""
    try:
        rows = _read(wanted, options)
    except (Indeterminate, KafkaException) as error:
        return f"{wanted.topic}-{wanted.part} cannot be read from {wanted.start} to {wanted.end}: {error}"
    if rows.num_rows:
        _write(rows, wanted.file)
    return ""


def _read(wanted: _Range, options: Mapping[str, Any]) -> pa.Table:
    """The envelope of all records of the range. Raises Indeterminate, KafkaException."""
    signs = _Signs()
    consumer = Consumer({**options, **_CLIENT, "stats_cb": signs.hear_statistics, "error_cb": signs.hear_error})
    gc.disable()  # looking for cycles among so many records takes longer than reading them
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.part, wanted.start)])
        batches = [
            make_batch(wanted.decode, _as_columns(wanted, messages))
            for messages in _read_batches(consumer, wanted, signs)
        ]
    finally:
        gc.enable()
        consumer.close()
    return pa.Table.from_batches(batches, SCHEMA)


class _Signs:
    """What tells that Kafka is still read, or why not."""

    def __init__(self) -> None:
        self._heard, self._next, self._trouble = time.monotonic(), 0, ""

    def hear(self) -> None:
        """Something came."""
        self._heard = time.monotonic()

    def hear_statistics(self, text: str) -> None:
        """Of the client: records that were aborted are passed over there."""
        parts = [part for topic in json.loads(text)["topics"].values() for part in topic["partitions"].values()]
        reached = max((part["next_offset"] for part in parts), default=0)
        if reached > self._next:
            self._next = reached
            self.hear()

    def hear_error(self, error: KafkaError) -> None:
        """Of the client, which goes on trying."""
        self._trouble = f", {error.str()}"

    def check(self) -> None:
        """Raises Indeterminate when nothing was heard for long."""
        if time.monotonic() - self._heard > _PATIENCE_S:
            raise Indeterminate(f"nothing came for {_PATIENCE_S:.0f} s{self._trouble}")


def _write(rows: pa.Table, file: Path) -> None:
    """At once, as far as others see: a task may be killed, or done twice."""
    unfinished = file.with_name(f".{file.name}-{time.time_ns()}")
    pq.write_table(
        rows,
        unfinished,
        compression="snappy",
        use_dictionary=["topic", "grp"],
        bloom_filter_options={"tx": {"ndv": rows.num_rows, "fpp": 0.01}},
    )
    unfinished.replace(file)


def _read_batches(consumer: Consumer, wanted: _Range, signs: _Signs) -> Iterator[list[Delivered]]:
    """All records of the range. Raises Indeterminate when Kafka says nothing for long."""
    batch: list[Delivered] = []
    size, is_over = 0, False
    while not is_over:
        messages = consumer.consume(_TAKEN, _WAIT_S)
        is_over = any(_is_behind(message, wanted.end) for message in messages)
        records = [message for message in messages if message.error() is None and _offset(message) < wanted.end]
        batch += records
        size += sum(map(len, records))
        if batch and (is_over or len(batch) >= _BATCH or size >= _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if messages:
            signs.hear()
        else:
            signs.check()


def _is_behind(message: Delivered, end: int) -> bool:
    """Whether everything before `end` was read: by a record behind it, or by the partition's end."""
    error = message.error()
    if error is not None and error.code() not in _HARMLESS:
        raise KafkaException(error)
    return _offset(message) >= end or (error is None and _offset(message) == end - 1)


def _offset(message: Delivered) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _as_columns(wanted: _Range, messages: list[Delivered]) -> Records:
    return Records(
        wanted.topic,
        wanted.part,
        [_offset(message) for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [_headers(message) for message in messages],
    )


def _headers(message: Delivered) -> Headers:
    """None where a name is no UTF-8, which the client cannot read: it is not the bridge that wrote such a record."""
    try:
        return cast("Headers", _ask_headers(message) or ())
    except (SystemError, UnicodeDecodeError):
        return ()
