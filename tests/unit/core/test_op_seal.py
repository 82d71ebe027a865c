"""Seals of op records: what they cover, what they leave readable, and when they are needed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.keyring import BridgeKey, Keyring, OpSeals

OLD, NEW = BridgeKey("1", b"o" * 32), BridgeKey("2", b"n" * 32)
VALUE = b'{"v":1,"state":"COMMITTED","at":7}'


def seals(*keys: BridgeKey, believed: dict[int, int] | None = None) -> OpSeals:
    return OpSeals(Keyring(keys), believed)


def test_sealed_value_is_the_same_json_with_one_member_more() -> None:
    """What slices the beginning, or reads members by name, goes on to work."""
    sealed = seals(OLD).seal(3, b"id", VALUE)
    assert sealed.startswith(VALUE[:-1])
    assert {k: v for k, v in json.loads(sealed).items() if k != "mac"} == json.loads(VALUE)
    assert seals(OLD).open(3, 9, b"id", sealed) == VALUE


@pytest.mark.parametrize(
    ("queue_id", "key", "change"),
    [(4, b"id", b""), (3, b"other", b""), (3, b"id", b"COMMITTED")],
    ids=["another queue", "another key", "another value"],
)
def test_seal_proves_queue_key_and_value(queue_id: int, key: bytes, change: bytes) -> None:
    """A record that was the owner's is not, moved elsewhere or changed."""
    sealed = seals(OLD).seal(3, b"id", VALUE)
    assert seals(OLD).open(queue_id, 9, key, sealed.replace(change, b"PREPARED") if change else sealed) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        VALUE,
        VALUE[:-1] + b',"mac":"1-' + b"0" * 32 + b'"}',
        VALUE[:-1] + b',"mac":""}',
        VALUE[:-1] + b',"mac":"\xff-' + b"0" * 32 + b'"}',
        VALUE[:-1] + b',"mac":"1-"}',
    ],
)
def test_without_a_seal_of_ours_nothing_is_believed(value: bytes | None) -> None:
    """Forged, torn, empty: never an error, never a value."""
    assert seals(OLD).open(3, 9, b"id", value) is None
    assert seals(OLD).open(3, 9, None, VALUE) is None


def test_key_that_takes_over_seals_while_the_old_one_is_still_valid() -> None:
    """Two keys at a time: what either sealed is believed, and the first one seals."""
    by_old = seals(OLD).seal(0, b"id", VALUE)
    both = seals(NEW, OLD)
    by_new = both.seal(0, b"id", VALUE)
    assert both.open(0, 9, b"id", by_old) == both.open(0, 9, b"id", by_new) == VALUE
    assert seals(OLD).open(0, 9, b"id", by_new) is None
    assert seals(NEW).open(0, 9, b"id", by_old) is None


def test_what_lay_there_before_there_were_seals_is_believed() -> None:
    """Per queue, below the offset; also what a key sealed that nobody has any more, and without its seal."""
    made = seals(NEW, believed={3: 10})
    assert made.open(3, 9, b"id", VALUE) == VALUE
    assert made.open(3, 9, b"id", seals(OLD).seal(3, b"id", VALUE)) == VALUE
    assert made.open(3, 10, b"id", VALUE) is None
    assert made.open(2, 9, b"id", VALUE) is None


@given(st.binary(max_size=80), st.binary(max_size=200))
def test_any_bytes_are_judged_without_an_error(key: bytes, value: bytes) -> None:
    """And believed only once they were sealed."""
    made = seals(OLD)
    assert made.open(0, 0, key, value) is None
