"""What a window adds up to, in SQL: books by group, control totals, fingerprints, times, ages.

`new_events`: what was read now; `events`: that and what earlier windows left open; `transactions`: its fold.
The same input gives the same result.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pyspark.sql import Row, SparkSession

from spark.judge.fold import OWN_QUEUE
from spark.read.envelope import Evidence, OffsetRange, OpState, QueuePlace, body_hash
from spark.read.events import join_ids
from spark.read.sources import within
from spark.read.window import Window

# op messages after the first final one change nothing: else its window would leave open what no later one has
_STATE = f"""CASE COALESCE(final_op, last_op) % 8 WHEN {OpState.COMMITTED} THEN 'committed'
  WHEN {OpState.ROLLED_BACK} THEN 'rolled_back' WHEN {OpState.BLOCKED} THEN 'blocked'
  WHEN {OpState.ABANDONED} THEN 'abandoned' WHEN {OpState.PARKED} THEN 'parked' ELSE 'open' END"""
_COUNTED = f"SELECT *, {_STATE} AS state FROM transactions WHERE halves > voids"
_PERCENTILES = "ARRAY(0.5, 0.95, 0.99)"
_AGES_S = (60, 600, 3_600, 21_600, 86_400)
_OLDER = 0  # than the last of them
BOOK_COLUMNS = ("opening", "prepared", "committed", "blocked", "abandoned", "rolled_back", "parked", "open")


_IS_SPLIT = "halves > 1 OR topic_id IS NULL"  # between topics, or reported more than once: its messages are looked at
_DIFFERENCE = "SUM(shiftright({0}, 26)) AS high, SUM({0} & 67108863) AS low"  # 52 bits in halves, that do not overflow

_BOOKED_SQL = f"""SELECT grp_id, topic_id, was_open, state, {_IS_SPLIT} AS is_split, COUNT(*) AS transactions,
  SUM(announced) AS prepared, SUM(IF(state = 'committed', records, 0)) AS visible,
  {_DIFFERENCE.format("(body - record_body)")}
FROM booked GROUP BY ALL"""

_SPLIT_SQL = f"""WITH messages AS (
  SELECT tx, IF(leg = {Evidence.HALF}, 1, -1) AS sign, off, part, topic, {body_hash("topic", "content")} AS body
  FROM (SELECT tx, leg, off, part, inline(IF(leg = {Evidence.HALF}, arrays_zip(messages.topic, messages.content),
      array(struct(topic, content)))) AS (topic, content)
    FROM split_events WHERE leg IN ({Evidence.HALF}, {Evidence.VISIBLE})))
SELECT topic, grp_id, was_open, state, COUNT_IF(sign = 1) AS prepared, COUNT_IF(sign = -1) AS visible,
  {_DIFFERENCE.format("(sign * messages.body)")}
FROM booked JOIN messages ON booked.tx = messages.tx AND (sign = -1 OR (off = half_off AND part = queue))
WHERE sign = 1 OR state = 'committed' GROUP BY ALL"""


@dataclass(frozen=True, slots=True)
class Totals:
    """The transactions that are in the window's books, and the names of their groups and topics.

    `rows`: by group, topic, state, whether they were open before, and whether they are split.
    """

    spark: SparkSession
    rows: Sequence[Row]
    groups: Mapping[int, str]
    topics: Mapping[int, str]

    def count_groups(self) -> dict[str, dict[str, int]]:
        """By producer group: `opening` + `prepared` = the sum of all other columns, each transaction in one of them.

        A transaction that ended before the window, and is here for a finding only, is in no book.
        """
        books: dict[str, dict[str, int]] = {}
        for name, row in sorted(((self._group_of(row), row) for row in self.rows), key=itemgetter(0)):
            _add(books.setdefault(name, dict.fromkeys(BOOK_COLUMNS, 0)), row, row.transactions)
        return books

    def count_topics(self) -> list[dict[str, Any]]:
        """By real topic and group, in messages: the columns of `count_groups`, and what is visible of the committed.

        `is_equal`: the committed and the visible are as many, with the same sum of hashes, whatever their order.
        """
        rows = [(self.topics[row.topic_id], row) for row in self.rows if not row.is_split]
        count = sum(row.transactions for row in self.rows if row.is_split)
        if count:
            split = self.spark.sql(f"SELECT tx FROM booked WHERE {_IS_SPLIT}")
            join_ids(self.spark.table("events"), split, count).createOrReplaceTempView("split_events")
            rows += [(row.topic, row) for row in self.spark.sql(_SPLIT_SQL).collect()]
        books: dict[tuple[str, str], dict[str, Any]] = {}
        differences: Counter[tuple[str, str]] = Counter()
        for topic, row in rows:
            name = topic, self._group_of(row)
            book = books.setdefault(name, {**dict.fromkeys(BOOK_COLUMNS, 0), "visible": 0})
            _add(book, row, row.prepared)
            book["visible"] += row.visible
            if row.state == "committed":
                differences[name] += (row.high << 26) + row.low
        return [
            {
                "topic": topic,
                "group": group,
                **book,
                "is_equal": book["committed"] == book["visible"] and not differences[topic, group],
            }
            for (topic, group), book in sorted(books.items())
        ]

    def _group_of(self, row: Row) -> str:
        return self.groups.get(row.grp_id, "")


def _add(book: dict[str, Any], row: Row, number: int) -> None:
    book[row.state] += number
    book["opening" if row.was_open else "prepared"] += number


def open_books(spark: SparkSession, window: Window, was_open: Sequence[str] = ()) -> Totals:
    """One pass over the transactions, view `booked`: those of them that are in the books; one over the names.

    `was_open`: ended long ago, but in the books of the last window, for a repeated half message.
    """
    spark.sql(booked_sql(window, was_open)).createOrReplaceTempView("booked")
    named = spark.sql(f"""SELECT DISTINCT grp_id, grp, topic_id, messages.topic[0] AS topic
FROM events WHERE leg = {Evidence.HALF}""").collect()
    named.sort(key=lambda row: (row.grp or "", row.topic or ""), reverse=True)
    return Totals(
        spark,
        spark.sql(_BOOKED_SQL).collect(),
        {row.grp_id: row.grp or "" for row in named},
        {row.topic_id: row.topic for row in named},
    )


def booked_sql(window: Window, was_open: Sequence[str] = ()) -> str:
    """Of `transactions`, the fold's rows: those in the window's books, and whether they were open before."""
    started = _by_queue("queue", window.ranges_of([window.half]))
    told = _by_queue(OWN_QUEUE, window.ranges_of([window.op]))
    still = f" OR tx IN ({', '.join(map(repr, was_open))})" if was_open else ""
    return f"""SELECT *, half_off < {started} AS was_open FROM ({_COUNTED}) AS counted
WHERE NOT COALESCE(final_op < {told} * 8 AND half_off < {started}, FALSE){still}"""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """What was read, by partition."""

    rows: Mapping[QueuePlace, Row]

    def times(self) -> Mapping[QueuePlace, tuple[int, int]]:
        """The earliest timestamp in each partition, and that of its last record."""
        return {place: (row.first_ms, row.last_ms) for place, row in self.rows.items()}

    def starts(self) -> Mapping[int, tuple[int, int]]:
        """Where journal and op topic of a queue begin, by its positions, after a log was given up."""
        return {
            place.part: (row.journal_start, row.op_start)
            for place, row in self.rows.items()
            if row.op_start is not None
        }

    def count_partitions(self, window: Window) -> list[dict[str, Any]]:
        """By partition: rows + holes = end - start. Holes are markers, aborted and compacted records."""
        return [
            _count_partition(place, extent, self.rows.get(place)) for place, extent in sorted(window.extents.items())
        ]


def is_header_missing(spark: SparkSession, look: PartitionStats, window: Window) -> bool:
    """Whether op messages name records among those that were read now, and none of these names its transaction.

    Of what compaction, or whoever made the topic anew, may have removed nothing is known.
    """
    told, visible, foreign = (any(row[name] for row in look.rows.values()) for name in ("told", "visible", "foreign"))
    if visible or not (told and foreign):
        return False
    named = spark.sql(f"SELECT inline(receipts) AS (topic, part, off) FROM new_events WHERE leg = {Evidence.OP}")
    kept = {place: extent for place, extent in window.extents.items() if not (extent.is_compacted or extent.anew_ms)}
    return not within(named, replace(window, extents=kept)).isEmpty()


def look_at(spark: SparkSession) -> PartitionStats:
    """One pass over what was read."""
    # a bit for each offset: to count different ones otherwise, every row would have to go through a shuffle
    rows = spark.sql(f"""SELECT topic, part, SUM(n) AS n, SUM(bit_count(bits)) AS places, MIN(first) AS first,
  MAX(last) AS last, MIN(first_ms) AS first_ms, MAX_BY(last_ms, last) AS last_ms,
  SUM(unreadable) AS unreadable, SUM(foreign) AS foreign,
  SUM(visible) AS visible, SUM(told) AS told, MAX(journal_start) AS journal_start, MAX(op_start) AS op_start
FROM (SELECT topic, part, COUNT(*) AS n, BIT_OR(shiftleft(1L, CAST(off % 64 AS INT))) AS bits, MIN(off) AS first,
  MAX(off) AS last, MIN(ms) AS first_ms, MAX_BY(ms, off) AS last_ms,
  COUNT_IF(leg = {Evidence.UNREADABLE}) AS unreadable,
  COUNT_IF(leg = {Evidence.FOREIGN}) AS foreign, COUNT_IF(leg = {Evidence.VISIBLE}) AS visible,
  COUNT_IF(leg = {Evidence.OP} AND n > 0) AS told,
  MAX(IF(leg = {Evidence.POSITION}, half, NULL)) AS journal_start,
  MAX(IF(leg = {Evidence.POSITION}, parked, NULL)) AS op_start
  FROM new_events GROUP BY topic, part, off DIV 64) GROUP BY topic, part""").collect()
    return PartitionStats({QueuePlace(row.topic, row.part): row for row in sorted(rows)})


def _count_partition(place: QueuePlace, extent: OffsetRange, row: Row | None) -> dict[str, Any]:
    count = 0 if row is None else row.n
    return {
        "topic": place.topic,
        "partition": place.part,
        "start": extent.start,
        "end": extent.end,
        "rows": count,
        "holes": extent.end - extent.start - count,
        "unreadable": 0 if row is None else row.unreadable,
        "foreign": 0 if row is None else row.foreign,
        "is_right": row is None or (row.places == count and extent.start <= row.first and row.last < extent.end),
    }


_SPANS = {
    "prepared_to_ended": "ended_ms - prepared_ms",
    "ended_to_visible": "settled_ms - ended_ms",
    "prepared_to_visible": "settled_ms - prepared_ms",
}
_IS_TIMED = "state IN ('committed', 'rolled_back') AND ended_ms IS NOT NULL AND is_published = 0"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """All replayed transactions, by state, answered checks, age and time until they were visible."""

    rows: Sequence[Row]

    def compare_fingerprints(self) -> dict[str, Any]:
        """Everything committed against everything visible of it, whatever their order: numbers and sums of hashes."""
        rows = [row for row in self.rows if row.state == "committed" and row.is_single]
        prepared, prepared_sum, visible, visible_sum = (
            sum(int(row[name]) for row in rows) for name in ("prepared", "prepared_sum", "visible", "visible_sum")
        )
        return {
            "transactions": sum(row.transactions for row in rows),
            "prepared": prepared,
            "visible": visible,
            "prepared_sum": str(prepared_sum),
            "visible_sum": str(visible_sum),
            "is_equal": (prepared, prepared_sum) == (visible, visible_sum),
        }

    def count_buckets(self) -> list[list[int]]:
        """[milliseconds from prepared to visible, transactions] in buckets that double; each is its lower bound."""
        return [[2**power - 1, count] for power, count in self._count("power")]

    def count_checks(self) -> list[list[int]]:
        """[answered checks, transactions], for those that were asked about."""
        return [[checks, count] for checks, count in self._count("checks") if checks]

    def count_ages(self) -> list[list[int | None]]:
        """[seconds, open transactions younger than that and older than the one before]; the last has no bound."""
        found = dict(self._count("younger"))
        return [[seconds or None, found.get(seconds, 0)] for seconds in (*_AGES_S, _OLDER)]

    def _count(self, name: str) -> list[tuple[int, int]]:
        counts: Counter[int] = Counter()
        for row in self.rows:
            if row[name] is not None:
                counts[row[name]] += row.transactions
        return sorted(counts.items())


def tally(spark: SparkSession, now_ms: int) -> Aggregate:
    """One pass over the transactions."""
    age = f"({now_ms} - prepared_ms) / 1000"
    younger = " ".join(f"WHEN {age} < {seconds} THEN {seconds}" for seconds in _AGES_S)
    power = f"CAST(FLOOR(LOG2(GREATEST({_SPANS['prepared_to_visible']}, 0) + 1)) AS INT)"
    rows = spark.sql(f"""SELECT state, checks, halves = 1 AS is_single, IF({_IS_TIMED}, {power}, NULL) AS power,
  IF(state = 'open', CASE {younger} ELSE {_OLDER} END, NULL) AS younger, COUNT(*) AS transactions,
  SUM(announced) AS prepared, SUM(records) AS visible, SUM(CAST(body AS DECIMAL(20, 0))) AS prepared_sum,
  SUM(CAST(record_body AS DECIMAL(20, 0))) AS visible_sum
FROM ({_COUNTED}) GROUP BY ALL""").collect()
    return Aggregate(rows)


def measure_times(spark: SparkSession) -> dict[str, dict[str, int] | None]:
    """Prepared -> ended -> visible in milliseconds: percentiles."""
    asked = ", ".join(f"percentile({value}, {_PERCENTILES}) AS {name}" for name, value in _SPANS.items())
    row = spark.sql(f"SELECT {asked} FROM ({_COUNTED}) WHERE {_IS_TIMED}").first()
    assert row is not None
    return {
        name: None if row[name] is None else dict(zip(("p50", "p95", "p99"), map(round, row[name]), strict=True))
        for name in _SPANS
    }


def _by_queue(queue: str, extents: Mapping[QueuePlace, OffsetRange]) -> str:
    """The start of what was read of each queue, as an expression; `queue`: one too."""
    whens = " ".join(f"WHEN {place.part} THEN {extent.start}" for place, extent in extents.items())
    return f"CASE {queue} {whens} ELSE 0 END"
