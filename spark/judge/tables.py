"""Rows against transactions: what agrees is sorted out in SQL, what does not is judged row by row (`row_rules`).

Views: `first_rows`, `second_rows` (`tables.ROW_SCHEMA`), and those of a run, `events` and `transactions`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, islice
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow

from spark.judge.findings import Finding, report
from spark.judge.history import replay
from spark.judge.judging import EVENT_ORDER, by_transaction
from spark.judge.row_rules import Row, judge_row, judge_rowless
from spark.judge.rules import FindingKind, Found
from spark.read.envelope import Event, Evidence, OpState, group_hash
from spark.read.events import EVENTS, TRANSACTIONS, select_of
from spark.read.scope import Scope
from spark.read.sources import read_landed
from spark.read.table_list import BARRED, JdbcLink, Table

_Ties = tuple[int, str | None, int | None]  # a table's number, the id or the hash of the key that a row holds

FIRST, SECOND = "first_rows", "second_rows"
MARGIN_MS = 3_600_000  # how long a local transaction may last, and how far clocks may be apart
_DAY_MS = 86_400_000
_BATCH = 100_000  # rows, or transactions without a row, whose events are held at once

_FATE = "CAST(last_op % 8 AS INT) AS fate"

# The same row is one, however often its id or key is there
_ROWS_SQL = f"""SELECT source, tx, key, state, MIN(at_ms) AS at_ms, MIN(shown) AS shown FROM {FIRST}
GROUP BY source, tx, key, state"""

_PREPARED_SQL = f"""SELECT DISTINCT keyed.source, halves.tx, halves.message.key
FROM (SELECT tx, explode(messages) AS message FROM all_events WHERE leg = {Evidence.HALF} AND NOT is_void) AS halves
JOIN keyed ON keyed.topic = halves.message.topic WHERE halves.message.key IS NOT NULL"""

_LINKS_SQL = """SELECT rows.*, rows.tx AS of FROM compared AS rows WHERE rows.tx IS NOT NULL
UNION ALL SELECT rows.*, prepared.tx AS of FROM compared AS rows
JOIN prepared ON prepared.source = rows.source AND prepared.key = rows.key"""

# A transaction that is open agrees with every row: it waits
_AGREED_SQL = f"""SELECT DISTINCT source, links.tx AS tx, key, state FROM links JOIN settled ON links.of = settled.tx
WHERE COALESCE(fate, 0) IN (0, IF(state <=> '{BARRED}', {OpState.ROLLED_BACK}, {OpState.COMMITTED}))"""

_DOUBTFUL_SQL = """SELECT compared.* FROM compared LEFT ANTI JOIN agreed ON compared.source = agreed.source
AND compared.tx <=> agreed.tx AND compared.key <=> agreed.key AND compared.state <=> agreed.state
WHERE compared.tx IS NOT NULL OR compared.key IS NOT NULL"""

_OWNERS_SQL = """SELECT DISTINCT doubted.source, doubted.key, prepared.tx FROM doubted
JOIN prepared ON prepared.source = doubted.source AND prepared.key = doubted.key"""

_COMMITTED = """transactions.halves > transactions.voids AND transactions.commits + transactions.is_published > 0
AND transactions.grp_id IN ({groups}) AND transactions.prepared_ms > {after_ms}"""
_ROWLESS_SQL = f"""SELECT transactions.tx FROM transactions
LEFT ANTI JOIN (SELECT tx FROM {SECOND} WHERE source IN ({{sources}})) AS there ON transactions.tx = there.tx
WHERE {_COMMITTED} AND transactions.is_published = 0"""
_ROWLESS_BY_KEY_SQL = f"""SELECT DISTINCT transactions.tx FROM transactions
JOIN prepared ON prepared.tx = transactions.tx AND prepared.source IN ({{sources}})
LEFT ANTI JOIN (SELECT key FROM {SECOND} WHERE source IN ({{sources}})) AS there ON prepared.key = there.key
WHERE {_COMMITTED}"""


@dataclass(frozen=True, slots=True)
class Compared:
    """What was read of which tables. `since_ms`: what was written before was left out, where rows have times.

    `horizons`: by a record table's number, up to when records may have been deleted.
    """

    tables: Sequence[Table]
    since_ms: int
    horizons: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Told:
    """The finding of one row, or of its absence; `name`: what the finding is about."""

    name: str
    found: Found
    events: Sequence[Event]
    topic: str | None


def compare_rows(
    spark: SparkSession, compared: Compared, scope: Scope, before: Sequence[Path], *, is_read_first: bool
) -> list[Finding]:
    """TABLE_MISMATCH: at most one a transaction. `before`: folders of the runs that this one goes on from.

    `is_read_first`: whether the first rows were read before the window's ends were noted.
    """
    _show_views(spark, compared.tables, before)
    told = [one for tables, txs in _find_rowless(spark, compared, scope) for one in _tell_rowless(spark, tables, txs)]
    for rows in _in_batches(spark.sql("SELECT * FROM doubtful").sort("source", "tx", "key", "state")):
        owners = _find_owners(spark, rows)
        events = _fetch(spark, {tx for some in owners.values() for tx in some})
        for row in rows:
            mine = {tx: events[tx] for tx in owners.get(_ties_of(row), []) if tx in events}
            one = _tell_row(compared.tables[row.source], row, mine, scope, is_read_first=is_read_first)
            told += [] if one is None else [one]
    told.sort(key=lambda one: (one.name, one.found.detail))
    return [_join(list(ones), scope) for _, ones in groupby(told, key=lambda one: one.name)]


def _show_views(spark: SparkSession, tables: Sequence[Table], before: Sequence[Path]) -> None:
    """`compared`, `settled`, `all_events`, `prepared`, and what follows from them."""
    spark.sql(_ROWS_SQL).createOrReplaceTempView("compared")
    older = [spark.read.parquet(str(folder / TRANSACTIONS)).select("tx", "is_plain", "last_op") for folder in before]
    ended = [frame.where("is_plain AND last_op IS NOT NULL").selectExpr("tx", _FATE) for frame in older]
    now = spark.sql(f"SELECT tx, {_FATE} FROM transactions WHERE is_plain")
    reduce(DataFrame.unionAll, [now, *ended]).createOrReplaceTempView("settled")
    history = [read_landed(spark, folder / EVENTS) for folder in before]
    reduce(DataFrame.unionAll, [spark.table("events"), *history]).createOrReplaceTempView("all_events")
    keyed = [(number, table.topic) for number, table in enumerate(tables) if table.link is JdbcLink.KEY]
    if keyed:
        spark.createDataFrame(keyed, "source INT, topic STRING").createOrReplaceTempView("keyed")
        spark.sql(_PREPARED_SQL).createOrReplaceTempView("prepared")
    else:
        spark.createDataFrame([], "source INT, tx STRING, key BIGINT").createOrReplaceTempView("prepared")
    for name, text in (("links", _LINKS_SQL), ("agreed", _AGREED_SQL), ("doubtful", _DOUBTFUL_SQL)):
        spark.sql(text).createOrReplaceTempView(name)


def _in_batches(frame: DataFrame) -> Iterator[list[SparkRow]]:
    rows = frame.toLocalIterator()
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _find_owners(spark: SparkSession, rows: Sequence[SparkRow]) -> dict[_Ties, list[str]]:
    """The ids of the transactions that each row may belong to."""
    owners: dict[_Ties, list[str]] = {_ties_of(row): [row.tx] for row in rows if row.tx is not None}
    keyed = [(row.source, row.key) for row in rows if row.tx is None]
    if keyed:
        spark.createDataFrame(keyed, "source INT, key BIGINT").createOrReplaceTempView("doubted")
        for pair in spark.sql(_OWNERS_SQL).sort("tx").collect():
            owners.setdefault((pair.source, None, pair.key), []).append(pair.tx)
    return owners


def _tell_row(
    table: Table, row: SparkRow, events: Mapping[str, Sequence[Event]], scope: Scope, *, is_read_first: bool
) -> _Told | None:
    """What is wrong with a row; `events`: of the transactions that it may belong to."""
    shown = row.shown or (None if row.key is None else f"{row.key:013x}")
    stories = [replay(tx, some) for tx, some in events.items()]
    found = judge_row(table, Row(row.tx, shown, row.state, row.at_ms), stories, scope, is_read_first=is_read_first)
    if found is None:
        return None
    return _Told(
        row.tx or f"{table.title}/{shown}", found, [one for some in events.values() for one in some], table.topic
    )


def _find_rowless(
    spark: SparkSession, compared: Compared, scope: Scope
) -> Iterator[tuple[Sequence[Table], Sequence[str]]]:
    """Tables, and the ids of transactions that seem committed and should have a row in one of them."""
    kin: dict[tuple[str, str, str | None], list[int]] = {}
    for number, table in enumerate(compared.tables):
        kin.setdefault(table.kin, []).append(number)
    for numbers in kin.values():
        tables = [compared.tables[number] for number in numbers]
        groups = sorted({group for table in tables for group in table.groups})
        if groups:
            after_ms = max(_provable_after_ms(compared, number, scope) for number in numbers)
            sql = (_ROWLESS_BY_KEY_SQL if tables[0].link is JdbcLink.KEY else _ROWLESS_SQL).format(
                sources=", ".join(map(str, numbers)),
                groups=", ".join(group_hash(f"'{group}'") for group in groups),
                after_ms=after_ms,
            )
            for rows in _in_batches(spark.sql(sql).sort("tx")):
                yield tables, [row.tx for row in rows]


def _tell_rowless(spark: SparkSession, tables: Sequence[Table], txs: Collection[str]) -> Iterator[_Told]:
    for tx, events in _fetch(spark, txs).items():
        found = judge_rowless(tables, replay(tx, events))
        if found is not None:
            yield _Told(tx, found, events, tables[0].topic)


def _provable_after_ms(compared: Compared, number: int, scope: Scope) -> int:
    """Of what was prepared later, a row that is not there was never there."""
    table = compared.tables[number]
    read_ms = compared.since_ms + MARGIN_MS if compared.since_ms and table.at_ms is not None else 0
    kept_ms = 0 if table.kept_days is None else scope.now_ms - (table.kept_days - 1) * _DAY_MS
    return max(compared.horizons.get(number, 0), read_ms, kept_ms)


def _fetch(spark: SparkSession, wanted: Collection[str]) -> dict[str, list[Event]]:
    """The events of these transactions, of all runs."""
    if not wanted:
        return {}
    rows = select_of(spark, spark.table("all_events"), sorted(wanted))
    return dict(by_transaction(rows.sort(*EVENT_ORDER).toLocalIterator()))


def _ties_of(row: SparkRow) -> _Ties:
    return (row.source, row.tx, row.key)


def _join(told: Sequence[_Told], scope: Scope) -> Finding:
    """One finding of everything about one transaction, or one row without any."""
    legs = dict.fromkeys(leg for one in told for leg in one.found.legs)
    found = Found(FindingKind.TABLE_MISMATCH, "; ".join(one.found.detail for one in told), tuple(legs))
    finding = report(told[0].name, told[0].events, found, scope.now_ms)
    return finding if finding.topic is not None else replace(finding, topic=told[0].topic)
