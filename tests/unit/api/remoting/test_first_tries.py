"""Which sends are first tries: never one whose key may be old, or that may have been held up on its way."""

import pytest

from api.remoting.gathering import FirstTries, RecentUniqueKeys

MONTH_MS = 1_793_491_200_000  # 2026-11-01 in UTC
NOW_MS = MONTH_MS + 24 * 86_400_000
KAFKA_MS = NOW_MS + 7_777  # the clocks need not agree


def key_of(made_ms: int, month_ms: int = MONTH_MS) -> str:
    """As MessageClientIDSetter makes it: address, process, loader, time since the month began, counter."""
    return f"7F000001{1234:04X}{5:08X}{made_ms - month_ms:08X}{7:04X}"


def learned(month_ms: int = MONTH_MS) -> FirstTries:
    """A connection that has sent for a while, and proved at KAFKA_MS that it reads."""
    tries = FirstTries()
    for n in range(9):
        tries.find(key_of(NOW_MS - 10_000 + n, month_ms), NOW_MS - 10_000 + n, KAFKA_MS)
    tries.note_answer("t1", KAFKA_MS)
    tries.note_end("t1")
    return tries


@pytest.mark.parametrize("zone_ms", [0, 8 * 3_600_000, -5 * 3_600_000, 20_700_000])
def test_a_fresh_key_is_a_first_try_since_what_was_proved(zone_ms: int) -> None:
    """In every time zone; the age of the key is taken off."""
    month = MONTH_MS - zone_ms
    tries = learned(month)
    assert tries.find(key_of(NOW_MS, month), NOW_MS + 3, KAFKA_MS + 1_000) == KAFKA_MS - 3


@pytest.mark.parametrize(("age_ms", "later_ms", "key"), [
    (201, 0, None),  # another try, or a message that is sent again
    (900_000, 0, None),  # a quarter of an hour later, to the millisecond
    (3_600_000, 0, None),
    (-1, 0, None),  # made after it was sent: another clock
    (0, 2_001, None),  # nothing proves that it was not held up
    (0, -1, None),  # Kafka's time was set back
    (0, 0, "order-1"),  # no key of RocketMQ's
    (0, 0, "Z" * 32),
])  # fmt: skip
def test_whatever_may_be_a_repeat_is_looked_up(age_ms: int, later_ms: int, key: str | None) -> None:
    """None: not known."""
    assert learned().find(key or key_of(NOW_MS - age_ms), NOW_MS, KAFKA_MS + later_ms) is None


def test_nothing_is_believed_before_enough_is_known() -> None:
    """Neither the month of a new connection, nor that it reads."""
    tries = FirstTries()
    tries.note_answer("t1", KAFKA_MS)
    tries.note_end("t1")
    assert [tries.find(key_of(NOW_MS), NOW_MS, KAFKA_MS) for _ in range(8)] == [None] * 8
    assert tries.find(key_of(NOW_MS), NOW_MS, KAFKA_MS) == KAFKA_MS


def test_an_end_of_another_transaction_proves_nothing() -> None:
    """It may have been written before our answer."""
    tries = learned()
    tries.note_answer("t2", KAFKA_MS + 20_000)
    tries.note_end("elsewhere")
    assert tries.find(key_of(NOW_MS), NOW_MS, KAFKA_MS + 20_000) is None
    tries.note_end("t2")
    assert tries.find(key_of(NOW_MS), NOW_MS, KAFKA_MS + 20_000) == KAFKA_MS + 20_000


def test_a_key_is_new_once() -> None:
    """A message sent again is looked up, whichever connection it comes by; so is everything while there is no room."""
    keys = RecentUniqueKeys()
    assert [keys.add("g", "k", 0), keys.add("g", "k", 1), keys.add("h", "k", 1)] == [True, False, True]
    assert not keys.add("g", "k", 5_001)
    assert keys.add("g", "k", 20_000)


def test_a_key_that_no_client_makes_is_not_kept() -> None:
    """One of 32 KB, a hundred thousand times, would take gigabytes for seconds. It is looked up."""
    keys = RecentUniqueKeys()
    assert not keys.add("shop", "k" * 30_000, 0)
    assert not keys.add("g" * 30_000, key_of(NOW_MS), 0)
    assert keys.add("shop", key_of(NOW_MS), 0)
