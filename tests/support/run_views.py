"""What a run has, from events made by hand."""

from collections.abc import Sequence
from enum import IntEnum

from pyspark.sql import DataFrame, SparkSession

from spark.judge.fold import fold_sql
from spark.read.envelope import EVENT_SCHEMA, Event


def make_frame(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    """The events as landed ones are read."""
    # Spark takes no enumeration for a number
    rows = [tuple(int(value) if isinstance(value, IntEnum) else value for value in event) for event in events]
    return spark.createDataFrame(rows, EVENT_SCHEMA)


def show_views(spark: SparkSession, events: Sequence[Event]) -> None:
    """The views `new_events`, `events`, `transactions`."""
    frame = make_frame(spark, events)
    frame.createOrReplaceTempView("new_events")
    frame.createOrReplaceTempView("events")
    spark.sql(fold_sql(0)).createOrReplaceTempView("transactions")
