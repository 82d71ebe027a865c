"""Kafka's records -> the envelope, one row an event, as Spark SQL. The formats are those of `docs/records.md`.

Hashes have 52 bits, so that thousands of them add up in 64. No key, value or header is ever landed.

`source` is a view with the columns of Spark's Kafka connector. Every record becomes one row, so that rows and holes
add up to the offsets read; what cannot be parsed is UNREADABLE, never an error of the job. Keys, values and
headers go no further than this.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple


class Evidence(IntEnum):
    """What kind of record an event is."""

    UNREADABLE = 0  # in an internal topic, but not of the format; or of a version nobody here knows
    HALF = 1
    END = 2
    ACT = 3
    OP = 4
    PARKED = 5  # the copy of a half message in the parked topic
    VISIBLE = 6  # a record of a real topic with a transaction id
    POSITION = 7  # `cause`: its S
    ANSWERS = 8
    FOREIGN = 9  # another producer's record in a real topic


class OpState(IntEnum):
    """The state in an op message, as its `code`."""

    PREPARED = 1
    PARKED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    BLOCKED = 5  # COMMITTED, not yet published
    ABANDONED = 6  # COMMITTED, given up by an operator: never published


class EndSource(IntEnum):
    """The source of an end, as its `src`."""

    PRODUCER = 1
    CHECK = 2
    OPERATOR = 3


COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0  # `code` of an end; a half message published at once has COMMIT too
EMPTY, OTHER_VERSION = -1, -2  # `code` of what cannot be read, if more than that is known
ACT_CHECK, ACT_RESUME, ACT_ABANDON = 1, 2, 3  # `code` of an act


class PreparedMessage(NamedTuple):
    """A prepared message: its topic, the partition and time asked for (None: none), hash of key, value, headers.

    `key`: hash of the key, None if there is none.
    """

    topic: str
    part: int | None
    content: int
    ts: int | None
    key: int | None = None


class ReceiptRow(NamedTuple):
    """Where an op message says that a message was published; `off` None: the log did not know."""

    topic: str
    part: int
    off: int | None


class Event(NamedTuple):
    """A row of the envelope; members without meaning for a leg are None.

    tx: transaction id, "" for legs without one. off, ms: offset and timestamp of the record.
    grp, grp_id: producer group, as said there, and its hash. n: messages announced (half), receipts (op).
    content: hash of key, value, headers (visible). body: sum over messages of the hash of topic and content.
    place: sum over receipts, or of the record itself, of the hash of topic, partition, offset.
    code: see above. cause, half, parked, since_ms: `at` and others of the op message.
    num: the check's number, or check times.
    is_void: a keyed half message that came too late for everybody. asked: messages with partition or time asked.
    okey: hash of the effective ordering key, None where there is neither an ordering key nor a message key.
    topic_id: hash of the topic (visible), or of that of all messages, 0 if they have several (half).
    """

    tx: str
    leg: int
    topic: str
    part: int
    off: int
    ms: int
    grp: str | None = None
    grp_id: int | None = None
    n: int | None = None
    content: int | None = None
    body: int | None = None
    place: int | None = None
    code: int | None = None
    src: int | None = None
    cause: int | None = None
    half: int | None = None
    parked: int | None = None
    num: int | None = None
    latency_ms: int | None = None
    immunity_ms: int | None = None
    max_checks: int | None = None
    life_ms: int | None = None
    since_ms: int | None = None
    is_void: bool | None = None
    asked: int | None = None
    okey: int | None = None
    topic_id: int | None = None
    messages: tuple[PreparedMessage, ...] | None = None
    receipts: tuple[ReceiptRow, ...] | None = None


_SPECIAL = {
    **dict.fromkeys(("tx", "topic", "grp"), "STRING"),
    **dict.fromkeys(("leg", "part", "n", "code", "src", "num", "max_checks", "asked"), "INT"),
    "is_void": "BOOLEAN",
    "messages": "ARRAY<STRUCT<topic: STRING, part: INT, content: BIGINT, ts: BIGINT, key: BIGINT>>",
    "receipts": "ARRAY<STRUCT<topic: STRING, part: INT, off: BIGINT>>",
}

EVENT_TYPES = {name: _SPECIAL.get(name, "BIGINT") for name in Event._fields}
"""The envelope's columns with Spark's types, in the order of `Event`."""

EVENT_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
"""The same as DDL."""


UNREADABLE_SQL = f"WHERE leg = {Evidence.UNREADABLE:d} ORDER BY topic, part, off LIMIT 10000"
"""Of events: those that findings name, and that the next run must see again."""


def pair_product(body: str, place: str) -> str:
    """What a message adds to its transaction's `paired`: another number at another place."""
    return f"({body} % {_PRIMES[0]}) * ({place} % {_PRIMES[1]})"


_PRIMES = 33_554_393, 33_554_383  # below 2**25: thousands of products add up in 64 bits


EnvelopeSql = Callable[[str], str]

_BITS = (1 << 52) - 1
ID_PATTERN = _ID = "'^[0-9a-v]{27}[048cgkos]$'"
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_FRAMES = (
    "'ARRAY<STRUCT<topic: STRING, qid: INT, key: STRING, value: STRING, headers: ARRAY<ARRAY<STRING>>, ts: BIGINT>>'"
)
_OP = (
    "'v INT, state STRING, blocked BOOLEAN, abandoned BOOLEAN, `group` STRING, at BIGINT, half BIGINT, "
    "check_times INT, since_ms BIGINT, parked BIGINT, receipts ARRAY<ARRAY<STRING>>, s BIGINT, owner STRING'"
)
_PROPERTIES = (
    *("KIND", "V", "UNIQ_KEY", "PGROUP", "N", "REAL_TOPIC", "REAL_QID", "TS", "ORDERING_KEY", "IDEMPOTENCY_KEY"),
    *("OKEY", "SEEN", "MAX_LIFE", "MAX_CHECKS", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES"),
    *("RES", "SRC", "LATENCY", "ACT"),
)
_SEEN_LIMIT_MS = 30_000  # a keyed half message appended later after its look-up is void for everybody


def journal_sql(source: str) -> str:
    """Half messages, ends, acts."""
    known = "V = '1' AND is_id"
    leg = _case(
        (f"{known} AND KIND = 'H' AND messages IS NOT NULL AND PGROUP IS NOT NULL", Evidence.HALF),
        (f"{known} AND KIND = 'E' AND RES IN ('8', '12', '0') AND SRC IN ('P', 'C', 'O')", Evidence.END),
        (f"{known} AND KIND = 'A' AND ACT IN ('CHECK', 'RESUME', 'ABANDON')", Evidence.ACT),
        otherwise=Evidence.UNREADABLE,
    )
    columns = {
        "leg": leg,
        **_half_columns(),
        "code": _case(
            ("V <> '1'", OTHER_VERSION),
            ("KIND = 'A' AND ACT = 'RESUME'", ACT_RESUME),
            ("KIND = 'A' AND ACT = 'ABANDON'", ACT_ABANDON),
            ("KIND = 'A'", ACT_CHECK),
            ("RES = '8'", COMMIT),
            ("RES = '12'", ROLLBACK),
            otherwise=UNKNOWN,
        ),
        "src": _case(
            ("SRC = 'P'", EndSource.PRODUCER),
            ("SRC = 'C'", EndSource.CHECK),
            ("SRC = 'O'", EndSource.OPERATOR),
        ),
        "latency_ms": _number("LATENCY"),
    }
    return _select(columns, _bodied(source))


def parked_sql(source: str) -> str:
    """Copies of half messages in the parked topic."""
    known = "V = '1' AND KIND = 'D' AND is_id AND messages IS NOT NULL AND PGROUP IS NOT NULL"
    columns = {
        "leg": _case((known, Evidence.PARKED), otherwise=Evidence.UNREADABLE),
        **_half_columns(),
        "code": _case(("V <> '1'", OTHER_VERSION)),
    }
    return _select(columns, _bodied(source))


def op_sql(source: str) -> str:
    """Op messages, positions, answers."""
    read = (
        "SELECT topic, part, off, ms, id, value IS NULL AS is_empty, "
        f"from_json(CAST(value AS STRING), {_OP}) AS op "
        f"FROM (SELECT *, CAST(key AS STRING) AS id FROM ({_placed(source)}))"
    )
    state = _case(
        ("op.state = 'PREPARED'", OpState.PREPARED),
        ("op.state = 'PARKED'", OpState.PARKED),
        ("op.state = 'COMMITTED' AND op.abandoned", OpState.ABANDONED),
        ("op.state = 'COMMITTED' AND op.blocked", OpState.BLOCKED),
        ("op.state = 'COMMITTED'", OpState.COMMITTED),
        ("op.state = 'ROLLED_BACK'", OpState.ROLLED_BACK),
    )
    receipts = (
        "transform(op.receipts, r -> named_struct('topic', get(r, 0), 'part', try_cast(get(r, 1) AS INT), 'off', "
        "try_cast(get(r, 2) AS BIGINT)))"
    )
    are_places = "COALESCE(forall(places, p -> p.topic IS NOT NULL AND p.part IS NOT NULL), TRUE)"
    read = f"SELECT *, id RLIKE {_ID} AS is_id, {state} AS state, {receipts} AS places FROM ({read})"
    columns = {
        "tx": "IF(is_id, id, '')",
        "leg": _case(
            ("op.v = 1 AND id = '~' AND op.s IS NOT NULL", Evidence.POSITION),
            ("op.v = 1 AND id = '?'", Evidence.ANSWERS),
            (f"op.v = 1 AND state IS NOT NULL AND is_id AND {are_places}", Evidence.OP),
            otherwise=Evidence.UNREADABLE,
        ),
        "grp": "op.`group`",
        "n": "size(places)",
        "place": _total("places", _hash("m.topic", "m.part", "m.off")),
        "code": f"CASE WHEN is_empty THEN {EMPTY} WHEN op.v <> 1 THEN {OTHER_VERSION} ELSE state END",
        "cause": "IF(id = '~', op.s, op.at)",
        "half": "op.half",
        "parked": "op.parked",
        "num": "op.check_times",
        "since_ms": "op.since_ms",
        "receipts": "places",
    }
    return _select(columns, read)


def real_sql(source: str) -> str:
    """Records of real topics: ours by their last header, all others FOREIGN."""
    content = _content("key", "value", "own")
    return _real_sql(source, f"IF(is_ours, {content}, NULL)", "is_ours")


def real_content_sql(source: str) -> str:
    """The same with the hashes of the others too: one of them may be ours without its header."""
    content = _content("key", "value", "IF(is_ours, own, headers)")
    return _real_sql(source, content, "TRUE")


def _real_sql(source: str, content: str, is_hashed: str) -> str:
    read = (
        f"SELECT *, COALESCE(last.key = 'transaction-id' AND CAST(last.value AS STRING) RLIKE {_ID}, FALSE) AS is_ours "
        f"FROM ({_headed(source)})"
    )
    columns = {
        "tx": "IF(is_ours, CAST(last.value AS STRING), '')",
        "leg": _case(("is_ours", Evidence.VISIBLE), otherwise=Evidence.FOREIGN),
        "content": "content",
        "body": f"IF({is_hashed}, {body_hash('topic', 'content')}, NULL)",
        "place": f"IF({is_hashed}, {_hash('topic', 'part', 'off')}, NULL)",
        "topic_id": f"IF({is_hashed}, {_hash('topic')}, NULL)",
    }
    return _select(columns, f"SELECT *, {content} AS content FROM ({read})")


def key_hash(key: str) -> str:
    """The hash by which a key is known; null for none. `key`: an expression of type BINARY."""
    return f"IF({key} IS NULL, NULL, {_hash(key)})"


def group_hash(group: str) -> str:
    """The hash by which a producer group is known. `group`: an expression of type STRING."""
    return _hash(group)


def body_hash(topic: str, content: str) -> str:
    """What a message adds to its transaction's `body`. Expressions of types STRING and BIGINT."""
    return _hash(topic, content)


def paired_sql() -> str:
    """The sum of `pair_product` over a half message's `messages` and an op message's `receipts`."""
    product = pair_product(body_hash("m.topic", "m.content"), _hash("r.topic", "r.part", "r.off"))
    return f"aggregate(zip_with(messages, receipts, (m, r) -> {product}), 0L, (total, one) -> total + one)"


def _half_columns() -> dict[str, str]:
    """What a half message and its parked copy have alike; of other kinds all but the first two are null."""
    number = _number
    return {
        "tx": "IF(is_id, UNIQ_KEY, '')",
        "grp": "PGROUP",
        "n": "announced",
        "body": _total("messages", body_hash("m.topic", "m.content")),
        "num": number("TRANSACTION_CHECK_TIMES", "INT"),
        "immunity_ms": f"{number('CHECK_IMMUNITY_TIME_IN_SECONDS')} * 1000",
        "max_checks": number("MAX_CHECKS", "INT"),
        "life_ms": f"{number('MAX_LIFE')} * 1000",
        "is_void": f"IDEMPOTENCY_KEY IS NOT NULL AND ms - COALESCE({number('SEEN')}, 0) > {_SEEN_LIMIT_MS}",
        "asked": "size(filter(messages, m -> m.part IS NOT NULL OR m.ts IS NOT NULL))",
        "okey": _okey(),
        "topic_id": f"CASE WHEN announced = 1 OR size(array_distinct(messages.topic)) = 1 THEN "
        f"{_hash('messages[0].topic')} WHEN messages IS NOT NULL THEN 0 END",
        "messages": "messages",
    }


def _okey() -> str:
    """Hash of what orders the transaction: its ordering key within its group, else the first message's key within
    group and topic; either of them alone in records of versions that wrote no OKEY."""
    given = "CAST(ORDERING_KEY AS BINARY)"
    return (
        "CASE WHEN messages IS NULL THEN NULL "
        f"WHEN ORDERING_KEY IS NOT NULL THEN IF(OKEY IS NULL, {_hash(given)}, {_hash('PGROUP', given)}) "
        f"WHEN first_key IS NOT NULL THEN IF(OKEY IS NULL, {_hash('first_key')}, "
        f"{_hash('PGROUP', 'messages[0].topic', 'first_key')}) END"
    )


def _bodied(source: str) -> str:
    """Records with their properties as columns, and of half messages the prepared `messages` with the first's key."""
    properties = (
        "str_to_map(IF(last.key = 'properties' AND startswith(CAST(last.value AS STRING), 'KIND\\u0001'), "
        "CAST(last.value AS STRING), NULL), '\\u0002', '\\u0001')"
    )
    # looked up once each: p['NAME'] would be repeated wherever its column is named
    columns = ", ".join(f"try_element_at(p, '{name}') AS {name}" for name in _PROPERTIES)
    placed = "topic, part, off, ms, key, value, own"
    read = f"SELECT {placed}, {columns} FROM (SELECT {placed}, {properties} AS p FROM ({_headed(source)}))"
    framed = (
        f"SELECT *, UNIQ_KEY RLIKE {_ID} AS is_id, "
        f"IF(KIND IN ('H', 'D'), {_number('N', 'INT')}, NULL) AS announced, "
        f"IF(KIND IN ('H', 'D') AND N <> '1', from_json(CAST(value AS STRING), {_FRAMES}), NULL) AS frames "
        f"FROM ({read})"
    )
    one = (
        f"array(named_struct('topic', REAL_TOPIC, 'part', nullif({_number('REAL_QID', 'INT')}, -1), "
        f"'content', {_content('key', 'value', 'own')}, 'ts', {_number('TS')}, 'key', {key_hash('key')}))"
    )
    headers = f"CAST(transform(m.headers, h -> struct(get(h, 0), {_base64('get(h, 1)')})) AS {_HEADERS})"
    many = (
        "transform(frames, m -> named_struct('topic', m.topic, 'part', nullif(m.qid, -1), "
        f"'content', {_content(_base64('m.key'), _base64('m.value'), headers)}, 'ts', m.ts, "
        f"'key', {key_hash(_base64('m.key'))}))"
    )
    are_frames = "forall(frames, m -> m.topic IS NOT NULL)"
    return (
        f"SELECT *, CASE WHEN announced = 1 AND REAL_TOPIC IS NOT NULL THEN {one} "
        f"WHEN announced > 1 AND size(frames) = announced AND {are_frames} THEN {many} END AS messages, "
        f"CASE WHEN announced = 1 THEN key ELSE {_base64('get(frames, 0).key')} END AS first_key FROM ({framed})"
    )


def _headed(source: str) -> str:
    """`last`: the last header, null if there is none; `own`: those before it."""
    return (
        "SELECT *, try_element_at(headers, -1) AS last, slice(headers, 1, greatest(size(headers) - 1, 0)) AS own "
        f"FROM ({_placed(source)})"
    )


def _placed(source: str) -> str:
    return (
        "SELECT topic, partition AS part, offset AS off, unix_millis(timestamp) AS ms, key, value, "
        f"COALESCE(headers, CAST(array() AS {_HEADERS})) AS headers FROM {source}"
    )


def _select(columns: Mapping[str, str], source: str) -> str:
    """All columns of the envelope, null where none is given."""
    given = {"tx": "''", **{name: name for name in ("topic", "part", "off", "ms")}, **columns}
    if "grp" in given:
        given["grp_id"] = f"IF({given['grp']} IS NULL, NULL, {_hash(given['grp'])})"
    listed = (f"CAST({given.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in EVENT_TYPES.items())
    return f"SELECT {', '.join(listed)} FROM ({source})"


def _content(key: str, value: str, headers: str) -> str:
    """Hash of key, value, header list. A hash skips nulls, so what is null is hashed beside; null is not empty."""
    nulls = f"transform({headers}, h -> isnull(h.value))"
    return _hash(f"isnull({key})", key, f"isnull({value})", value, f"size({headers})", headers, nulls)


def _hash(*values: str) -> str:
    return f"(xxhash64({', '.join(values)}) & {_BITS})"


def _total(array: str, of_member: str) -> str:
    """The sum over an array's members `m`; null for no array."""
    return f"aggregate({array}, 0L, (total, m) -> total + {of_member})"


def _number(name: str, kind: str = "BIGINT") -> str:
    return f"try_cast({name} AS {kind})"


def _base64(text: str) -> str:
    return f"try_to_binary({text}, 'base64')"


def _case(*branches: tuple[str, int], otherwise: int | None = None) -> str:
    whens = " ".join(f"WHEN {condition} THEN {int(value)}" for condition, value in branches)
    return f"CASE {whens} ELSE {'NULL' if otherwise is None else int(otherwise)} END"
