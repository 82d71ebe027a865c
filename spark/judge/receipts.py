"""Records that do not name their transactions, found by the places that receipts name.

What no receipt names is nobody's: a duplicate or a phantom looks like another producer's record.
"""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.read.envelope import EVENT_TYPES, Evidence
from spark.read.events import EVENTS
from spark.read.sources import read_landed
from spark.read.window import Window

_LINKED = "linked"
_PLACE = ["topic", "part", "off"]

# of the places that op messages name, who has named them, and since when; `is_disputed`: by several transactions
_TOLD_SQL = f"""SELECT *, COUNT(*) OVER (PARTITION BY topic, part, off) > 1 AS is_disputed FROM (
SELECT tx, MIN(ms) AS told_ms, place.topic, place.part, place.off FROM (
SELECT tx, ms, explode(receipts) AS place FROM events WHERE leg = {Evidence.OP}) WHERE place.off IS NOT NULL
GROUP BY tx, place.topic, place.part, place.off)"""

# a place has one message: it belongs to the transaction that prepared this record, and of several to the first
_OWNED_SQL = f"""SELECT * FROM (SELECT disputed.*, ROW_NUMBER() OVER (
  PARTITION BY disputed.topic, disputed.part, disputed.off ORDER BY COALESCE(exists(prepared,
    m -> m.topic = disputed.topic AND m.content = disputed.content), FALSE) DESC, told_ms, disputed.tx) AS place_in_line
FROM disputed LEFT JOIN (SELECT tx, MIN_BY(messages, off) AS prepared FROM events
  WHERE leg = {Evidence.HALF} AND NOT is_void GROUP BY tx) AS halves
  ON disputed.tx = halves.tx) WHERE place_in_line = 1"""

# of what an earlier run has found, the carry has the record already
_NEW_SQL = f"""SELECT told.* FROM told LEFT ANTI JOIN (SELECT * FROM events WHERE leg = {Evidence.VISIBLE}) AS seen
ON told.tx = seen.tx AND told.topic = seen.topic AND told.part = seen.part AND told.off = seen.off"""


def link_by_receipts(spark: SparkSession, window: Window, folder: Path, before: Sequence[Path]) -> None:
    """Adds the records that op messages name to the view `events`, as VISIBLE; `new_events` separates them from
    others'.

    `before`: the folders of earlier runs, for records of their windows. Records were read by `real_content_sql`.
    """
    spark.sql(_TOLD_SQL).createOrReplaceTempView("told")
    told = spark.sql(_NEW_SQL)
    linked = [_take(told, spark.table("new_events"))]
    starts = [(*place, extent.start) for place, extent in window.ranges_of(window.real).items()]
    if before and starts:
        begun = spark.createDataFrame(starts, "topic STRING, part INT, start BIGINT")
        early = told.join(begun, ["topic", "part"]).where("off < start").drop("start")
        if not early.isEmpty():
            free = reduce(_without_given, [read_landed(spark, path) for path in _linked_before(before)], early)
            linked += [_take(free, read_landed(spark, earlier / EVENTS)) for earlier in before]
    reduce(DataFrame.unionAll, linked).write.parquet(str(folder / _LINKED))
    found = read_landed(spark, folder / _LINKED)
    places = found.select(*_PLACE, "leg").distinct().withColumnRenamed("leg", "found")
    known = spark.table("new_events").join(places, _PLACE, "left")
    legs = {name: "COALESCE(found, leg) AS leg" if name == "leg" else name for name in EVENT_TYPES}
    known.selectExpr(*legs.values()).createOrReplaceTempView("new_events")
    spark.table("events").unionAll(found).createOrReplaceTempView("events")


def _linked_before(before: Sequence[Path]) -> list[Path]:
    return [earlier / _LINKED for earlier in before if (earlier / _LINKED).exists()]


def _without_given(told: DataFrame, given: DataFrame) -> DataFrame:
    """Records whose place no earlier run has found to be another transaction's."""
    taken = given.selectExpr("tx AS owner", *_PLACE)
    is_anothers = [told[name] == taken[name] for name in _PLACE] + [told["tx"] != taken["owner"]]
    return told.join(taken, is_anothers, "left_anti")


def _take(told: DataFrame, events: DataFrame) -> DataFrame:
    """Others' records that are reported, as the transaction's own; of a disputed one, as its owner's."""
    others = events.where(f"leg = {Evidence.FOREIGN} AND content IS NOT NULL").drop("tx").join(told, _PLACE)
    named = {"leg": f"CAST({int(Evidence.VISIBLE)} AS INT) AS leg"}
    columns = [named.get(name, name) for name in EVENT_TYPES]
    others.where("is_disputed").createOrReplaceTempView("disputed")
    owned = others.sparkSession.sql(_OWNED_SQL)
    return others.where("NOT is_disputed").selectExpr(*columns).unionAll(owned.selectExpr(*columns))
