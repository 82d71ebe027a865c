"""What a window adds up to, in SQL: books by group, control totals, fingerprints, times, ages.

`new_events`: what was read now; `events`: that and what earlier windows left open; `transactions`: its fold.
Whatever is returned is the same for the same input.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pyspark.sql import Row, SparkSession

from spark.columns import Leg, OpState
from spark.scope import Extent, Place
from spark.selecting import join_ids
from spark.window import Window

_STATE = f"""CASE last_op % 8 WHEN {OpState.COMMITTED} THEN 'committed' WHEN {OpState.BLOCKED} THEN 'blocked'
  WHEN {OpState.ROLLED_BACK} THEN 'rolled_back' WHEN {OpState.PARKED} THEN 'parked' ELSE 'open' END"""
_COUNTED = f"SELECT *, {_STATE} AS state FROM transactions WHERE halves > voids"
_PERCENTILES = "ARRAY(0.5, 0.95, 0.99)"
_AGES_S = (60, 600, 3_600, 21_600, 86_400)
BOOK_COLUMNS = ("opening", "prepared", "committed", "blocked", "rolled_back", "parked", "open")


@dataclass(frozen=True, slots=True)
class Names:
    """What hashes of groups and topics stand for."""

    groups: Mapping[int, str]
    topics: Mapping[int, str]


def open_books(spark: SparkSession, window: Window) -> Names:
    """View `booked`: the transactions that are in the window's books."""
    started = _by_queue(window.ranges_of([window.half]))
    told = _by_queue(window.ranges_of([window.op]))
    spark.sql(f"""SELECT *, half_off < {started} AS was_open FROM ({_COUNTED})
WHERE NOT COALESCE(final_off < {told} AND half_off < {started}, FALSE)""").createOrReplaceTempView("booked")
    rows = spark.sql(f"""SELECT DISTINCT grp_id, grp, topic_id, messages[0].topic AS topic
FROM events WHERE leg = {Leg.HALF}""").collect()
    rows.sort(key=lambda row: (row.grp or "", row.topic or ""), reverse=True)
    return Names({row.grp_id: row.grp or "" for row in rows}, {row.topic_id: row.topic for row in rows})


def count_books(spark: SparkSession, names: Names) -> dict[str, dict[str, int]]:
    """By producer group: `opening` + `prepared` = `committed` + `blocked` + `rolled_back` + `parked` + `open`.

    A transaction that ended before the window, and is here for a finding only, is in no book.
    """
    rows = spark.sql("SELECT grp_id, was_open, state, COUNT(*) AS transactions FROM booked GROUP BY ALL").collect()
    named = [(names.groups.get(row.grp_id, ""), row) for row in rows]
    books: dict[str, dict[str, int]] = {}
    for name, row in sorted(named, key=itemgetter(0)):
        book = books.setdefault(name, dict.fromkeys(BOOK_COLUMNS, 0))
        book[row.state] += row.transactions
        book["opening" if row.was_open else "prepared"] += row.transactions
    return books


_IS_SPLIT = "halves > 1 OR topic_id IS NULL"  # between topics, or told more than once: its messages are looked at
_DIFFERENCE = "SUM(shiftright({0}, 26)) AS high, SUM({0} & 67108863) AS low"  # 52 bits in halves, that do not overflow

_WHOLE_SQL = f"""SELECT topic_id, grp_id, was_open, state, SUM(announced) AS prepared,
  SUM(IF(state = 'committed', records, 0)) AS visible, {_DIFFERENCE.format("(body - record_body)")}
FROM booked WHERE NOT ({_IS_SPLIT}) GROUP BY ALL"""

_BODY = "xxhash64(topic, content) & 4503599627370495 AS body"
_SPLIT_SQL = f"""WITH prepared AS (SELECT tx, 1 AS sign, off, part, topic, {_BODY} FROM (
  SELECT tx, off, part, inline(messages) AS (topic, asked, content, ts, its_key)
  FROM split_events WHERE leg = {Leg.HALF})),
visible AS (SELECT tx, -1 AS sign, CAST(NULL AS BIGINT) AS off, CAST(NULL AS INT) AS part, topic, {_BODY}
  FROM split_events WHERE leg = {Leg.VISIBLE}),
messages AS (SELECT * FROM prepared UNION ALL SELECT * FROM visible)
SELECT topic, grp_id, was_open, state, COUNT_IF(sign = 1) AS prepared, COUNT_IF(sign = -1) AS visible,
  {_DIFFERENCE.format("(sign * messages.body)")}
FROM booked JOIN messages ON booked.tx = messages.tx AND (sign = -1 OR (off = half_off AND part = queue))
WHERE sign = 1 OR state = 'committed' GROUP BY ALL"""


def count_topics(spark: SparkSession, names: Names) -> list[dict[str, Any]]:
    """By real topic and group, in messages: the columns of `count_books`, and what is visible of the committed.

    `is_equal`: the committed and the visible are as many, with the same sum of hashes, whatever their order.
    """
    rows = [(names.topics[row.topic_id], row) for row in spark.sql(_WHOLE_SQL).collect()]
    split = spark.sql(f"SELECT tx FROM booked WHERE {_IS_SPLIT}")
    count = split.count()
    if count:
        join_ids(spark.table("events"), split, count).createOrReplaceTempView("split_events")
        rows += [(row.topic, row) for row in spark.sql(_SPLIT_SQL).collect()]
    books: dict[tuple[str, str], dict[str, Any]] = {}
    differences: Counter[tuple[str, str]] = Counter()
    for topic, row in rows:
        name = topic, names.groups.get(row.grp_id, "")
        book = books.setdefault(name, {**dict.fromkeys(BOOK_COLUMNS, 0), "visible": 0})
        book[row.state] += row.prepared
        book["opening" if row.was_open else "prepared"] += row.prepared
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


@dataclass(frozen=True, slots=True)
class Look:
    """What was read, by partition."""

    rows: Mapping[Place, Row]

    def first_times(self, topic: str) -> Mapping[int, int]:
        """Timestamp of the first record of each partition of a topic."""
        return {place.part: row.first_ms for place, row in self.rows.items() if place.topic == topic}

    def is_anything_linked(self) -> bool:
        """False where op messages name records, there are records, and none of them names its transaction."""
        told, visible, foreign = (
            any(row[name] for row in self.rows.values()) for name in ("told", "visible", "foreign")
        )
        return visible or not (told and foreign)

    def count_partitions(self, window: Window) -> list[dict[str, Any]]:
        """By partition: rows + holes = end - start. Holes are markers, aborted and compacted records."""
        return [
            _count_partition(place, extent, self.rows.get(place)) for place, extent in sorted(window.extents.items())
        ]


def look_at(spark: SparkSession) -> Look:
    """One pass over what was read."""
    # a bit for each offset: to count different ones otherwise, every row would have to go through a shuffle
    rows = spark.sql(f"""SELECT topic, part, SUM(n) AS n, SUM(bit_count(bits)) AS places, MIN(first) AS first,
  MAX(last) AS last, MIN(first_ms) AS first_ms, SUM(unreadable) AS unreadable, SUM(foreign) AS foreign,
  SUM(visible) AS visible, SUM(told) AS told
FROM (SELECT topic, part, COUNT(*) AS n, BIT_OR(shiftleft(1L, CAST(off % 64 AS INT))) AS bits, MIN(off) AS first,
  MAX(off) AS last, MIN(ms) AS first_ms, COUNT_IF(leg = {Leg.UNREADABLE}) AS unreadable,
  COUNT_IF(leg = {Leg.FOREIGN}) AS foreign, COUNT_IF(leg = {Leg.VISIBLE}) AS visible,
  COUNT_IF(leg = {Leg.OP} AND n > 0) AS told
  FROM new_events GROUP BY topic, part, off DIV 64) GROUP BY topic, part""").collect()
    return Look({Place(row.topic, row.part): row for row in sorted(rows)})


def _count_partition(place: Place, extent: Extent, row: Row | None) -> dict[str, Any]:
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


def compare_fingerprints(spark: SparkSession) -> dict[str, Any]:
    """Everything committed against everything visible of it, whatever their order: numbers and sums of hashes."""
    row = spark.sql(f"""SELECT COUNT(*) AS transactions, COALESCE(SUM(announced), 0) AS prepared,
  COALESCE(SUM(records), 0) AS visible,
  CAST(COALESCE(SUM(CAST(body AS DECIMAL(20, 0))), 0) AS STRING) AS prepared_sum,
  CAST(COALESCE(SUM(CAST(record_body AS DECIMAL(20, 0))), 0) AS STRING) AS visible_sum
FROM ({_COUNTED}) WHERE state = 'committed' AND halves = 1""").first()
    assert row is not None
    members: dict[str, Any] = row.asDict()
    return {**members, "is_equal": (row.prepared, row.prepared_sum) == (row.visible, row.visible_sum)}


def measure_times(spark: SparkSession) -> dict[str, Any]:
    """Prepared -> ended -> visible in milliseconds: percentiles, and counts in buckets that double."""
    spans = {
        "prepared_to_ended": "ended_ms - prepared_ms",
        "ended_to_visible": "settled_ms - ended_ms",
        "prepared_to_visible": "settled_ms - prepared_ms",
    }
    where = "state IN ('committed', 'rolled_back') AND ended_ms IS NOT NULL AND is_published = 0"
    asked = ", ".join(f"percentile({value}, {_PERCENTILES}) AS {name}" for name, value in spans.items())
    row = spark.sql(f"SELECT {asked} FROM ({_COUNTED}) WHERE {where}").first()
    assert row is not None
    percentiles = {
        name: None if row[name] is None else dict(zip(("p50", "p95", "p99"), map(round, row[name]), strict=True))
        for name in spans
    }
    buckets = spark.sql(f"""SELECT CAST(FLOOR(LOG2(GREATEST({spans["prepared_to_visible"]}, 0) + 1)) AS INT) AS power,
  COUNT(*) AS transactions FROM ({_COUNTED}) WHERE {where} GROUP BY power""").collect()
    counted = sorted((row.power, row.transactions) for row in buckets)
    return {**percentiles, "buckets": [[2**power - 1, count] for power, count in counted]}


def count_checks(spark: SparkSession) -> list[list[int]]:
    """[answered checks, transactions], for those that were asked about."""
    rows = spark.sql(f"""SELECT checks, COUNT(*) AS transactions FROM ({_COUNTED}) WHERE checks > 0 GROUP BY checks""")
    return sorted([row.checks, row.transactions] for row in rows.collect())


def count_ages(spark: SparkSession, now_ms: int) -> list[list[int | None]]:
    """[seconds, open transactions younger than that and older than the one before]; the last has no bound."""
    age = f"({now_ms} - prepared_ms) / 1000"
    bucket = " ".join(f"WHEN {age} < {seconds} THEN {seconds}" for seconds in _AGES_S)
    rows = spark.sql(f"""SELECT CASE {bucket} END AS younger, COUNT(*) AS transactions
FROM ({_COUNTED}) WHERE state = 'open' GROUP BY younger""").collect()
    found = {row.younger: row.transactions for row in rows}
    return [[seconds, found.get(seconds, 0)] for seconds in (*_AGES_S, None)]


def _by_queue(extents: Mapping[Place, Extent]) -> str:
    """The start of what was read of each queue, as an expression."""
    whens = " ".join(f"WHEN {place.part} THEN {extent.start}" for place, extent in extents.items())
    return f"CASE queue {whens} ELSE 0 END"
