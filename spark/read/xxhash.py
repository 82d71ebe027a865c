"""Spark's `xxhash64` of many rows at once, so that a hash made in Python equals one made in SQL.

A hash of several values is a chain: the hash of each is the seed of the next, and 42 that of the first; a null changes
nothing.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Sizes = NDArray[np.int64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
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
