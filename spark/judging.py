"""From the fold's rows to findings: what is not plainly right is told event by event."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyspark.sql import Row, SparkSession

from spark.columns import Event, Leg, Prepared, ReceiptRow
from spark.findings import Finding, propose_repair, report
from spark.fold import SUSPECT_EVENTS_SQL, out_of_order_sql
from spark.rules import Found, Kind, judge
from spark.scope import Scope


@dataclass(slots=True)
class Judged:
    """What was found, and how many transactions had to be told event by event."""

    findings: list[Finding] = field(default_factory=list)
    repairs: list[dict[str, Any]] = field(default_factory=list)
    told: int = 0


def judge_suspects(spark: SparkSession, scope: Scope) -> Judged:
    """Findings of single transactions. One is held in memory at a time."""
    judged = Judged()
    rows = (
        spark.sql(SUSPECT_EVENTS_SQL).sort("tx", "leg", "topic", "part", "off").toLocalIterator(prefetchPartitions=True)
    )
    for tx, events in by_transaction(rows):
        judged.told += 1
        for found in judge(tx, events, scope):
            finding = report(tx, events, found, scope.now_ms)
            judged.findings.append(finding)
            repair = propose_repair(finding, events)
            if repair is not None:
                judged.repairs.append(repair)
    return judged


def find_out_of_order(spark: SparkSession, scope: Scope) -> list[Finding]:
    """OUT_OF_ORDER: one a transaction that overtook, with the records of both."""
    spark.sql(out_of_order_sql()).createOrReplaceTempView("overtakings")
    overtaken: dict[str, set[str]] = {}
    for row in spark.sql("SELECT tx, overtaken_tx FROM overtakings").collect():
        overtaken.setdefault(row.tx, set()).add(row.overtaken_tx)
    if not overtaken:
        return []
    rows = spark.sql(
        "SELECT * FROM events WHERE tx IN (SELECT tx FROM overtakings UNION SELECT overtaken_tx FROM overtakings)"
    ).sort("tx", "leg", "topic", "part", "off")
    told = dict(by_transaction(rows.toLocalIterator()))
    return [_tell_overtaking(tx, sorted(overtaken[tx]), told, scope) for tx in sorted(overtaken)]


def _tell_overtaking(tx: str, others: list[str], told: dict[str, list[Event]], scope: Scope) -> Finding:
    shown = [event for one in (tx, *others) for event in told[one] if event.leg in {Leg.END, Leg.VISIBLE}]
    detail = f"published before {others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    found = Found(Kind.OUT_OF_ORDER, f"{detail}, whose commit was recorded earlier", tuple(shown))
    return report(tx, told[tx], found, scope.now_ms)


def by_transaction(rows: Iterable[Row]) -> Iterator[tuple[str, list[Event]]]:
    """The events of each transaction; the rows are in the order of their ids."""
    for tx, events in groupby((_make_event(row) for row in rows), key=attrgetter("tx")):
        yield tx, list(events)


def _make_event(row: Row) -> Event:
    event = Event(*row)
    messages, receipts = row.messages, row.receipts
    return event._replace(
        messages=None if messages is None else tuple(Prepared(*message) for message in messages),
        receipts=None if receipts is None else tuple(ReceiptRow(*receipt) for receipt in receipts),
    )
