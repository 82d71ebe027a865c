"""From the fold's rows to findings: what is not plainly right is replayed event by event.

What no receipt names is nobody's: a duplicate or a phantom looks like another producer's record.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from spark.judge.findings import Finding, propose_repair, report, report_unreadable
from spark.judge.fold import (
    CHAINED_SQL,
    KEPT_SQL,
    OVERTAKING_SQL,
    SCATTERED_SQL,
    SEVERAL_SQL,
    SHARED_SQL,
    exchanged_sql,
)
from spark.judge.rules import FindingKind, Found, judge
from spark.read.envelope import EVENT_TYPES, UNREADABLE_SQL, Event, Evidence, PreparedMessage, ReceiptRow, paired_sql
from spark.read.events import EVENTS, events_of, join_ids, small
from spark.read.scope import Scope
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


_EVENT = ", ".join(EVENT_TYPES)
_HELD = 20_000  # transactions that are taken from Spark at a time
EVENT_ORDER = ("tx", "leg", "topic", "part", "off")  # as `by_transaction` wants them


@dataclass(slots=True)
class Judged:
    """What was found, and how many transactions had to be replayed event by event.

    `related`: transactions that findings need.
    """

    findings: list[Finding] = field(default_factory=list)
    repairs: list[dict[str, Any]] = field(default_factory=list)
    told: int = 0
    related: list[str] = field(default_factory=list)


def judge_suspects(spark: SparkSession, scope: Scope) -> Judged:
    """Findings of single transactions, from the view `kept`. A few are held in memory at a time."""
    judged = Judged()
    for tx, events in by_transaction(spark.sql(f"SELECT {_EVENT} FROM kept WHERE is_suspect").toLocalIterator()):
        judged.told += 1
        for found in judge(tx, events, scope):
            finding = report(tx, events, found, scope.now_ms)
            judged.findings.append(finding)
            repair = propose_repair(finding, events, scope)
            if repair is not None:
                judged.repairs.append(repair)
    judged.repairs.sort(key=lambda repair: (repair["transaction_id"], repair["kind"]))
    return judged


def find_unreadable(spark: SparkSession, scope: Scope) -> list[Finding]:
    """UNREADABLE: one a record, named by its place; the first of them, if there are very many."""
    rows = spark.sql(f"SELECT {_EVENT} FROM events {UNREADABLE_SQL}").collect()
    return [report_unreadable(_make_event(row), scope.now_ms) for row in rows]


def keep_events(spark: SparkSession) -> None:
    """View `kept`: the events of all transactions that matter later, read once, each transaction's in a row."""
    several = spark.sql(SEVERAL_SQL)
    kept = spark.sql(KEPT_SQL)
    if not several.isEmpty():
        small(several, several.count()).createOrReplaceTempView("several")
        exchanged = spark.sql(exchanged_sql(paired_sql())).selectExpr("tx", "TRUE AS is_suspect", "FALSE AS is_open")
        kept = kept.unionAll(exchanged)
    kept = kept.persist()
    count = kept.count()
    events = join_ids(spark.table("events"), kept, count).repartition(1 + count // _HELD, "tx")
    events.sortWithinPartitions(*EVENT_ORDER).persist().createOrReplaceTempView("kept")


def find_out_of_order(spark: SparkSession, scope: Scope) -> tuple[list[Finding], list[str]]:
    """OUT_OF_ORDER: one a transaction that overtook, with the records of both; and the ids of both."""
    overtaken: dict[str, set[str]] = {}
    shared = spark.sql(SHARED_SQL).persist()
    keys = shared.count()
    if not keys:
        return [], []
    small(shared, keys).createOrReplaceTempView("shared")
    spark.sql(CHAINED_SQL).persist().createOrReplaceTempView("chained")
    scattered = spark.sql(SCATTERED_SQL)
    records = spark.table("events").where(f"leg = {Evidence.VISIBLE}").select("tx", "topic_id", "part", "off")
    join_ids(records, scattered, scattered.count()).createOrReplaceTempView("scattered")
    for row in spark.sql(OVERTAKING_SQL).collect():
        overtaken.setdefault(row.tx, set()).add(row.overtaken_tx)
    if not overtaken:
        return [], []
    wanted = sorted(set(overtaken).union(*overtaken.values()))
    told = dict(by_transaction(sorted(events_of(spark, wanted).collect(), key=attrgetter(*EVENT_ORDER))))
    return [_tell_overtaking(tx, sorted(overtaken[tx]), told, scope) for tx in sorted(overtaken)], wanted


def _tell_overtaking(tx: str, others: list[str], told: dict[str, list[Event]], scope: Scope) -> Finding:
    shown = [event for one in (tx, *others) for event in told[one] if event.leg in {Evidence.END, Evidence.VISIBLE}]
    detail = f"published before {others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    found = Found(FindingKind.OUT_OF_ORDER, f"{detail}, whose commit was recorded earlier", tuple(shown))
    return report(tx, told[tx], found, scope.now_ms)


def by_transaction(rows: Iterable[Row]) -> Iterator[tuple[str, list[Event]]]:
    """The events of each transaction; the rows are in the order of their ids."""
    for tx, events in groupby((_make_event(row) for row in rows), key=attrgetter("tx")):
        yield tx, list(events)


def _make_event(row: Row) -> Event:
    event = Event(*row)
    messages, receipts = row.messages, row.receipts
    return event._replace(
        messages=None if messages is None else tuple(PreparedMessage(*message) for message in messages),
        receipts=None if receipts is None else tuple(ReceiptRow(*receipt) for receipt in receipts),
    )
