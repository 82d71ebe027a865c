"""Events -> one row a transaction, in SQL that any engine reads (`events`: the envelope).

Only numbers are aggregated: the largest of a text would turn a hash aggregate into one that sorts. The fold does
not judge. It sorts out what is plainly right, so that only the rest has to be told event by event; whatever it
lets pass, `rules.judge` finds nothing wrong with.
"""

from spark.columns import COMMIT, ROLLBACK, EndSource, Leg, OpState

_H, _E, _A, _O, _P, _V = Leg.HALF, Leg.END, Leg.ACT, Leg.OP, Leg.PARKED, Leg.VISIBLE
_OF_TRANSACTIONS = ", ".join(str(int(leg)) for leg in (_H, _E, _A, _O, _P, _V))


def _sum(condition: str, value: str = "1") -> str:
    return f"COALESCE(SUM(CASE WHEN {condition} THEN {value} END), 0)"


def _least(condition: str, value: str) -> str:
    return f"MIN(CASE WHEN {condition} THEN {value} END)"


def _most(condition: str, value: str) -> str:
    return f"MAX(CASE WHEN {condition} THEN {value} END)"


_COLUMNS = {
    "halves": _sum(f"leg = {_H}"),
    "voids": _sum(f"leg = {_H} AND is_void"),
    "queue": _least(f"leg = {_H}", "part"),
    "half_off": _least(f"leg = {_H}", "off"),
    "prepared_ms": _least(f"leg = {_H}", "ms"),
    "announced": _sum(f"leg = {_H}", "n"),
    "body": _sum(f"leg = {_H}", "body"),
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
    "end_off": _least(f"(leg = {_E} AND code <> 0) OR (leg = {_H} AND code = {COMMIT})", "off"),
    "ended_ms": _least(f"(leg = {_E} AND code <> 0) OR (leg = {_H} AND code = {COMMIT})", "ms"),
    "acts": _sum(f"leg = {_A}"),
    "ops": _sum(f"leg = {_O}"),
    "last_op": _most(f"leg = {_O}", "off * 8 + code"),
    "final_off": _least(f"leg = {_O} AND code IN ({OpState.COMMITTED}, {OpState.ROLLED_BACK})", "off"),
    "op_at": _most(f"leg = {_O}", "cause"),
    "op_half": _most(f"leg = {_O}", "half"),
    "op_place": _sum(f"leg = {_O}", "place"),
    "settled_ms": _most(f"leg = {_O}", "ms"),
    "copies": _sum(f"leg = {_P}"),
    "records": _sum(f"leg = {_V}"),
    "record_body": _sum(f"leg = {_V}", "body"),
    "record_place": _sum(f"leg = {_V}", "place"),
}

_ONLY_WEIGHED = {"asked", "has_own_life", "acts", "op_at", "op_half", "op_place", "copies", "record_place"}

_ONE_HALF = "halves = 1 AND voids = 0 AND acts = 0 AND copies = 0 AND checks = 0 AND least_grp_id = most_grp_id"
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

    `stale_before_ms`: what was prepared before may have outlived its longest life.
    """
    columns = ",\n  ".join(f"{value} AS {name}" for name, value in _COLUMNS.items())
    young = (
        f"{_ONE_HALF} AND ends = 0 AND ops = 0 AND records = 0 AND is_published = 0 AND has_own_life = 0 "
        f"AND prepared_ms >= {stale_before_ms}"
    )
    plain = " OR ".join(f"({rule})" for rule in (_PLAINLY_COMMITTED, _PLAINLY_ROLLED_BACK, young))
    return (
        f"SELECT {', '.join(('tx', *_TOLD))}, COALESCE({plain}, FALSE) AS is_plain FROM (\n"
        f"SELECT tx,\n  {columns}\nFROM {events} WHERE leg IN ({_OF_TRANSACTIONS}) GROUP BY tx)"
    )


_IS_OPEN = f"""(halves = 0 OR halves > voids) AND NOT COALESCE(last_op % 8 = {OpState.ROLLED_BACK}
  OR (last_op % 8 = {OpState.COMMITTED} AND records >= announced), FALSE)"""

KEPT_SQL = f"""SELECT tx, NOT is_plain AS is_suspect, is_open FROM
(SELECT tx, is_plain, {_IS_OPEN} AS is_open FROM transactions) AS told WHERE NOT is_plain OR is_open"""
"""Of `transactions`, the fold's rows: those to be told event by event, and the open ones, which the next run must see
again: whatever is not final, or not wholly readable yet."""


def out_of_order_sql() -> str:
    """Pairs (tx, overtaken_tx) of one ordering key: decided later, published before.

    Only within a partition is there an order to be seen. Those with ends of several groups are left out; so are those
    with more records than messages, which have findings of their own: a duplicate long after overtakes nobody.
    """
    keyed = (
        "SELECT tx, queue, okey, end_off FROM transactions WHERE okey IS NOT NULL AND commits + is_published > 0 "
        "AND rollbacks = 0 AND halves > 0 AND least_grp_id = most_grp_id "
        "AND records > 0 AND records * halves <= announced"
    )
    shared = "SELECT queue, okey FROM keyed GROUP BY queue, okey HAVING COUNT(*) > 1"
    return f"""WITH keyed AS ({keyed}),
shared AS ({shared}),
chained AS (SELECT keyed.* FROM keyed JOIN shared ON keyed.queue = shared.queue AND keyed.okey = shared.okey),
firsts AS (
  SELECT chained.tx, queue, chained.okey, end_off, topic, part, MIN(off) AS first_off
  FROM chained JOIN events ON events.tx = chained.tx AND events.leg = {_V}
  GROUP BY chained.tx, queue, chained.okey, end_off, topic, part),
ordered AS (
  SELECT *, MAX(first_off) OVER (PARTITION BY queue, okey, topic, part ORDER BY end_off
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS overtaken_off
  FROM firsts)
SELECT late.tx AS tx, early.tx AS overtaken_tx
FROM ordered AS late JOIN firsts AS early
  ON early.topic = late.topic AND early.part = late.part AND early.first_off = late.overtaken_off
WHERE late.overtaken_off > late.first_off"""
