"""Both readers of Kafka, on one window of real transactions."""

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import Row, SparkSession

from spark.read.offsets import take_window
from spark.read.sources import READERS, KafkaAccess, read_kafka
from spark.read.window import Window
from spark.selftest.run import Injector, SeededTopics, make_tales

pytestmark = pytest.mark.timeout(300)
KEY = ("topic", "part", "off")


@pytest.fixture
def stage(kafka: str) -> Iterator[SeededTopics]:
    """Topics with one round of everything, and 20 ordinary transactions."""
    made = SeededTopics(f"sources-{time.time_ns()}.")
    injector = Injector({"bootstrap.servers": kafka}, made, time.time_ns() // 1_000_000)
    injector.create_topics()
    injector.plant(make_tales(20, 1))
    yield made
    injector.delete_topics()


def read(spark: SparkSession, window: Window, kafka: str, reader: str) -> list[Row]:
    access = KafkaAccess({"bootstrap.servers": kafka}, {}, reader)
    return read_kafka(spark, window, access).sort(*KEY).collect()


def test_both_readers_read_the_same(spark: SparkSession, kafka: str, stage: SeededTopics) -> None:
    """Committed records only, each once, up to the noted ends and no further, null and empty kept apart."""
    options = {"bootstrap.servers": kafka}
    real = [
        name for name in stage.topics if name not in {stage.internal.half, stage.internal.op, stage.internal.parked}
    ]
    window = take_window(options, stage.internal, real)
    first, second = (read(spark, window, kafka, reader) for reader in READERS)
    assert first == second
    places = [tuple(row[name] for name in KEY) for row in first]
    assert len(places) == len(set(places)) > 100
    holes = sum(extent.end - extent.start for extent in window.extents.values()) - len(first)
    assert holes > 0  # markers, and what was aborted
