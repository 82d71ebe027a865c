"""Where the envelope comes from: Kafka, read by tasks that each land a range of offsets, or files landed before."""

import gc
import json
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Delivered
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from spark.errors import BadUsage, Indeterminate, ReconcileError
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
from spark.read.window import CUT, Window

_PACKAGE = Path(__file__).parents[1]
_SHIPPED = "outbox-bridge-report.zip"
_FILES = "_files.json"  # names of all that was landed beside it; Spark passes it over
_PATIENCE_S = 20.0  # of a read
_TAKEN = 16  # records at once, which may be of many megabytes each
_WAIT_S = 0.02  # for so many, which a range's last ones never are
_BATCH = 10_000
_BATCH_BYTES = 16 << 20  # of records; decoding needs several times as much
_GROUP_BYTES = 64 << 20  # of rows; a half message of many messages is a long one
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
_TRUNCATED = "log truncation"  # the client's words for a log that was cut before the epoch, and the offset, of a range
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
    """Offsets of one partition, what turns their records into the envelope, and where that is written.

    `epoch`: the leader's when all before `start` was read; -1: not known.
    """

    topic: str
    part: int
    start: int
    end: int
    decode: Decode
    file: Path
    epoch: int = -1


def land_kafka(spark: SparkSession, window: Window, kafka: KafkaAccess, folder: Path) -> None:
    """Writes the envelope of a window as Parquet, a file for each range; those that are there are kept.

    A filter in each file tells which transactions it has nothing of. The topics are those of the window, before and
    after they are read: their offsets mean nothing in others. Raises BadUsage, Indeterminate.
    """
    from spark.read.offsets import check_topics  # noqa: PLC0415 - workers import this module, and have no bridge

    folder.mkdir(parents=True, exist_ok=True)
    planned = list(_cut(window, kafka, folder.absolute()))  # executors work in folders of their own
    ranges = [one for one in planned if not _is_whole(one.file)]
    if ranges:
        options = dict(kafka.options)
        check_topics(options, window)
        _ship(spark)
        work = spark.sparkContext.parallelize(ranges, len(ranges))
        errors = [error for error in work.map(lambda one: _land(one, options)).collect() if error is not None]
        if errors:
            raise errors[0]
        check_topics(options, window)
    names = {one.file.name for one in planned}
    for path in folder.glob("*.parquet*"):  # of tasks that were killed, or are not wanted any more
        if path.name not in names:
            path.unlink(missing_ok=True)
    note_files(folder)


def note_files(folder: Path) -> None:
    """Notes which files there are: from now on one more, or one less, is an error."""
    noted, path = json.dumps(_find_files(folder), indent=1), folder / _FILES
    if not path.exists() or path.read_text() != noted:
        path.write_text(noted)


def read_landed(spark: SparkSession, *folders: Path) -> DataFrame:
    """The envelope as it was landed before, by a run or by a landing. Raises Indeterminate where a file is missing."""
    for folder in folders:
        _check_files(folder)
    reader = spark.read.schema(EVENT_SCHEMA).option("recursiveFileLookup", "true")
    return reader.parquet(*[str(folder) for folder in folders])


def _check_files(folder: Path) -> None:
    path = folder / _FILES
    if not path.exists():  # of an older release
        return
    noted, found = set(json.loads(path.read_text())), set(_find_files(folder))
    if noted != found:
        name = min(noted ^ found)
        what = "is missing" if name in noted else "does not belong there"
        raise Indeterminate(f"{folder / name} {what}", "Restore the folder as it was, or begin anew.")


def _find_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!._]*.parquet") if _is_whole(path))


def _is_whole(path: Path) -> bool:
    """Whether it is there. What a machine that lost its power has left empty is not: Spark would pass it over."""
    return path.exists() and path.stat().st_size > 0


def within(events: DataFrame, window: Window) -> DataFrame:
    """The events of the window. (A condition for each of ten thousand partitions is more than Spark can compile.)"""
    ranges = [(*place, extent.start, extent.end) for place, extent in sorted(window.extents.items())]
    read = events.sparkSession.createDataFrame(ranges, "topic STRING, part INT, first BIGINT, behind BIGINT")
    return events.join(broadcast(read), ["topic", "part"]).where("off >= first AND off < behind").select(events.columns)


def _cut(window: Window, kafka: KafkaAccess, folder: Path) -> Iterator[_Range]:
    internal = {window.half: decode_journal, window.op: decode_op, window.parked: decode_parked}
    real = decode_real_content if kafka.by_receipts else decode_real
    numbers = count(1)
    for (topic, part), extent in sorted(window.extents.items()):
        for start in range(extent.start, extent.end, _TASK_OFFSETS):
            end = min(start + _TASK_OFFSETS, extent.end)
            # what is still written by the tasks of a killed landing has another name
            file = folder / f"{window.taken_ms}-{next(numbers):06d}.parquet"
            epoch = extent.start_epoch if start == extent.start else -1
            yield _Range(topic, part, start, end, internal.get(topic, real), file, epoch)


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


def _land(wanted: _Range, options: Mapping[str, Any]) -> ReconcileError | None:
    """Runs in a worker. What went wrong with Kafka, if anything did."""
    try:
        _write(_read(wanted, options), wanted.file)
    except (Indeterminate, KafkaException) as error:
        place = f"{wanted.topic}-{wanted.part}"
        if _TRUNCATED in str(error):
            what = f"{place} was cut before {wanted.start}, where the last run has read up to, and has grown since"
            return BadUsage(f"{what}: records that were read are lost", CUT)
        reason = f"{place} cannot be read from {wanted.start} to {wanted.end}: {error}"
        return Indeterminate(reason, "What was read is not judged; run it again.")
    return None


def _read(wanted: _Range, options: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The envelope of all records of the range. Raises Indeterminate, KafkaException."""
    signs = _Signs()
    consumer = Consumer({**options, **_CLIENT, "stats_cb": signs.hear_statistics, "error_cb": signs.hear_error})
    gc.disable()  # looking for cycles among so many records takes longer than reading them
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.part, wanted.start, leader_epoch=wanted.epoch)])
        for batch in _read_batches(consumer, wanted, signs):
            columns = zip(*batch, strict=True)
            yield make_batch(wanted.decode, Records(wanted.topic, wanted.part, *columns))
    finally:
        gc.enable()
        consumer.close()


class _Signs:
    """What tells that Kafka is still read, or why not."""

    def __init__(self) -> None:
        self._heard, self._next, self._trouble = time.monotonic(), 0, ""

    def hear(self) -> None:
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


def _write(batches: Iterable[pa.RecordBatch], file: Path) -> None:
    """At once, as far as others see: a task may be killed, or done twice. No more than a row group is in memory."""
    unfinished = file.with_name(f".{file.name}-{uuid4().hex}")
    try:
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for rows in _group(batches):
                writer = writer or stack.enter_context(_open(unfinished, rows.num_rows))
                writer.write_table(rows, rows.num_rows)
        if writer is not None:
            unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _open(file: Path, group_rows: int) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        SCHEMA,
        compression="snappy",
        use_dictionary=["topic", "grp", "remark"],
        bloom_filter_options={"tx": {"ndv": group_rows, "fpp": 0.01}},
    )


def _group(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(group, SCHEMA)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group, SCHEMA)


_Record = tuple[int, int, bytes | None, bytes | None, Headers, int]  # as columns of `Records`


def _read_batches(consumer: Consumer, wanted: _Range, signs: _Signs) -> Iterator[list[_Record]]:
    """All records of the range. Raises Indeterminate when Kafka says nothing for long."""
    batch: list[_Record] = []
    size, is_over = 0, False
    while not is_over:
        messages = consumer.consume(_TAKEN, _WAIT_S)
        is_over = any(_is_behind(message, wanted.end) for message in messages)
        for message in messages:
            if message.error() is None and _offset(message) < wanted.end:
                key, value, headers = message.key(), message.value(), _headers(message)
                clock, ms = message.timestamp()
                batch.append((_offset(message), ms, key, value, headers, clock))
                size += len(key or b"") + len(value or b"")
                size += sum(len(name) + len(text or b"") for name, text in headers) if headers else 0
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


def _headers(message: Delivered) -> Headers:
    """None where a name is no UTF-8, which the client cannot read: it is not the bridge that wrote such a record."""
    try:
        return cast("Headers", _ask_headers(message) or ())
    except (SystemError, UnicodeDecodeError):
        return ()
