"""Where the envelope comes from: Kafka by the official connector, or files landed before."""

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.columns import EVENT_SCHEMA
from spark.envelope import journal_sql, op_sql, parked_sql, real_sql
from spark.scope import Extent, Place
from spark.window import Window

_PATIENCE_MS = 20_000  # of a read; by default two minutes pass before anything is said


def read_kafka(spark: SparkSession, window: Window, kafka: Mapping[str, str]) -> DataFrame:
    """The envelope of a window. `kafka`: the Java client's options."""
    parts = [([window.half], journal_sql), ([window.op], op_sql), ([window.parked], parked_sql)]
    if window.real:
        parts.append((window.real, real_sql))
    frames = []
    for number, (topics, sql) in enumerate(parts):
        name = f"records_{number}"
        _read_records(spark, window.ranges_of(topics), kafka).createOrReplaceTempView(name)
        frames.append(spark.sql(sql(name)))
    return _union(frames)


def read_landed(spark: SparkSession, folder: Path) -> DataFrame:
    """The envelope as an earlier run has landed it."""
    return spark.read.schema(EVENT_SCHEMA).parquet(str(folder))


def _union(frames: list[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _read_records(spark: SparkSession, ranges: Mapping[Place, Extent], kafka: Mapping[str, str]) -> DataFrame:
    """Committed records of exactly these offsets, with the connector's columns."""
    topics = sorted({place.topic for place in ranges})
    partitions = {topic: [place.part for place in ranges if place.topic == topic] for topic in topics}
    starts = {topic: {str(p.part): e.start for p, e in ranges.items() if p.topic == topic} for topic in topics}
    ends = {topic: {str(p.part): e.end for p, e in ranges.items() if p.topic == topic} for topic in topics}
    options = {
        **{f"kafka.{name}": value for name, value in kafka.items()},
        "kafka.isolation.level": "read_committed",  # else aborted batches count as duplicates
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "true",  # else fewer rows are returned and nobody is told
        "kafkaConsumer.pollTimeoutMs": str(_PATIENCE_MS),
    }
    return spark.read.format("kafka").options(**options).load()
