"""Events of some transactions, without moving all the others where they are few."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col

_FEW = 2_000  # ids that a Parquet reader looks up in each file's Bloom filters
_MANY = 200_000  # ids that are not sent to every worker any more


def events_of(spark: SparkSession, transaction_ids: Sequence[str]) -> DataFrame:
    """Every known event of these transactions."""
    return select_of(spark, spark.table("events"), transaction_ids)


def select_of(spark: SparkSession, events: DataFrame, transaction_ids: Sequence[str]) -> DataFrame:
    """Those of these transactions. Few ids are looked up by the reader of the files."""
    if len(transaction_ids) <= _FEW:
        return events.where(col("tx").isin(list(transaction_ids)))
    return join_ids(events, make_ids(spark, transaction_ids), len(transaction_ids))


def join_ids(events: DataFrame, ids: DataFrame, count: int) -> DataFrame:
    """The events of these ids, with the columns beside the ids."""
    return events.join(small(ids, count), "tx")


def small(rows: DataFrame, count: int) -> DataFrame:
    """For a join: sent to every worker, unless there are many of them."""
    return broadcast(rows) if count <= _MANY else rows


def make_ids(spark: SparkSession, transaction_ids: Sequence[str]) -> DataFrame:
    """A column `tx`."""
    return spark.createDataFrame(pa.table({"tx": pa.array(transaction_ids, pa.string())}))
