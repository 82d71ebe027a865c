"""Where the envelope comes from: Kafka by the official connector or by Python, or files landed before."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Delivered
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark.errors import Indeterminate
from spark.read.envelope import EVENT_SCHEMA, EnvelopeSql, journal_sql, op_sql, parked_sql, real_content_sql, real_sql
from spark.read.offsets import java_options
from spark.read.scope import OffsetRange, QueuePlace
from spark.read.window import Window
from spark.session import check_connector

CONNECTOR, PYTHON = "kafka", "kafka-py"
READERS = (CONNECTOR, PYTHON)
_PATIENCE_MS = 20_000  # of a read; by default two minutes pass before anything is said
_TIMEOUTS = {"request.timeout.ms": "10000", "default.api.timeout.ms": "15000"}  # by default a minute, three times
_BATCH = 5_000
_WAIT_MS = 20  # of the broker where a partition ends, as most ranges do; by default half a second each
_FETCH_BYTES = 4 << 20
_TASK_RECORDS = 250_000
_FORMAT = "outbox_bridge_kafka"
_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How Kafka is reached: librdkafka's options, Java's besides, and which reader is wanted.

    `by_receipts`: records that do not name a transaction are hashed too.
    """

    options: Mapping[str, Any]
    java: Mapping[str, str]
    reader: str = CONNECTOR
    by_receipts: bool = False


def read_kafka(spark: SparkSession, window: Window, kafka: KafkaAccess) -> DataFrame:
    """The envelope of a window. Raises BadUsage for security that Java's client cannot be given, Indeterminate."""
    if kafka.reader == CONNECTOR:
        check_connector(spark)
    read = _read_by_connector if kafka.reader == CONNECTOR else _read_by_python
    return _make_envelope(spark, _parts_of(window, kafka), lambda topics: read(spark, window.ranges_of(topics), kafka))


def stream_kafka(
    spark: SparkSession, window: Window, kafka: KafkaAccess, *, is_journal: bool, max_offsets: int
) -> DataFrame:
    """The envelope as a stream of the journal, or of all other topics, from the window's starts on.

    `max_offsets`: of a micro-batch. Raises BadUsage for security that Java's client cannot be given, Indeterminate.
    """
    check_connector(spark)
    parts = [part for part in _parts_of(window, kafka) if (part[0] == [window.half]) is is_journal]

    def load(topics: Sequence[str]) -> DataFrame:
        options = {**_connector_options(window.ranges_of(topics), kafka), "maxOffsetsPerTrigger": str(max_offsets)}
        return spark.readStream.format("kafka").options(**options).load()

    return _make_envelope(spark, parts, load)


def _parts_of(window: Window, kafka: KafkaAccess) -> list[tuple[Sequence[str], EnvelopeSql]]:
    """Topics of one format, and what turns their records into the envelope."""
    parts: list[tuple[Sequence[str], EnvelopeSql]] = [
        ([window.half], journal_sql),
        ([window.op], op_sql),
        ([window.parked], parked_sql),
    ]
    real = real_content_sql if kafka.by_receipts else real_sql
    return [*parts, (window.real, real)] if window.real else parts


def _make_envelope(
    spark: SparkSession,
    parts: Sequence[tuple[Sequence[str], EnvelopeSql]],
    load: Callable[[Sequence[str]], DataFrame],
) -> DataFrame:
    frames = []
    for topics, sql in parts:
        name = f"records_{sql.__name__}"
        load(topics).createOrReplaceTempView(name)
        frames.append(spark.sql(sql(name)))
    return reduce(DataFrame.unionAll, frames)


def read_landed(spark: SparkSession, *folders: Path) -> DataFrame:
    """The envelope as it was landed before, by a run or by a landing in several batches."""
    reader = spark.read.schema(EVENT_SCHEMA).option("recursiveFileLookup", "true")
    return reader.parquet(*[str(folder) for folder in folders])


def within(events: DataFrame, window: Window) -> DataFrame:
    """The events of the window."""
    parts = (
        f"(topic = '{place.topic}' AND part = {place.part} AND off >= {extent.start} AND off < {extent.end})"
        for place, extent in sorted(window.extents.items())
    )
    return events.where(" OR ".join(parts))


def _read_by_connector(spark: SparkSession, ranges: Mapping[QueuePlace, OffsetRange], kafka: KafkaAccess) -> DataFrame:
    """Committed records of exactly these offsets."""
    ends = _by_topic({place: extent.end for place, extent in ranges.items()})
    options = {**_connector_options(ranges, kafka), "endingOffsets": json.dumps(ends)}
    return spark.read.format("kafka").options(**options).load()


def _connector_options(ranges: Mapping[QueuePlace, OffsetRange], kafka: KafkaAccess) -> dict[str, str]:
    """What a batch and a stream have alike: from where committed records of which partitions are read."""
    starts = _by_topic({place: extent.start for place, extent in ranges.items()})
    return {
        **{f"kafka.{name}": value for name, value in (_TIMEOUTS | java_options(kafka.options, kafka.java)).items()},
        "fetchOffset.numRetries": "1",
        "kafka.isolation.level": "read_committed",  # else aborted batches count as duplicates
        "assign": json.dumps({topic: sorted(map(int, parts)) for topic, parts in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "includeHeaders": "true",
        "failOnDataLoss": "true",  # else fewer rows are returned without an error
        "kafkaConsumer.pollTimeoutMs": str(_PATIENCE_MS),
        "kafka.max.poll.records": str(_BATCH),
        "kafka.fetch.max.wait.ms": str(_WAIT_MS),
        "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
        "maxRecordsPerPartition": str(_TASK_RECORDS),  # so that a large partition is read by all processors
    }


def _by_topic(offsets: Mapping[QueuePlace, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, {})[str(place.part)] = offset
    return topics


def _read_by_python(spark: SparkSession, ranges: Mapping[QueuePlace, OffsetRange], kafka: KafkaAccess) -> DataFrame:
    """The same columns, read by librdkafka: no jars, at one and a half times the work."""
    spark.dataSource.register(CommittedRecords)
    listed = [[*place, extent.start, extent.end] for place, extent in ranges.items() if extent.start < extent.end]
    options = {"kafka": json.dumps(dict(kafka.options)), "ranges": json.dumps(listed)}
    return spark.read.format(_FORMAT).options(**options).load()


class CommittedRecords(DataSource):
    """Spark's second reader of Kafka. Source: pyspark.sql.datasource."""

    @classmethod
    def name(cls) -> str:
        """How it is asked for."""
        return _FORMAT

    def schema(self) -> str:
        """The connector's columns."""
        return _COLUMNS

    def reader(self, schema: object) -> "CommittedReader":
        """Made in the driver, used in workers."""
        return CommittedReader(dict(self.options))


class ReadRange(InputPartition):
    """Offsets of one partition."""

    def __init__(self, topic: str, part: int, start: int, end: int) -> None:
        super().__init__((topic, part, start, end))
        self.topic, self.part, self.start, self.end = topic, part, start, end


class CommittedReader(DataSourceReader):
    """Reads ranges of offsets, each with a consumer of its own."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._kafka = json.loads(options["kafka"])
        self._ranges: list[tuple[str, int, int, int]] = [tuple(one) for one in json.loads(options["ranges"])]

    def partitions(self) -> Sequence[InputPartition]:
        """A Spark partition each."""
        return [ReadRange(*one) for one in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches. Raises Indeterminate when Kafka says nothing for long."""
        assert isinstance(partition, ReadRange)
        consumer = Consumer(
            {
                **self._kafka,
                "group.id": "outbox-bridge-report",  # wanted by the client, never joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _WAIT_MS,
            }
        )
        try:
            consumer.assign([TopicPartition(partition.topic, partition.part, partition.start)])
            yield from _read_batches(consumer, partition)
        finally:
            consumer.close()


def _read_batches(consumer: Consumer, wanted: ReadRange) -> Iterator[pa.RecordBatch]:
    heard = time.monotonic()
    while True:
        messages = consumer.consume(_BATCH, 0.5)
        records = [message for message in messages if message.error() is None and _offset(message) < wanted.end]
        if records:
            yield _make_batch(records)
        if any(_is_behind(message, wanted.end) for message in messages):
            return
        if messages:
            heard = time.monotonic()
        elif (time.monotonic() - heard) * 1_000 > _PATIENCE_MS:
            raise Indeterminate(f"{wanted.topic}-{wanted.part} is not read on before {wanted.end}")


def _is_behind(message: Delivered, end: int) -> bool:
    """Whether everything before `end` was read: by a record behind it, or by the partition's end."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name
        raise KafkaException(error)
    return _offset(message) >= end or (error is None and _offset(message) == end - 1)


def _offset(message: Delivered) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _make_batch(records: Sequence[Delivered]) -> pa.RecordBatch:
    given = [cast("list[tuple[str, bytes | None]]", record.headers() or []) for record in records]
    headers = [[{"key": name, "value": value} for name, value in pairs] or None for pairs in given]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key() for record in records], pa.binary()),
            pa.array([record.value() for record in records], pa.binary()),
            pa.array([record.topic() for record in records], pa.string()),
            pa.array([record.partition() for record in records], pa.int32()),
            pa.array([record.offset() for record in records], pa.int64()),
            pa.array([record.timestamp()[1] * 1_000 for record in records], pa.timestamp("us", tz="UTC")),
            pa.array(headers, _HEADERS),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp", "headers"],
    )
