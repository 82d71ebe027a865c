"""Events on disk: this run's, those earlier runs left open, and late ones of what seemed closed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.columns import Leg, OpState
from spark.sources import KafkaAccess, read_kafka, read_landed, within
from spark.window import Window

EVENTS, CARRY = "events", "carry"
_OURS = f"leg BETWEEN {Leg.HALF} AND {Leg.VISIBLE}"

# New here, but prepared before: their earlier events are in the history, if anywhere.
_STRANGERS_SQL = f"""SELECT tx FROM known WHERE {_OURS} GROUP BY tx
HAVING SUM(IF(leg = {Leg.HALF}, 1, 0)) = 0 AND SUM(IF(is_new, 1, 0)) > 0"""

# Of an ordering key whose decided transaction was still to be published: somebody may have overtaken it meanwhile.
_CHAINED_SQL = f"""SELECT DISTINCT okey FROM carried WHERE leg = {Leg.HALF} AND okey IS NOT NULL
AND tx IN (SELECT tx FROM carried WHERE leg = {Leg.END} AND code <> 0)"""

# What the next run must see again: whatever is not final, or not wholly readable yet, or has a finding.
_CARRY_SQL = f"""SELECT tx FROM transactions WHERE (halves = 0 OR halves > voids) AND NOT COALESCE(
  last_op % 8 = {OpState.ROLLED_BACK} OR (last_op % 8 = {OpState.COMMITTED} AND records >= announced), FALSE)
UNION SELECT transaction_id FROM findings WHERE state <> 'CLEARED'"""


@dataclass(frozen=True, slots=True)
class Landed:
    """The folder of this run, and those of the runs whose windows lie before, oldest first."""

    folder: Path
    before: Sequence[Path]


def land(spark: SparkSession, window: Window, landed: Landed, kafka: KafkaAccess, instead: Sequence[Path] = ()) -> None:
    """Reads Kafka once, or `instead` the window's part of what was landed in these folders.

    Views: `new_events`, and `events` with what belongs to them from before.
    """
    events = (
        within(read_landed(spark, *(unit / EVENTS for unit in instead)), window)
        if instead
        else read_kafka(spark, window, kafka)
    )
    path = landed.folder / EVENTS
    events.write.parquet(str(path))
    new = read_landed(spark, path)
    new.createOrReplaceTempView("new_events")
    if not landed.before:
        new.createOrReplaceTempView("events")
        return
    carried = read_landed(spark, landed.before[-1] / CARRY)
    carried.createOrReplaceTempView("carried")
    late = _find_late(spark, new, carried, landed.before)
    reduce(DataFrame.unionAll, [new, carried, *late]).createOrReplaceTempView("events")


def write_carry(spark: SparkSession, folder: Path, window: Window) -> None:
    """What the next run needs besides what it reads."""
    wanted = f"{_CARRY_SQL} UNION {_ahead_sql(window)}"
    carried = spark.sql(f"SELECT events.* FROM events JOIN ({wanted}) AS wanted ON events.tx = wanted.tx")
    carried.coalesce(2).write.parquet(str(folder / CARRY))


def _ahead_sql(window: Window) -> str:
    """What has ended behind the journal's end of this window: its half message is still to be read."""
    journal = window.ranges_of([window.half])
    ends = " ".join(f"WHEN {place.part} THEN {extent.end}" for place, extent in journal.items())
    return f"SELECT tx FROM events WHERE leg = {Leg.OP} AND half >= CASE part {ends} END"


def _find_late(spark: SparkSession, new: DataFrame, carried: DataFrame, before: Sequence[Path]) -> list[DataFrame]:
    """Events of transactions that seemed closed; the history is looked through only if there is such a one."""
    known = new.selectExpr("tx", "leg", "TRUE AS is_new").unionAll(carried.selectExpr("tx", "leg", "FALSE AS is_new"))
    known.createOrReplaceTempView("known")
    strangers = [row.tx for row in spark.sql(_STRANGERS_SQL).collect()]
    chained = [row.okey for row in spark.sql(_CHAINED_SQL).collect()]
    if not strangers and not chained:
        return []
    history = reduce(DataFrame.unionAll, [read_landed(spark, folder / EVENTS) for folder in before])
    history.createOrReplaceTempView("history")
    spark.createDataFrame([(tx,) for tx in strangers], "tx STRING").createOrReplaceTempView("strangers")
    spark.createDataFrame([(okey,) for okey in chained], "okey BIGINT").createOrReplaceTempView("chained")
    wanted = f"""SELECT tx FROM (SELECT tx FROM strangers
UNION SELECT tx FROM history WHERE leg = {Leg.HALF} AND okey IN (SELECT okey FROM chained))
WHERE tx NOT IN (SELECT tx FROM carried)"""
    return [spark.sql(f"SELECT history.* FROM history JOIN ({wanted}) AS wanted ON history.tx = wanted.tx")]
