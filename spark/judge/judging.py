"""From the fold's rows to findings, and producers' tables against transactions.

What no receipt names is nobody's: a duplicate or a phantom looks like another producer's record.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql.functions import broadcast

from spark.errors import Indeterminate
from spark.judge.findings import CLEARED, Finding, propose_repair, report, report_unreadable
from spark.judge.fold import (
    ASIDE_SQL,
    CHAINED_SQL,
    KEPT_SQL,
    MISPLACED_SQL,
    OVERTAKING_SQL,
    SCATTERED_SQL,
    SEVERAL_SQL,
    SHARED_SQL,
    exchanged_sql,
)
from spark.judge.history import published, replay
from spark.judge.row_rules import Row, judge_row, judge_rowless
from spark.judge.rules import FindingKind, Found, judge
from spark.read.envelope import (
    EVENT_TYPES,
    UNREADABLE_SQL,
    Event,
    Evidence,
    OpState,
    PreparedMessage,
    ReceiptRow,
    Scope,
    group_hash,
    paired_sql,
    shuffled_sql,
)
from spark.read.events import EVENTS, TRANSACTIONS, events_of, join_ids, make_ids, select_of, small
from spark.read.sources import read_landed
from spark.read.table_list import BARRED, JdbcLink, Table
from spark.read.window import Window

# --- from the fold's rows to findings: what is not plainly right is replayed event by event ---

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
    told = _without_deleted(spark.sql(_NEW_SQL), window)
    _check_hashed(told, spark.table("new_events"))
    linked = [_take(told, spark.table("new_events"))]
    starts = [(*place, extent.start) for place, extent in window.ranges_of(window.real).items()]
    if before and starts:
        begun = spark.createDataFrame(starts, "topic STRING, part INT, start BIGINT")
        early = told.join(begun, ["topic", "part"]).where("off < start").drop("start")
        if not early.isEmpty():
            free = reduce(_without_given, [read_landed(spark, path) for path in _linked_before(before)], early)
            for earlier in before:
                events = read_landed(spark, earlier / EVENTS)
                _check_hashed(free, events)
                linked.append(_take(free, events))
    reduce(DataFrame.unionAll, linked).write.parquet(str(folder / _LINKED))
    found = read_landed(spark, folder / _LINKED)
    places = found.select(*_PLACE, "leg").distinct().withColumnRenamed("leg", "found")
    known = spark.table("new_events").join(places, _PLACE, "left")
    legs = {name: "COALESCE(found, leg) AS leg" if name == "leg" else name for name in EVENT_TYPES}
    known.selectExpr(*legs.values()).createOrReplaceTempView("new_events")
    spark.table("events").unionAll(found).createOrReplaceTempView("events")


def _without_deleted(told: DataFrame, window: Window) -> DataFrame:
    """Without the places of topics that were deleted: in those of the same name others lie there."""
    anew = [(*place, extent.anew_ms) for place, extent in window.extents.items() if extent.anew_ms]
    if not anew:
        return told
    made = told.sparkSession.createDataFrame(anew, "topic STRING, part INT, anew_ms BIGINT")
    known = told.join(broadcast(made), ["topic", "part"], "left").where("told_ms > COALESCE(anew_ms, 0)")
    return known.select(told.columns)


def _linked_before(before: Sequence[Path]) -> list[Path]:
    return [earlier / _LINKED for earlier in before if (earlier / _LINKED).exists()]


def _without_given(told: DataFrame, given: DataFrame) -> DataFrame:
    """Records whose place no earlier run has found to be another transaction's."""
    taken = given.selectExpr("tx AS owner", *_PLACE)
    is_anothers = [told[name] == taken[name] for name in _PLACE] + [told["tx"] != taken["owner"]]
    return told.join(taken, is_anothers, "left_anti")


def _check_hashed(told: DataFrame, events: DataFrame) -> None:
    """Raises Indeterminate where a record that is named was read without its hash: it would seem to be missing."""
    unknown = events.where(f"leg = {Evidence.FOREIGN} AND content IS NULL").join(told, _PLACE, "left_semi").first()
    if unknown is not None:
        raise Indeterminate(
            f"{unknown.topic}-{unknown.part}@{unknown.off} was read without --by-receipts: no hash of it was kept",
            "Land, or run, anew with it, in a new folder.",
        )


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
        exchanged = spark.sql(exchanged_sql(paired_sql(), shuffled_sql())).selectExpr(
            "tx", "TRUE AS is_suspect", "FALSE AS is_open"
        )
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


def find_misplaced(spark: SparkSession, scope: Scope, last: Window | None, before: Sequence[Finding]) -> list[Finding]:
    """WRONG_PLACE: records in another partition than that of their key, where none was asked for.

    `last`: the window of the last run; `before`: what was found then.
    """
    earlier = Counter(place.topic for place in ({} if last is None else last.extents))
    taken_ms = 0 if last is None else last.taken_ms
    parts = Counter(place.topic for place in scope.extents)
    counted = [
        {"topic": topic, "parts": count, "earlier": earlier[topic] or 1, "taken_ms": taken_ms}
        for topic, count in parts.items()
    ]
    # a list of rows has no size that Spark knows: all records would go through a shuffle
    broadcast(spark.createDataFrame(pa.Table.from_pylist(counted))).createOrReplaceTempView("counted")
    aside = spark.sql(ASIDE_SQL).persist()
    count = aside.count()
    if not count:
        return []
    small(aside, count).createOrReplaceTempView("aside")
    known = [one.transaction_id for one in before if one.kind == FindingKind.WRONG_PLACE and one.state != CLEARED]
    make_ids(spark, known).createOrReplaceTempView("told_before")
    rows = {(row.tx, row.topic, row.part, row.off): row for row in spark.sql(MISPLACED_SQL).collect()}
    findings: dict[str, Finding] = {}
    told = events_of(spark, sorted({row.tx for row in rows.values()})).sort(*EVENT_ORDER) if rows else None
    for tx, events in by_transaction(() if told is None else told.toLocalIterator()):
        for half, record in published(replay(tx, events)):
            row = rows.get((tx, record.topic, record.part, record.off))
            if row is not None:
                detail = f"its key belongs to partition {row.own_part} of {row.parts}"
                found = Found(FindingKind.WRONG_PLACE, detail, (half, record))
                findings.setdefault(tx, report(tx, events, found, scope.now_ms))
    return [*findings.values()]


def by_transaction(rows: Iterable[SparkRow]) -> Iterator[tuple[str, list[Event]]]:
    """The events of each transaction; the rows are in the order of their ids."""
    for tx, events in groupby((_make_event(row) for row in rows), key=attrgetter("tx")):
        yield tx, list(events)


def _make_event(row: SparkRow) -> Event:
    event = Event(*row)
    messages, receipts = row.messages, row.receipts
    return event._replace(
        messages=None if messages is None else tuple(PreparedMessage(*message) for message in messages),
        receipts=None if receipts is None else tuple(ReceiptRow(*receipt) for receipt in receipts),
    )


# --- rows against transactions ---
# Views: `first_rows`, `second_rows` (`tables.ROW_SCHEMA`), and those of a run, `events` and `transactions`.

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
