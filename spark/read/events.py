"""Events on disk: this run's, those earlier runs left open, and late ones of what seemed closed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import broadcast, col

from spark.read.envelope import EVENT_TYPES, UNREADABLE_SQL, Evidence, QueuePlace, born_ms
from spark.read.sources import KafkaAccess, land_kafka, note_files, read_landed, within
from spark.read.window import WINDOW_FILE, Window, read_window

_FEW = 2_000  # ids that a Parquet reader looks up in each file's Bloom filters
_MANY = 200_000  # ids that are not sent to every worker any more


def events_of(spark: SparkSession, transaction_ids: Sequence[str]) -> DataFrame:
    """Every known event of these transactions."""
    return select_of(spark, spark.table("events"), transaction_ids)


def select_of(spark: SparkSession, events: DataFrame, transaction_ids: Sequence[str]) -> DataFrame:
    """The events of these transactions. Few ids are looked up by the reader of the files."""
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


EVENTS, CARRY, TRANSACTIONS = "events", "carry", "transactions"
_SLACK_MS = 3_600_000  # by which clocks of api and brokers may differ; it costs a look into more folders
# an id is looked up without reading the files it is not in; what hardly repeats has no use for a dictionary
_UNLIKE = ("tx", "off", "content", "body", "place", "cause", "half", "okey")
_WRITING = {
    "parquet.bloom.filter.enabled#tx": "true",
    # as large as the ids of the file ask for, else 1 MiB each: of 14 sizes, which halve from there, the smallest that
    # is enough
    "parquet.bloom.filter.adaptive.enabled": "true",
    "parquet.bloom.filter.candidates.number#tx": "14",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _UNLIKE},
}

# New here, but prepared before: their earlier events are in the history, if anywhere.
_STRANGERS_SQL = "SELECT tx FROM transactions WHERE half_off IS NULL AND tx NOT IN (SELECT tx FROM carried)"

# Their half message was repeated: what is in the op topic began with an earlier one, at `half`. `was_open`: the last
# run has read the repeat, and nothing else of them.
_REPEATED_SQL = f"""SELECT tx, queue, op_half AS half, tx IN (SELECT tx FROM carried GROUP BY tx
  HAVING COUNT_IF(leg = {Evidence.HALF} AND NOT is_void) > 0 AND COUNT_IF(leg = {Evidence.OP}) = 0) AS was_open
FROM transactions WHERE op_half < half_off"""

# Published now, decided before: somebody of their ordering key, decided later, may have overtaken them meanwhile.
_CHAINED_SQL = f"""SELECT queue, okey, end_off FROM transactions
JOIN (SELECT tx, COUNT_IF(leg = {Evidence.VISIBLE}) AS seen FROM carried GROUP BY tx) AS before
ON transactions.tx = before.tx
WHERE okey IS NOT NULL AND end_off IS NOT NULL AND records > seen"""
_OVERTAKERS_SQL = """SELECT DISTINCT closed.tx FROM closed JOIN chained
ON closed.queue = chained.queue AND closed.okey = chained.okey AND closed.end_off > chained.end_off
WHERE closed.records > 0 AND closed.tx NOT IN (SELECT tx FROM carried)"""


@dataclass(frozen=True, slots=True)
class IngestedEvents:
    """The folder of this run, `taken_ms` of its window, and the folders of the runs before it, oldest first."""

    folder: Path
    before: Sequence[Path]
    taken_ms: int


def land(
    spark: SparkSession, window: Window, landed: IngestedEvents, kafka: KafkaAccess, instead: Sequence[Path] = ()
) -> None:
    """Reads Kafka once, or `instead` the window's part of what was landed in these folders.

    Views: `new_events`, `carried` from before, and `events`: both.
    """
    path = landed.folder / EVENTS
    if instead:
        events = within(read_landed(spark, *(unit / EVENTS for unit in instead)), window)
        events.write.options(**_WRITING).parquet(str(path))
        note_files(path)
    else:
        land_kafka(spark, window, kafka, path)
    new = read_landed(spark, path)
    new.createOrReplaceTempView("new_events")
    if not landed.before:
        new.createOrReplaceTempView("events")
        return
    carried = read_landed(spark, landed.before[-1] / CARRY)
    carried.createOrReplaceTempView("carried")
    new.unionAll(carried).createOrReplaceTempView("events")


@dataclass(frozen=True, slots=True)
class Late:
    """Transactions of earlier runs that seemed closed, and matter again; those that the last run took for open ones."""

    ids: Sequence[str] = ()
    was_open: Sequence[str] = ()


def find_late(spark: SparkSession, landed: IngestedEvents) -> Late:
    """The events of this window. Their events are in `events` from now on.

    The history is looked through only if there is such a one, and only as far back as it may be.
    """
    if not landed.before:
        return Late()
    strangers = [row.tx for row in spark.sql(_STRANGERS_SQL).collect()]
    anew = {*strangers, *_find_overtakers(spark, landed)}
    repeated = _find_repeated(spark, landed)
    # both are the last ones: the longer holds the other
    folders = max(_folders_since_birth(landed, anew), _folders_since_half(landed, repeated), key=len)
    if not folders:
        return Late()
    wanted = sorted(anew.union(row.tx for row in repeated))
    known = select_of(spark, read_landed(spark, *(folder / EVENTS for folder in folders)), wanted)
    late = known.join(spark.table("carried"), ["topic", "part", "off"], "left_anti").select(*EVENT_TYPES).persist()
    spark.table("events").unionAll(late).createOrReplaceTempView("events")
    return Late(
        [row.tx for row in late.select("tx").distinct().collect()], [row.tx for row in repeated if row.was_open]
    )


def fold_events(spark: SparkSession, landed: IngestedEvents, make_sql: Callable[[str], str]) -> Late:
    """View `transactions`: a row a transaction, computed once; those that `find_late` found, too, are folded again.

    `make_sql`: the fold of a view of events.
    """
    folded = spark.sql(make_sql("events")).persist()
    folded.createOrReplaceTempView("transactions")
    late = find_late(spark, landed)
    if late.ids:
        events_of(spark, late.ids).createOrReplaceTempView("late_events")
        others = folded.join(broadcast(make_ids(spark, late.ids)), "tx", "left_anti")
        others.unionAll(spark.sql(make_sql("late_events"))).persist().createOrReplaceTempView("transactions")
    return late


def write_carry(spark: SparkSession, folder: Path, window: Window, others: Sequence[str]) -> None:
    """What the next run needs: whatever is open, and `others`, which have findings or are part of some."""
    others = sorted({*others, *(row.tx for row in spark.sql(_ahead_sql(window)).collect())})
    known = {row.tx for row in spark.sql("SELECT DISTINCT tx FROM kept").collect()}
    kept, columns = spark.table("kept"), list(EVENT_TYPES)
    parts = [kept.where("is_open"), select_of(spark, kept.where("NOT is_open"), [tx for tx in others if tx in known])]
    plain = [tx for tx in others if tx not in known]
    if plain:
        parts.append(events_of(spark, plain))
    parts.append(spark.sql(f"SELECT * FROM events {UNREADABLE_SQL}"))
    carried = reduce(DataFrame.unionAll, [part.select(*columns) for part in parts])
    carried.coalesce(2).write.parquet(str(folder / CARRY))
    note_files(folder / CARRY)


def _ahead_sql(window: Window) -> str:
    """What was decided behind the journal's end of this window: its half message or its end is still to be read; or a
    repeat, after which the op message, which names the first half message, was written again."""
    journal, op = window.ranges_of([window.half]), window.ranges_of([window.op])
    ends = " ".join(f"WHEN {place.part} THEN {extent.end}" for place, extent in journal.items())
    seen = " ".join(f"WHEN {place.part} THEN {extent.seen}" for place, extent in op.items())
    is_ahead = f"GREATEST(half, cause) >= CASE part {ends} END OR off >= CASE part {seen} END"
    return f"SELECT DISTINCT tx FROM events WHERE leg = {Evidence.OP} AND ({is_ahead})"


def _find_repeated(spark: SparkSession, landed: IngestedEvents) -> list[Row]:
    """Transactions whose first half message an earlier run has read."""
    first = read_window(landed.before[0] / WINDOW_FILE)

    def was_read(row: Row) -> bool:
        extent = first.extents.get(QueuePlace(first.half, row.queue))
        return extent is None or row.half >= extent.start

    return [row for row in spark.sql(_REPEATED_SQL).collect() if was_read(row)]


def _folders_since_birth(landed: IngestedEvents, transaction_ids: Collection[str]) -> list[Path]:
    """The runs that may have read something of these."""
    if not transaction_ids:
        return []
    # a time to come is none: most digests that look like an id with a time have one
    latest_ms = landed.taken_ms + _SLACK_MS
    born = [ms if (ms := born_ms(tx)) is not None and ms <= latest_ms else 0 for tx in transaction_ids]
    first_ms = min(born) - _SLACK_MS
    return _last_of(landed.before, lambda window: window.taken_ms >= first_ms)


def _folders_since_half(landed: IngestedEvents, repeated: Collection[Row]) -> list[Path]:
    """The runs that have read the half messages of these, and all later ones."""
    halves = [(row.queue, row.half) for row in repeated]
    return _last_of(landed.before, lambda window: _reads_beyond(window, halves))


def _reads_beyond(window: Window, places: Iterable[tuple[int, int]]) -> bool:
    """Whether the journal was read further than to one of these queues' offsets."""
    extents = ((window.extents.get(QueuePlace(window.half, queue)), offset) for queue, offset in places)
    return any(extent is not None and extent.end > offset for extent, offset in extents)


def _find_overtakers(spark: SparkSession, landed: IngestedEvents) -> list[str]:
    chained = spark.sql(_CHAINED_SQL).collect()
    if not chained:
        return []
    decided: dict[int, int] = {}
    for row in chained:
        decided[row.queue] = min(row.end_off, decided.get(row.queue, row.end_off))
    folders = _last_of(landed.before, lambda window: _reads_beyond(window, decided.items()))
    if not folders:
        return []
    columns = "tx STRING, queue INT, okey BIGINT, end_off BIGINT, records BIGINT"
    closed = spark.read.schema(columns).parquet(*(str(folder / TRANSACTIONS) for folder in folders))
    closed.createOrReplaceTempView("closed")
    spark.createDataFrame(pa.Table.from_pylist([row.asDict() for row in chained])).createOrReplaceTempView("chained")
    return [row.tx for row in spark.sql(_OVERTAKERS_SQL).collect()]


def _last_of(folders: Sequence[Path], is_wanted: Callable[[Window], bool]) -> list[Path]:
    """The newest runs, back to the first whose window is not wanted."""
    found: list[Path] = []
    for folder in reversed(folders):
        if not is_wanted(read_window(folder / WINDOW_FILE)):
            break
        found.append(folder)
    return found
