"""Kafka's records -> the envelope, as Arrow columns of many rows at once. The formats are those of `docs/records.md`.

Every record becomes one row, so that rows and holes add up to the offsets read; what cannot be parsed is UNREADABLE,
never an error of the job. Keys, values and headers go no further than this; hashes are those of `spark.read.envelope`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark.read.envelope import (
    ACT_ABANDON,
    ACT_CHECK,
    ACT_RESUME,
    COMMIT,
    EMPTY,
    EVENT_TYPES,
    OTHER_VERSION,
    ROLLBACK,
    UNKNOWN,
    EndSource,
    Evidence,
    OpState,
)
from spark.read.xxhash import add_bytes, add_ints, add_longs, finish, seeds

Headers = Sequence[tuple[str, bytes | None]]
Properties = dict[str, str]
Columns = dict[str, Any]
Longs = NDArray[np.int64]


class Records(NamedTuple):
    """Many records of one partition, a column each."""

    topic: str
    part: int
    offsets: Sequence[int]
    ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]


Decode = Callable[[Records], Columns]

_MESSAGE = pa.struct(
    [("topic", pa.string()), ("part", pa.int32()), ("content", pa.int64()), ("ts", pa.int64()), ("key", pa.int64())]
)
_RECEIPT = pa.struct([("topic", pa.string()), ("part", pa.int32()), ("off", pa.int64())])
_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    EVENT_TYPES["messages"]: pa.list_(_MESSAGE),
    EVENT_TYPES["receipts"]: pa.list_(_RECEIPT),
}
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in EVENT_TYPES.items()])
"""The envelope's columns."""

_is_id = re.compile("[0-9a-v]{27}[048cgkos]").fullmatch
_is_number = re.compile(r"[+-]?\d{1,15}").fullmatch  # that fits into its column, in milliseconds too
_is_small = re.compile(r"[+-]?\d{1,9}").fullmatch
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class PreparedFrame(msgspec.Struct):
    """One of several prepared messages."""

    topic: str
    qid: _Int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers | None = None
    ts: _Long | None = None


class OpMembers(msgspec.Struct):
    v: _Int | None = None
    state: str | None = None
    blocked: bool | None = None
    abandoned: bool | None = None
    group: str | None = None
    at: _Long | None = None
    half: _Long | None = None
    check_times: _Int | None = None
    since_ms: _Long | None = None
    parked: _Long | None = None
    receipts: list[tuple[str, _Int | None, _Long | None]] | None = None
    s: _Long | None = None


_decode_frames = msgspec.json.Decoder(list[PreparedFrame]).decode
_decode_op = msgspec.json.Decoder(OpMembers).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what JSON that is none raises
_HALVES = ("H", "D")
_CODES = {"8": COMMIT, "12": ROLLBACK, "0": UNKNOWN}
_ACTS = {"RESUME": ACT_RESUME, "ABANDON": ACT_ABANDON, "CHECK": ACT_CHECK}
_SOURCES = {"P": EndSource.PRODUCER, "C": EndSource.CHECK, "O": EndSource.OPERATOR}
_SEEN_LIMIT_MS = 30_000  # a keyed half message appended later after its look-up is void for everybody


def make_batch(decode: Decode, records: Records) -> pa.RecordBatch:
    """All columns of the envelope, null where `decode` gives none."""
    count = len(records.offsets)
    given = {
        "topic": pa.array([records.topic]).take(pa.array(np.zeros(count, np.int32))),
        "part": np.full(count, records.part, np.int32),
        "off": records.offsets,
        "ms": records.ms,
        **decode(records),
    }
    columns = [_as_array(given.get(member.name), member.type, count) for member in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _as_array(column: object, kind: pa.DataType, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, kind)
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


def decode_journal(records: Records) -> Columns:
    """Half messages, ends, acts."""
    properties = [_read_properties(headers) for headers in records.headers]
    prepared = _Prepared(records, properties)
    legs: list[int] = []
    codes: list[int] = []
    for p, is_half in zip(properties, prepared.is_sound, strict=True):
        legs.append(_journal_leg(p, is_half) if p.get("V") == "1" and _is_known(p) else Evidence.UNREADABLE)
        if p.get("V", "1") != "1":
            codes.append(OTHER_VERSION)
        elif p.get("KIND") == "A":
            codes.append(_ACTS.get(p.get("ACT", ""), ACT_CHECK))
        else:
            codes.append(_CODES.get(p.get("RES", ""), UNKNOWN))
    sources = [_SOURCES.get(p.get("SRC", "")) for p in properties]
    found = {"leg": legs, "code": codes, "src": sources, "latency_ms": prepared.numbers("LATENCY")}
    return {**prepared.columns(), **found}


def _journal_leg(p: Properties, is_half: bool) -> int:
    kind = p.get("KIND")
    if kind == "H" and is_half:
        return Evidence.HALF
    if kind == "E" and p.get("RES") in _CODES and p.get("SRC") in _SOURCES:
        return Evidence.END
    return Evidence.ACT if kind == "A" and p.get("ACT") in _ACTS else Evidence.UNREADABLE


def decode_parked(records: Records) -> Columns:
    """Copies of half messages in the parked topic."""
    properties = [_read_properties(headers) for headers in records.headers]
    prepared = _Prepared(records, properties)
    legs = [
        Evidence.PARKED
        if is_sound and p.get("V") == "1" and p.get("KIND") == "D" and _is_known(p)
        else Evidence.UNREADABLE
        for p, is_sound in zip(properties, prepared.is_sound, strict=True)
    ]
    codes = [OTHER_VERSION if p.get("V", "1") != "1" else None for p in properties]
    return {**prepared.columns(), "leg": legs, "code": codes}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _is_number(text) else None


def _small(text: str | None) -> int | None:
    return int(text) if text is not None and _is_small(text) else None


def _seconds(text: str | None) -> int | None:
    """In milliseconds."""
    number = _number(text)
    return None if number is None else number * 1_000


class _Members:
    """The members of each row's list, one behind the other. `owner`: the row of each; `is_there`: rows with a list."""

    def __init__(self, lists: Sequence[Sequence[Any] | None]) -> None:
        self.is_there = np.fromiter((one is not None for one in lists), np.bool_, len(lists))
        counts = np.fromiter((len(one or ()) for one in lists), np.int64, len(lists))
        self.flat = [member for one in lists if one for member in one]
        self.owner = np.repeat(np.arange(len(lists)), counts)
        self.starts = np.concatenate(([0], np.cumsum(counts)))

    def sums(self, values: Longs) -> pa.Array:
        """Of each row's members; null for no list."""
        sums = np.zeros(len(self.is_there), np.int64)
        np.add.at(sums, self.owner, values)
        return pa.array(sums, mask=~self.is_there)

    def counts(self) -> pa.Array:
        """Of each row's members; null for no list."""
        return pa.array(np.diff(self.starts), mask=~self.is_there)

    def lists(self, kind: pa.StructType, *columns: pa.Array) -> pa.Array:
        """Each row's members, made of these columns."""
        offsets = pa.array(self.starts.astype(np.int32), mask=np.append(~self.is_there, False))
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(columns, fields=list(kind)))


class _Prepared:
    """What a half message and its parked copy have alike; other kinds have only some of the properties.

    `is_sound`: the prepared messages are there, and the group.
    """

    def __init__(self, records: Records, properties: Sequence[Properties]) -> None:
        self._ms, self._properties = records.ms, properties
        self._known: set[str] = set().union(*properties)
        rows = zip(properties, records.keys, records.values, records.headers, strict=True)
        self._members = _Members([_read_messages(*row) for row in rows])
        self._topics = _Names([message.topic for message in self._members.flat])
        self._keys = [message.key for message in self._members.flat]
        self._groups = _Names([p.get("PGROUP") for p in properties])
        self.is_sound: list[bool] = (self._members.is_there & ~self._groups.is_null).tolist()

    def columns(self) -> Columns:
        """Of the envelope."""
        messages, topics = self._members.flat, self._topics
        values, headers = [message.value for message in messages], [message.headers or () for message in messages]
        contents = _hash_contents(self._keys, values, headers)
        parts = [message.qid if message.qid != -1 else None for message in messages]
        times = [message.ts for message in messages]
        asked = [part is not None or ts is not None for part, ts in zip(parts, times, strict=True)]
        key_hashes = pa.array(finish(add_bytes(seeds(len(messages)), self._keys)), mask=_nulls(self._keys))
        members = (topics.array, pa.array(parts, pa.int32()), pa.array(contents), pa.array(times, pa.int64()))
        return {
            "tx": [p["UNIQ_KEY"] if _is_known(p) else "" for p in self._properties],
            "grp": self._groups.array,
            "grp_id": self._groups.ids(),
            "n": [_small(p.get("N")) if p.get("KIND") in _HALVES else None for p in self._properties],
            "body": self._members.sums(finish(add_longs(topics.hashes, contents))),
            "num": self.numbers("TRANSACTION_CHECK_TIMES", _small),
            "immunity_ms": self.numbers("CHECK_IMMUNITY_TIME_IN_SECONDS", _seconds),
            "max_checks": self.numbers("MAX_CHECKS", _small),
            "life_ms": self.numbers("MAX_LIFE", _seconds),
            "is_void": [
                "IDEMPOTENCY_KEY" in p and ms - (_number(p.get("SEEN")) or 0) > _SEEN_LIMIT_MS
                for p, ms in zip(self._properties, self._ms, strict=True)
            ],
            "asked": self._members.sums(np.array(asked, np.int64)),
            "okey": self._ordering(),
            "topic_id": self._topic_ids(),
            "messages": self._members.lists(_MESSAGE, *members, key_hashes),
        }

    def numbers(self, name: str, read: Callable[[str | None], int | None] = _number) -> list[int | None] | None:
        """A property that is a number."""
        return [read(p.get(name)) for p in self._properties] if name in self._known else None

    def _ordering(self) -> pa.Array:
        """Hash of what orders the transaction: its ordering key within its group, else the first message's key within
        group and topic; either of them alone in records of versions that wrote no OKEY."""
        members, count = self._members, len(self._properties)
        first_keys: list[bytes | None] = [None] * count
        first_topics: list[str | None] = [None] * count
        for row, first in zip(*(column.tolist() for column in self._firsts()), strict=True):
            first_keys[row], first_topics[row] = self._keys[first], members.flat[first].topic
        given = [p.get("ORDERING_KEY") for p in self._properties]
        is_within = np.fromiter(("OKEY" in p for p in self._properties), np.bool_, count)
        chain = np.where(is_within, self._groups.hashes, seeds(count))
        if is_within.any():
            chain = np.where(is_within & _nulls(given), add_bytes(chain, first_topics), chain)
        ordering = [key if own is None else own.encode() for own, key in zip(given, first_keys, strict=True)]
        return pa.array(finish(add_bytes(chain, ordering)), mask=~members.is_there | _nulls(ordering))

    def _topic_ids(self) -> pa.Array:
        """Hash of the topic of all messages, 0 if they have several."""
        members, ids = self._members, finish(self._topics.hashes)
        of_first = np.zeros(len(self._properties), np.int64)
        rows, firsts = self._firsts()
        of_first[rows] = ids[firsts]
        of_first[members.owner[ids != of_first[members.owner]]] = 0
        return pa.array(of_first, mask=~members.is_there)

    def _firsts(self) -> tuple[Longs, Longs]:
        """The rows with messages, and where the first of each is."""
        rows = np.flatnonzero(self._members.is_there)
        return rows, self._members.starts[rows]


def _is_known(p: Properties) -> bool:
    return _is_id(p.get("UNIQ_KEY", "")) is not None


def _read_properties(headers: Headers) -> Properties:
    if not headers:
        return {}
    name, value = headers[-1]
    if name != "properties" or value is None or not value.startswith(b"KIND\x01"):
        return {}
    pairs = value.decode(errors="replace").split("\x02")
    return dict([pair.split("\x01", 1) for pair in pairs if "\x01" in pair])


def _read_messages(
    p: Properties, key: bytes | None, value: bytes | None, headers: Headers
) -> Sequence[PreparedFrame] | None:
    """At least one; None if there are none, or not as many as announced."""
    announced = p.get("N")
    if announced is None or p.get("KIND") not in _HALVES:
        return None
    if announced == "1":
        topic = p.get("REAL_TOPIC")
        if topic is None:
            return None
        return (PreparedFrame(topic, _small(p.get("REAL_QID")), key, value, headers[:-1], _number(p.get("TS"))),)
    try:
        frames = _decode_frames(value or b"")
    except _UNREADABLE:
        return None
    return frames if frames and len(frames) == _number(announced) else None


def decode_op(records: Records) -> Columns:
    """Op messages, positions, answers."""
    ops = [_read_op(value) for value in records.values]
    names = ["" if key is None else key.decode(errors="replace") for key in records.keys]
    states = [_state(op) for op in ops]
    groups = _Names([op.group for op in ops])
    told = _Members([op.receipts for op in ops])
    topics = _Names([receipt[0] for receipt in told.flat])
    parts = pa.array([receipt[1] for receipt in told.flat], pa.int32())
    offsets = pa.array([receipt[2] for receipt in told.flat], pa.int64())
    places = add_ints(topics.hashes, parts.fill_null(0).to_numpy())
    is_known = offsets.is_valid().to_numpy(zero_copy_only=False)
    places = np.where(is_known, add_longs(places, offsets.fill_null(0).to_numpy()), places)
    return {
        "tx": [name if _is_id(name) else "" for name in names],
        "leg": [_op_leg(*row) for row in zip(ops, names, states, strict=True)],
        "grp": groups.array,
        "grp_id": groups.ids(),
        "n": told.counts(),
        "place": told.sums(finish(places)),
        "code": [
            EMPTY if value is None else state if op.v in {1, None} else OTHER_VERSION
            for op, state, value in zip(ops, states, records.values, strict=True)
        ],
        "cause": [op.s if name == "~" else op.at for op, name in zip(ops, names, strict=True)],
        "half": [op.half for op in ops],
        "parked": [op.parked for op in ops],
        "num": [op.check_times for op in ops],
        "since_ms": [op.since_ms for op in ops],
        "receipts": told.lists(_RECEIPT, topics.array, parts, offsets),
    }


def _op_leg(op: OpMembers, name: str, state: int | None) -> int:
    if op.v != 1:
        return Evidence.UNREADABLE
    if state is not None and _is_id(name) and not any(receipt[1] is None for receipt in op.receipts or ()):
        return Evidence.OP
    if name == "~" and op.s is not None:
        return Evidence.POSITION
    return Evidence.ANSWERS if name == "?" else Evidence.UNREADABLE


_STATES = {"PREPARED": OpState.PREPARED, "PARKED": OpState.PARKED, "ROLLED_BACK": OpState.ROLLED_BACK}


def _state(op: OpMembers) -> int | None:
    if op.state != "COMMITTED":
        return _STATES.get(op.state or "")
    return OpState.ABANDONED if op.abandoned else OpState.BLOCKED if op.blocked else OpState.COMMITTED


def _read_op(value: bytes | None) -> OpMembers:
    """Members of a wrong type are as if they were not there; receipts that are none have no place."""
    if value is None:
        return OpMembers()
    try:
        return _decode_op(value)
    except _UNREADABLE:
        return _read_oddly(value)


def _read_oddly(value: bytes) -> OpMembers:
    op = OpMembers()
    try:
        read = msgspec.json.decode(value, type=dict[str, Any])
    except _UNREADABLE:
        return op
    for name in OpMembers.__struct_fields__:
        try:
            setattr(op, name, msgspec.convert(read.get(name), OpMembers.__annotations__[name]))
        except msgspec.MsgspecError:
            if name == "receipts" and isinstance(read[name], list):
                op.receipts = [("", None, None)]
    return op


def decode_real(records: Records) -> Columns:
    """Records of real topics: ours by their last header, all others FOREIGN."""
    return _decode_real(records, is_all_hashed=False)


def decode_real_content(records: Records) -> Columns:
    """The same with the hashes of the others too: one of them may be ours without its header."""
    return _decode_real(records, is_all_hashed=True)


def _decode_real(records: Records, *, is_all_hashed: bool) -> Columns:
    ids = [_id_of(headers) for headers in records.headers]
    own = [headers[:-1] if tx else headers for headers, tx in zip(records.headers, ids, strict=True)]
    count = len(ids)
    is_hashed = np.fromiter((is_all_hashed or tx != "" for tx in ids), np.bool_, count)
    contents = _hash_contents(records.keys, records.values, own)
    topic = add_bytes(seeds(1), [records.topic])
    topics = np.repeat(topic, count)
    place = add_longs(add_ints(topics, np.full(count, records.part)), np.array(records.offsets, np.int64))
    hashes = {
        "content": contents,
        "body": finish(add_longs(topics, contents)),
        "place": finish(place),
        "topic_id": finish(topics),
    }
    return {
        "tx": ids,
        "leg": [Evidence.VISIBLE if tx else Evidence.FOREIGN for tx in ids],
        **{name: pa.array(column, mask=~is_hashed) for name, column in hashes.items()},
    }


def _id_of(headers: Headers) -> str:
    if not headers:
        return ""
    name, value = headers[-1]
    if name != "transaction-id" or value is None:
        return ""
    tx = value.decode(errors="replace")
    return tx if _is_id(tx) else ""


class _Names:
    """Names that repeat, and where the chains of their hashes stand."""

    def __init__(self, names: Sequence[str | None]) -> None:
        self.array = pa.array(names, pa.string())
        self.is_null = self.array.is_null().to_numpy(zero_copy_only=False)
        coded = self.array.dictionary_encode()
        known = add_bytes(seeds(len(coded.dictionary)), coded.dictionary)
        known = np.append(known, seeds(1))  # of null: nothing is added
        self.hashes = known[coded.indices.fill_null(len(known) - 1).to_numpy()]

    def ids(self) -> pa.Array:
        """The hash by which each is known."""
        return pa.array(finish(self.hashes), mask=self.is_null)


def _nulls(values: Sequence[object]) -> NDArray[np.bool_]:
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def _hash_contents(keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers]) -> Longs:
    """Hash of key, value, header list. A hash skips nulls, so what is null is hashed beside; null is not empty."""
    hashes = seeds(len(keys))
    for column in (keys, values):
        hashes = add_bytes(add_ints(hashes, _nulls(column)), column)
    sizes = np.fromiter(map(len, headers), np.int64, len(headers))
    hashes = add_ints(hashes, sizes)
    numbers = range(int(sizes.max(initial=0)))
    for number in numbers:
        rows = np.flatnonzero(sizes > number)
        pairs = [given[number] for given in headers if len(given) > number]
        names, own = [name for name, _ in pairs], [value for _, value in pairs]
        hashes[rows] = add_bytes(add_bytes(hashes[rows], names), own)
    for number in numbers:
        rows = np.flatnonzero(sizes > number)
        hashes[rows] = add_ints(hashes[rows], _nulls([given[number][1] for given in headers if len(given) > number]))
    return finish(hashes)
