"""Kafka's records -> the envelope, as Arrow columns of many rows at once. `spark.read.formats` reads each.

Every record becomes one row, so that rows and holes add up to the offsets read; what cannot be parsed is UNREADABLE,
never an error of the job. Keys, values and headers go no further than this; hashes are those of `spark.read.envelope`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark.read.envelope import APPEND_TIME, EVENT_TYPES, OTHER_VERSION, Evidence
from spark.read.formats import (
    JOURNAL_FORMS,
    PARKED_FORMS,
    SOURCES,
    Headers,
    Properties,
    is_id,
    is_known,
    judge,
    read_count,
    read_messages,
    read_number,
    read_op,
    read_properties,
    read_remark,
    read_seconds,
    read_spread,
)

# --- Spark's `xxhash64` of many rows at once, so that a hash made in Python equals one made in SQL ---
# A hash of several values is a chain: the hash of each is the seed of the next, and 42 that of the first; a null
# changes nothing.

Hashes = NDArray[np.uint64]
Sizes = NDArray[np.int64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_LOW = np.uint64(0xFFFFFFFF)
_BITS = np.uint64((1 << 52) - 1)
_SEED = 42
_STRIPE = 32  # bytes
_NONE = np.uint64(0)
_ALL = (1 << 64) - 1
_FEW = 32  # rows: fewer are hashed one by one


def seeds(count: int) -> Hashes:
    """Where so many chains begin."""
    return np.full(count, _SEED, np.uint64)


def finish(hashes: Hashes) -> NDArray[np.int64]:
    """The 52 bits that are kept."""
    return (hashes & _BITS).view(np.int64)


def add_ints(hashes: Hashes, values: object) -> Hashes:
    """Of type INT, or BOOLEAN as 0 and 1."""
    given = np.asarray(values).astype(np.int64).view(np.uint64) & _LOW
    return _mix(_rotate(hashes + _P5 + np.uint64(4) ^ given * _P1, 23) * _P2 + _P3)


def add_longs(hashes: Hashes, values: NDArray[np.int64]) -> Hashes:
    """Of type BIGINT."""
    mixed = hashes + _P5 + np.uint64(8) ^ _round(_NONE, values.view(np.uint64))
    return _mix(_rotate(mixed, 27) * _P1 + _P4)


def add_bytes(hashes: Hashes, values: Sequence[bytes | None] | Sequence[str | None] | pa.Array) -> Hashes:
    """Of type BINARY or STRING."""
    array = values.cast(pa.binary()) if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    _, ends, data = array.buffers()
    bounds = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    raw = np.zeros((0 if data is None else data.size) + 8, np.uint8)
    raw[: raw.size - 8] = () if data is None else np.frombuffer(data, np.uint8)
    words = np.ndarray((raw.size - 7,), "<u8", raw, strides=(1,))  # one begins at each byte
    return _choose(array, hashes, _hash_bytes(raw, words, bounds[:-1], np.diff(bounds), hashes))


def _choose(array: pa.Array, hashes: Hashes, changed: Hashes) -> Hashes:
    if not array.null_count:
        return changed
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), changed, hashes)


def _hash_bytes(raw: NDArray[np.uint8], words: Hashes, at: Sizes, sizes: Sizes, seed: Hashes) -> Hashes:
    """Of the bytes from `at` on. `words`: the eight bytes from each byte on, as a number."""
    hashes = seed + _P5
    is_long = np.flatnonzero(sizes >= _STRIPE)
    if is_long.size:
        hashes[is_long] = _hash_stripes(words, at[is_long], sizes[is_long] // _STRIPE, seed[is_long])
    hashes += sizes.view(np.uint64)
    at, left = at + sizes // _STRIPE * _STRIPE, sizes % _STRIPE
    for width, times in ((8, 3), (4, 1), (1, 3)):
        for _ in range(times):
            rows = np.flatnonzero(left >= width)
            if rows.size:
                place = at[rows]
                value = raw[place].astype(np.uint64) if width == 1 else words[place]
                hashes[rows] = _add_word(width, hashes[rows], value)
                at[rows] += width
                left[rows] -= width
    return _mix(hashes)


def _add_word(width: int, hashes: Hashes, value: Hashes) -> Hashes:
    if width == 8:
        return _rotate(hashes ^ _round(_NONE, value), 27) * _P1 + _P4
    if width == 4:
        return _rotate(hashes ^ (value & _LOW) * _P1, 23) * _P2 + _P3
    return _rotate(hashes ^ value * _P5, 11) * _P1


def _hash_stripes(words: Hashes, at: Sizes, stripes: Sizes, seed: Hashes) -> Hashes:
    lanes = (seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1)
    number, rows = 0, np.flatnonzero(stripes)
    while rows.size > _FEW:
        for lane, state in enumerate(lanes):
            state[rows] = _round(state[rows], words[at[rows] + (number * _STRIPE + lane * 8)])
        number += 1
        rows = np.flatnonzero(stripes > number)
    for row in rows.tolist():
        rest = words[at[row] + number * _STRIPE : at[row] + stripes[row] * _STRIPE : 8]
        for lane, state in enumerate(lanes):
            state[row] = _add_all(int(state[row]), rest[lane::4])
    hashes = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
    for state in lanes:
        hashes = (hashes ^ _round(_NONE, state)) * _P1 + _P4
    return hashes


def _add_all(state: int, values: Hashes) -> int:
    """A round for each: what `_round` does, in less time for one state alone."""
    prime = int(_P1)
    for value in (values * _P2).tolist():
        state = state + value & _ALL
        state = (state << 31 | state >> 33) * prime & _ALL
    return state


def _round(state: Hashes | np.uint64, value: Hashes) -> Hashes:
    return _rotate(state + value * _P2, 31) * _P1


def _rotate(values: Hashes, bits: int) -> Hashes:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)


def _mix(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint64(33)) * _P2
    hashes = (hashes ^ hashes >> np.uint64(29)) * _P3
    return hashes ^ hashes >> np.uint64(32)


# --- Kafka's records -> the envelope, as Arrow columns of many rows at once. `spark.read.formats` reads each ---

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
    clocks: Sequence[int] = ()  # kinds of timestamp, as the client numbers them; empty: the writer's own


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

_APPENDED = 2  # the client's TIMESTAMP_LOG_APPEND_TIME
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
    """Half messages, ends with their remarks, acts."""
    properties = [read_properties(headers) for headers in records.headers]
    prepared = _Prepared(records, properties)
    rows = [judge(p, has, JOURNAL_FORMS) for p, has in zip(properties, prepared.has_messages, strict=True)]
    legs, sources = [leg for leg, _ in rows], [SOURCES.get(p.get("SRC", "")) for p in properties]
    found = {"leg": legs, "code": [code for _, code in rows], "src": sources, "remark": prepared.remarks(legs)}
    return {**prepared.columns(), **found, "latency_ms": [_read_latency(p) for p in properties]}


def _read_latency(p: Properties) -> int | None:
    """None, too, of a check that was fetched, or came through the door: nobody knows when it was handed out."""
    return read_count(p.get("LATENCY")) if "ENDPOINT" in p else None


def decode_parked(records: Records) -> Columns:
    """Copies of half messages in the parked topic."""
    properties = [read_properties(headers) for headers in records.headers]
    prepared = _Prepared(records, properties)
    rows = [judge(p, has, PARKED_FORMS) for p, has in zip(properties, prepared.has_messages, strict=True)]
    legs = [Evidence.PARKED if leg == Evidence.HALF else leg for leg, _ in rows]
    codes = [code if code == OTHER_VERSION else None for _, code in rows]
    return {**prepared.columns(), "leg": legs, "code": codes}


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
    """What a half message and its parked copy have alike; other kinds have only some of the properties."""

    def __init__(self, records: Records, properties: Sequence[Properties]) -> None:
        self._ms, self._properties = records.ms, properties
        self._known: set[str] = set().union(*properties)
        rows = zip(properties, records.keys, records.values, records.headers, strict=True)
        self._members = _Members([read_messages(*row) for row in rows])
        self._topics = _Names([message.topic for message in self._members.flat])
        self._keys = [message.key for message in self._members.flat]
        self._groups = _Names([p.get("PGROUP") for p in properties])
        self.has_messages: list[bool] = self._members.is_there.tolist()

    def columns(self) -> Columns:
        messages, topics = self._members.flat, self._topics
        values, headers = [message.value for message in messages], [message.headers or () for message in messages]
        contents = _hash_contents(self._keys, values, headers)
        parts = [message.qid if message.qid != -1 else None for message in messages]
        times = [message.ts for message in messages]
        asked = [part is not None or ts is not None for part, ts in zip(parts, times, strict=True)]
        key_hashes = pa.array(finish(add_bytes(seeds(len(messages)), self._keys)), mask=_nulls(self._keys))
        members = (topics.array, pa.array(parts, pa.int32()), pa.array(contents), pa.array(times, pa.int64()))
        return {
            "tx": [p["UNIQ_KEY"] if is_known(p) else "" for p in self._properties],
            "grp": self._groups.array,
            "grp_id": self._groups.ids(),
            "n": [read_count(p.get("N")) if p.get("KIND") in PARKED_FORMS else None for p in self._properties],
            "body": self._members.sums(finish(add_longs(topics.hashes, contents))),
            "num": self.numbers("TRANSACTION_CHECK_TIMES", read_count),
            "immunity_ms": self.numbers("CHECK_IMMUNITY_TIME_IN_SECONDS", read_seconds),
            "max_checks": self.numbers("MAX_CHECKS", read_count),
            "life_ms": self.numbers("MAX_LIFE", read_seconds),
            "is_void": [
                "IDEMPOTENCY_KEY" in p and ms - (read_number(p.get("SEEN")) or 0) > _SEEN_LIMIT_MS
                for p, ms in zip(self._properties, self._ms, strict=True)
            ],
            "asked": self._members.sums(np.array(asked, np.int64)),
            "okey": self._ordering(),
            "topic_id": self._topic_ids(),
            "messages": self._members.lists(_MESSAGE, *members, key_hashes),
        }

    def numbers(self, name: str, read: Callable[[str | None], int | None]) -> list[int | None] | None:
        """A property that is a number."""
        return [read(p.get(name)) for p in self._properties] if name in self._known else None

    def remarks(self, legs: Sequence[int]) -> list[str | None] | None:
        """Of ends; nothing is looked at where no record has one."""
        if "REMARK" not in self._known:
            return None
        rows = zip(self._properties, legs, strict=True)
        return [read_remark(p.get("REMARK")) if leg == Evidence.END else None for p, leg in rows]

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


def decode_op(records: Records) -> Columns:
    """Op messages, positions, answers."""
    rows = [read_op(key, value) for key, value in zip(records.keys, records.values, strict=True)]
    ops = [row.op for row in rows]
    names = ["" if key is None else key.decode(errors="replace") for key in records.keys]
    groups = _Names([None if op is None else op.group for op in ops])
    told = _Members([None if op is None else op.receipts or None for op in ops])
    topics = _Names([receipt.topic for receipt in told.flat])
    parts = pa.array([receipt.part for receipt in told.flat], pa.int32())
    offsets = pa.array([receipt.off for receipt in told.flat], pa.int64())
    places = add_ints(topics.hashes, parts.to_numpy())
    is_known = offsets.is_valid().to_numpy(zero_copy_only=False)
    places = np.where(is_known, add_longs(places, offsets.fill_null(0).to_numpy()), places)
    return {
        "tx": [name if is_id(name) else "" for name in names],
        "leg": [row.leg for row in rows],
        "grp": groups.array,
        "grp_id": groups.ids(),
        "n": told.counts(),
        "place": told.sums(finish(places)),
        "code": [row.code for row in rows],
        "cause": [row.s if op is None else op.at for row, op in zip(rows, ops, strict=True)],
        "half": [row.start and row.start.journal if op is None else op.half for row, op in zip(rows, ops, strict=True)],
        "parked": [row.start and row.start.op if op is None else op.parked for row, op in zip(rows, ops, strict=True)],
        "num": [None if op is None else op.check_times for op in ops],
        "since_ms": [None if op is None else op.since_ms for op in ops],
        "receipts": told.lists(_RECEIPT, topics.array, parts, offsets),
    }


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
        "code": [APPEND_TIME if clock == _APPENDED else None for clock in records.clocks] or None,
        "spread": [read_spread(key) if is_ours else None for key, is_ours in zip(records.keys, is_hashed, strict=True)],
        **{name: pa.array(column, mask=~is_hashed) for name, column in hashes.items()},
    }


def _id_of(headers: Headers) -> str:
    if not headers:
        return ""
    name, value = headers[-1]
    if name != "transaction-id" or value is None:
        return ""
    tx = value.decode(errors="replace")
    return tx if is_id(tx) else ""


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
