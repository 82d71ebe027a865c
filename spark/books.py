"""What a window adds up to, in SQL: books by group, control totals, fingerprints, times, ages.

`new_events`: what was read now; `events`: that and what earlier windows left open; `transactions`: its fold.
Whatever is returned is the same for the same input.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from spark.columns import Leg, OpState
from spark.scope import Extent, Place
from spark.window import Window

_STATE = f"""CASE last_op % 8 WHEN {OpState.COMMITTED} THEN 'committed' WHEN {OpState.BLOCKED} THEN 'blocked'
  WHEN {OpState.ROLLED_BACK} THEN 'rolled_back' WHEN {OpState.PARKED} THEN 'parked' ELSE 'open' END"""
_COUNTED = f"SELECT *, {_STATE} AS state FROM transactions WHERE halves > voids"
_PERCENTILES = "ARRAY(0.5, 0.95, 0.99)"
_AGES_S = (60, 600, 3_600, 21_600, 86_400)
BOOK_COLUMNS = ("opening", "prepared", "committed", "blocked", "rolled_back", "parked", "open")


def count_books(spark: SparkSession, window: Window) -> dict[str, dict[str, int]]:
    """By producer group: `opening` + `prepared` = `committed` + `blocked` + `rolled_back` + `parked` + `open`.

    A transaction that ended before the window, and is here for a finding only, is in no book.
    """
    rows = spark.sql(f"""WITH {_booked(window)}
SELECT COALESCE(name, '') AS name, was_open, state, COUNT(*) AS transactions
FROM booked LEFT JOIN names ON booked.grp_id = names.grp_id GROUP BY ALL""").collect()
    books: dict[str, dict[str, int]] = {}
    for row in sorted(rows, key=lambda row: row.name):
        book = books.setdefault(row.name, dict.fromkeys(BOOK_COLUMNS, 0))
        book[row.state] += row.transactions
        book["opening" if row.was_open else "prepared"] += row.transactions
    return books


def count_topics(spark: SparkSession, window: Window) -> list[dict[str, Any]]:
    """By real topic and group, in messages: the columns of `count_books`, and what is visible of the committed.

    `is_equal`: the committed and the visible are as many, with the same sum of hashes, whatever their order.
    """
    body = "xxhash64(topic, content) & 4503599627370495 AS body"  # 52 bits, whose halves add up without overflow
    rows = spark.sql(f"""WITH {_booked(window)},
named AS (SELECT booked.*, COALESCE(name, '') AS name FROM booked LEFT JOIN names ON booked.grp_id = names.grp_id),
prepared AS (SELECT tx, off, queue, topic, {body} FROM (
  SELECT tx, off, part AS queue, inline(messages) AS (topic, asked, content, ts, its_key)
  FROM events WHERE leg = {Leg.HALF})),
visible AS (SELECT tx, CAST(NULL AS BIGINT) AS off, CAST(NULL AS INT) AS queue, topic, {body}
  FROM events WHERE leg = {Leg.VISIBLE}),
messages AS (SELECT 1 AS sign, * FROM prepared UNION ALL SELECT -1 AS sign, * FROM visible)
SELECT topic, name, was_open, state, COUNT_IF(sign = 1) AS prepared, COUNT_IF(sign = -1) AS visible,
  SUM(sign * shiftright(body, 26)) AS high, SUM(sign * (body & 67108863)) AS low
FROM named JOIN messages ON named.tx = messages.tx AND (sign = -1 OR (off = half_off AND messages.queue = named.queue))
WHERE sign = 1 OR state = 'committed' GROUP BY ALL""").collect()
    books: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.name)):
        first = {
            "topic": row.topic,
            "group": row.name,
            **dict.fromkeys(BOOK_COLUMNS, 0),
            "visible": 0,
            "is_equal": True,
        }
        book = books.setdefault((row.topic, row.name), first)
        book[row.state] += row.prepared
        book["opening" if row.was_open else "prepared"] += row.prepared
        book["visible"] += row.visible
    for name, book in books.items():
        sums = [(row.high, row.low) for row in rows if (row.topic, row.name) == name and row.state == "committed"]
        book["is_equal"] = book["committed"] == book["visible"] and not any(map(sum, zip(*sums, strict=True)))
    return list(books.values())


def count_partitions(spark: SparkSession, window: Window) -> list[dict[str, Any]]:
    """By partition: rows + holes = end - start. Holes are markers, aborted and compacted records."""
    # a bit for each offset: to count different ones otherwise, every row would have to go through a shuffle
    rows = spark.sql(f"""SELECT topic, part, SUM(n) AS n, SUM(bit_count(bits)) AS places, MIN(first) AS first,
  MAX(last) AS last, SUM(unreadable) AS unreadable, SUM(foreign) AS foreign
FROM (SELECT topic, part, COUNT(*) AS n, BIT_OR(shiftleft(1L, CAST(off % 64 AS INT))) AS bits, MIN(off) AS first,
  MAX(off) AS last, COUNT_IF(leg = {Leg.UNREADABLE}) AS unreadable, COUNT_IF(leg = {Leg.FOREIGN}) AS foreign
  FROM new_events GROUP BY topic, part, off DIV 64) GROUP BY topic, part""").collect()
    found = {Place(row.topic, row.part): row for row in rows}
    totals = []
    for place, extent in sorted(window.extents.items()):
        row = found.get(place)
        count = 0 if row is None else row.n
        is_right = row is None or (row.places == row.n and extent.start <= row.first and row.last < extent.end)
        totals.append(
            {
                "topic": place.topic,
                "partition": place.part,
                "start": extent.start,
                "end": extent.end,
                "rows": count,
                "holes": extent.end - extent.start - count,
                "unreadable": 0 if row is None else row.unreadable,
                "foreign": 0 if row is None else row.foreign,
                "is_right": is_right,
            }
        )
    return totals


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


def first_times(spark: SparkSession, window: Window) -> Mapping[int, int]:
    """Timestamp of the first record read of each journal queue."""
    rows = spark.sql(
        f"SELECT part, MIN(ms) AS ms FROM new_events WHERE topic = '{window.half}' GROUP BY part"
    ).collect()
    return {row.part: row.ms for row in rows}


def is_anything_linked(spark: SparkSession) -> bool:
    """False where op messages name records, there are records, and none of them names its transaction."""
    row = spark.sql(f"""SELECT COUNT_IF(leg = {Leg.OP} AND n > 0) AS told, COUNT_IF(leg = {Leg.VISIBLE}) AS visible,
  COUNT_IF(leg = {Leg.FOREIGN}) AS foreign FROM new_events""").first()
    return row is None or not row.told or not row.foreign or bool(row.visible)


def _booked(window: Window) -> str:
    """`booked`: the transactions that are in the window's books, and `names` of their groups; for WITH."""
    started = _by_queue(window.ranges_of([window.half]))
    told = _by_queue(window.ranges_of([window.op]))
    return f"""booked AS (SELECT tx, queue, grp_id, half_off, half_off < {started} AS was_open, state
  FROM ({_COUNTED}) WHERE NOT COALESCE(final_off < {told} AND half_off < {started}, FALSE)),
names AS (SELECT grp_id, MIN(grp) AS name FROM (SELECT DISTINCT grp_id, grp FROM events WHERE leg = {Leg.HALF})
  GROUP BY grp_id)"""


def _by_queue(extents: Mapping[Place, Extent]) -> str:
    """The start of what was read of each queue, as an expression."""
    whens = " ".join(f"WHEN {place.part} THEN {extent.start}" for place, extent in extents.items())
    return f"CASE queue {whens} ELSE 0 END"
