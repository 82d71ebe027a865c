"""Events -> one row a transaction, in SQL that engines with `TRY_SUM` read (`events`: the envelope).

Only numbers are aggregated: the largest of a text would turn a hash aggregate into one that sorts. The fold does
not judge. The fold sorts out what is plainly right, so that only the rest has to be replayed event by event; whatever
it lets pass, `rules.judge` finds nothing wrong with. Sums have no order: `exchanged_sql` asks whether each of several
messages is where its own receipt says.
"""

from spark.read.envelope import COMMIT, ROLLBACK, EndSource, Evidence, OpState, pair_product

_H, _E, _A, _O, _P, _V = Evidence.HALF, Evidence.END, Evidence.ACT, Evidence.OP, Evidence.PARKED, Evidence.VISIBLE
_OF_TRANSACTIONS = ", ".join(str(int(leg)) for leg in (_H, _E, _A, _O, _P, _V))


def _sum(condition: str, value: str = "1") -> str:
    return f"COALESCE(SUM(CASE WHEN {condition} THEN {value} END), 0)"


def _hashes(condition: str, value: str) -> str:
    """A sum of hashes, of which thousands fit into 64 bits. Where there are more nothing is plain: a record that is
    copied in a loop must not end the run."""
    return f"COALESCE(TRY_SUM(CASE WHEN {condition} THEN {value} END), 0)"


def _least(condition: str, value: str) -> str:
    return f"MIN(CASE WHEN {condition} THEN {value} END)"


def _most(condition: str, value: str) -> str:
    return f"MAX(CASE WHEN {condition} THEN {value} END)"


_WHILE_MS = 60_000  # a settler may know of fewer partitions than there are, for some seconds
_OF_QUEUE = f"leg IN ({_H}, {_E}, {_A}, {_O})"
_DIGITS = "'0123456789abcdefghijklmnopqrstuv'"
OWN_QUEUE = f"(instr({_DIGITS}, substr(tx, 1, 1)) - 1) * 32 + instr({_DIGITS}, substr(tx, 2, 1)) - 1"
_OWN_OP = f"leg = {_O} AND part = {OWN_QUEUE}"
_VALID_HALF = f"leg = {_H} AND NOT is_void"
_FINAL = f"{OpState.COMMITTED}, {OpState.ROLLED_BACK}, {OpState.ABANDONED}"
_DECISION = f"(leg = {_E} AND code <> 0) OR ({_VALID_HALF} AND code = {COMMIT})"

_COLUMNS = {
    "halves": _sum(f"leg = {_H}"),
    "voids": _sum(f"leg = {_H} AND is_void"),
    "queue": _least(f"leg = {_H}", "part"),
    "least_queue": _least(_OF_QUEUE, "part"),
    "most_queue": _most(_OF_QUEUE, "part"),
    "half_off": _least(_VALID_HALF, "off"),
    "prepared_ms": _least(_VALID_HALF, "ms"),
    "announced": _sum(f"leg = {_H}", "n"),
    "body": _hashes(f"leg = {_H}", "body"),
    "asked": _sum(f"leg = {_H}", "asked"),
    "has_own_life": _sum(f"leg = {_H} AND life_ms IS NOT NULL"),
    "is_published": _sum(f"leg = {_H} AND code = {COMMIT}"),
    "okey": _least(f"leg = {_H}", "okey"),
    "grp_id": _least(f"leg IN ({_H}, {_O})", "grp_id"),
    "least_grp_id": "MIN(grp_id)",
    "most_grp_id": "MAX(grp_id)",
    "ends": _sum(f"leg = {_E}"),
    "checks": _sum(f"leg = {_E} AND src = {EndSource.CHECK}"),
    "commits": _sum(f"leg = {_E} AND code = {COMMIT}"),
    "rollbacks": _sum(f"leg = {_E} AND code = {ROLLBACK}"),
    "end_off": _least(_DECISION, "off"),
    "ended_ms": _least(_DECISION, "ms"),
    "acts": _sum(f"leg = {_A}"),
    "ops": _sum(f"leg = {_O}"),
    "last_op": _most(_OWN_OP, "off * 8 + code"),
    "final_op": _least(f"{_OWN_OP} AND code IN ({_FINAL})", "off * 8 + code"),
    "op_at": _most(f"leg = {_O}", "cause"),
    "op_half": _most(f"leg = {_O}", "half"),
    "op_place": _hashes(f"leg = {_O}", "place"),
    "settled_ms": _most(f"leg = {_O}", "ms"),
    "copies": _sum(f"leg = {_P}"),
    "records": _sum(f"leg = {_V}"),
    "record_body": _hashes(f"leg = {_V}", "body"),
    "record_place": _hashes(f"leg = {_V}", "place"),
    "paired": _hashes(f"leg = {_V}", pair_product("body", "place")),
    "least_topic_id": _least(f"leg IN ({_H}, {_V})", "topic_id"),
    "most_topic_id": _most(f"leg IN ({_H}, {_V})", "topic_id"),
    "least_part": _least(f"leg = {_V}", "part"),
    "most_part": _most(f"leg = {_V}", "part"),
    "first_off": _least(f"leg = {_V}", "off"),
    "last_off": _most(f"leg = {_V}", "off"),
}

_ONLY_WEIGHED = {
    *("has_own_life", "acts", "op_at", "op_place", "copies", "record_place"),
    *("least_topic_id", "most_topic_id", "least_part", "most_part", "least_queue", "most_queue"),
}

_ONE_HALF = (
    "halves = 1 AND voids = 0 AND acts = 0 AND copies = 0 AND checks = 0 AND least_grp_id = most_grp_id "
    f"AND least_queue = most_queue AND least_queue = {OWN_QUEUE}"
)
_ONE_OP = "ops = 1 AND op_half = half_off AND op_at = end_off AND end_off >= half_off"
_ALL_THERE = "records = announced AND record_body = body AND record_place = op_place AND asked = 0"

_PLAINLY_COMMITTED = (
    f"{_ONE_HALF} AND {_ONE_OP} AND last_op % 8 = {OpState.COMMITTED} AND rollbacks = 0 AND ends = commits "
    f"AND {_ALL_THERE}"
)
_PLAINLY_ROLLED_BACK = (
    f"{_ONE_HALF} AND {_ONE_OP} AND last_op % 8 = {OpState.ROLLED_BACK} AND commits = 0 AND is_published = 0 "
    "AND ends = rollbacks AND records = 0"
)


_TOLD = [name for name in _COLUMNS if name not in _ONLY_WEIGHED]


def fold_sql(stale_before_ms: int, events: str = "events") -> str:
    """A row a transaction. `is_plain`: nothing can be wrong with it; `last_op` % 8: its `OpState`, null if none.

    `topic_id`: of all its messages and records, `record_part`: of all its records; null if there is not one.
    `stale_before_ms`: what was prepared before may have outlived its longest life.
    """
    columns = ",\n  ".join(f"{value} AS {name}" for name, value in _COLUMNS.items())
    young = (
        f"{_ONE_HALF} AND ends = 0 AND ops = 0 AND records = 0 AND is_published = 0 AND has_own_life = 0 "
        f"AND prepared_ms >= {stale_before_ms}"
    )
    plain = " OR ".join(f"({rule})" for rule in (_PLAINLY_COMMITTED, _PLAINLY_ROLLED_BACK, young))
    return (
        f"SELECT {', '.join(('tx', *_TOLD))}, COALESCE({plain}, FALSE) AS is_plain,\n"
        "  CASE WHEN least_topic_id = most_topic_id AND least_topic_id <> 0 THEN least_topic_id END AS topic_id,\n"
        "  CASE WHEN least_part = most_part THEN least_part END AS record_part FROM (\n"
        f"SELECT tx,\n  {columns}\nFROM {events} WHERE leg IN ({_OF_TRANSACTIONS}) GROUP BY tx)"
    )


_IS_OPEN = f"""(halves = 0 OR halves > voids) AND NOT COALESCE(
  last_op % 8 IN ({OpState.ROLLED_BACK}, {OpState.ABANDONED})
  OR (last_op % 8 = {OpState.COMMITTED} AND records * halves >= announced), FALSE)"""

SEVERAL_SQL = "SELECT tx, paired FROM transactions WHERE is_plain AND announced > 1"
"""Of `transactions`, the fold's rows: those of several messages that are plain but for the order of their receipts."""


def exchanged_sql(paired: str, shuffled: str) -> str:
    """Of `several`, the rows of `SEVERAL_SQL`: those whose receipts are not in the order of their messages, or name
    records of one partition that are not.

    `paired`: the sum of `pair_product` over `messages` and `receipts`, one beside the other; `shuffled`: whether the
    offsets of `receipts` are out of order in a partition.
    """
    return f"""SELECT tx FROM several
JOIN (SELECT tx, messages FROM events WHERE leg = {_H} AND n > 1) AS halves USING (tx)
JOIN (SELECT tx, receipts, {shuffled} AS is_shuffled FROM events WHERE leg = {_O} AND n > 1) AS ops USING (tx)
WHERE paired <> {paired} OR is_shuffled"""


KEPT_SQL = f"""SELECT tx, NOT is_plain AS is_suspect, is_open FROM
(SELECT tx, is_plain, {_IS_OPEN} AS is_open FROM transactions) AS told WHERE NOT is_plain OR is_open"""
"""Of `transactions`, the fold's rows: those to be replayed event by event, and the open ones, which the next run must
see again: whatever is not final, or not wholly readable yet."""


ASIDE_SQL = f"""SELECT tx, topic, topic_id, part, off, spread, parts, earlier, taken_ms FROM events
JOIN counted USING (topic) WHERE leg = {_V} AND part <> spread % parts"""
"""Visible records in another partition than that of their key by the present number of partitions: nearly always none.

`counted`: `topic`, its `parts` now, `earlier` and `taken_ms` of the last window.
"""

MISPLACED_SQL = f"""WITH dated AS (
  SELECT aside.*, ended_ms, IF(taken_ms + {_WHILE_MS} < ended_ms, earlier, 1) AS before FROM aside
  JOIN transactions USING (tx) WHERE transactions.asked = 0),
grown AS (
  SELECT topic_id, record_part + 1 AS known, MIN(settled_ms) AS known_ms FROM transactions
  WHERE is_plain AND topic_id IS NOT NULL AND record_part IS NOT NULL GROUP BY topic_id, record_part),
bounded AS (
  SELECT tx, topic, part, off, spread, parts, GREATEST(before, COALESCE(MAX(known), 1)) AS least FROM dated
  LEFT JOIN grown ON grown.topic_id = dated.topic_id AND known_ms + {_WHILE_MS} < ended_ms
  GROUP BY tx, topic, part, off, spread, parts, before)
SELECT tx, topic, part, off, spread % parts AS own_part, parts FROM bounded
WHERE tx IN (SELECT tx FROM told_before) OR NOT exists(sequence(LEAST(least, parts), parts), n -> spread % n = part)"""
"""Visible records whose key belongs to another partition, by each number of partitions that the topic may have had when
they were published: no less than was known a while before their commit was recorded, no more than now.

`aside`: the rows of `ASIDE_SQL`; `told_before`: `tx` of what stands since the last run, whose proof may be gone. A
record in a partition proves that it is there. Where a partition or a time was asked for nothing is compared.
"""


_KEYED = """okey IS NOT NULL AND commits + is_published > 0 AND rollbacks = 0 AND halves > 0
  AND least_grp_id = most_grp_id AND end_off >= half_off AND records > 0 AND records * halves <= announced
  AND COALESCE(op_half, half_off) <= half_off"""

SHARED_SQL = f"SELECT queue, okey FROM transactions WHERE {_KEYED} GROUP BY queue, okey HAVING COUNT(*) > 1"
"""Ordering keys of several published transactions. Transactions with ends of several groups, or with one before their
half message, which decides nothing, are left out; so are
those with more records than messages, which have findings of their own: a duplicate long after overtakes nobody; and
those whose idempotency key was used again."""

CHAINED_SQL = f"""SELECT tx, queue, okey, end_off, topic_id, record_part, first_off, last_off, is_plain
FROM transactions JOIN shared USING (queue, okey) WHERE {_KEYED}"""
"""Of `transactions` those whose ordering key is in `shared`, the rows of `SHARED_SQL`."""

SCATTERED_SQL = "SELECT tx FROM chained WHERE topic_id IS NULL OR record_part IS NULL"
"""Of `chained`, the rows of `CHAINED_SQL`: those whose records have to be looked up."""

OVERTAKING_SQL = """WITH firsts AS (
  SELECT tx, queue, okey, end_off, topic_id, record_part AS part, first_off, last_off, is_plain FROM chained
  WHERE topic_id IS NOT NULL AND record_part IS NOT NULL
  UNION ALL
  SELECT chained.tx, queue, okey, end_off, scattered.topic_id, part, MIN(off) AS first_off, MAX(off) AS last_off,
    is_plain
  FROM chained JOIN scattered ON scattered.tx = chained.tx
  GROUP BY chained.tx, queue, okey, end_off, scattered.topic_id, part, is_plain),
known AS (SELECT *, CASE WHEN is_plain THEN last_off ELSE first_off END AS known_off FROM firsts),
ordered AS (
  SELECT tx, first_off, MAX(known_off) OVER earlier AS overtaken_off, MAX_BY(tx, known_off) OVER earlier AS overtaken_tx
  FROM known WINDOW earlier AS (PARTITION BY queue, okey, topic_id, part ORDER BY end_off
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
SELECT tx, overtaken_tx FROM ordered WHERE overtaken_off > first_off"""
"""Pairs (tx, overtaken_tx) of one ordering key: decided later, published before. `scattered`: the visible records of
those of `SCATTERED_SQL`. Only within a partition is there an order to be seen; where something is wrong with a
transaction, a copy may lie behind."""
