"""From the fold's rows to findings: what is not plainly right is replayed event by event."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyspark.sql import Row, SparkSession

from spark.judge.findings import Finding, report, report_unreadable
from spark.judge.fold import (
    CHAINED_SQL,
    KEPT_SQL,
    OVERTAKING_SQL,
    SCATTERED_SQL,
    SEVERAL_SQL,
    SHARED_SQL,
    exchanged_sql,
)
from spark.judge.proposals import propose_repair
from spark.judge.rules import FindingKind, Found, judge
from spark.read.envelope import EVENT_TYPES, UNREADABLE_SQL, Event, Evidence, PreparedMessage, ReceiptRow, paired_sql
from spark.read.events import events_of, join_ids, small
from spark.read.scope import Scope

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
