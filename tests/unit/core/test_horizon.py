"""How far back a successor must read, and what is put back so that it need not."""

from bridge.core.pending_table import PendingTable
from bridge.core.position import LowWatermarkConfig, LowWatermarks
from bridge.core.transaction import COMMITTED, Transaction

CONFIG = LowWatermarkConfig(remember_ended_ms=100, journal_records=10, journal_ms=1_000, op_messages=20, op_ms=5_000)


def live_one(number: int, half: int = 0, appended_ms: int = 0) -> Transaction:
    return Transaction(f"{number}", "g", half, appended_ms, 0)


def horizon_of(*transactions: Transaction) -> tuple[LowWatermarks, dict[str, Transaction]]:
    """A horizon that knows these as live ones without op message, and the owner's table."""
    live = {t.transaction_id: t for t in transactions}
    horizon = LowWatermarks(live, PendingTable(), CONFIG)
    for t in transactions:
        horizon.add_half(t)
    return horizon, live


def test_oldest_half_message_without_op_message_holds_the_journal() -> None:
    """Until it is written or has ended."""
    horizon, live = horizon_of(live_one(0, 3), live_one(1, 5), live_one(2, 7))
    assert horizon.first_journal_offset(9) == 3
    horizon.mark("0", 50, 0)
    assert horizon.first_journal_offset(9) == 5
    del live["1"]
    assert horizon.first_journal_offset(9) == 7
    del live["2"]
    assert horizon.first_journal_offset(9) == 9


def test_last_op_message_of_the_oldest_live_one_holds_the_op_topic() -> None:
    """Marked again, it holds what was written last; ended, it holds nothing but its memory."""
    horizon, _ = horizon_of(live_one(0), live_one(1))
    horizon.mark("0", 40, 0)
    horizon.mark("1", 50, 0)
    assert horizon.first_op_offset(0, 60, 0) == 40
    horizon.mark("0", 55, 0)
    assert horizon.first_op_offset(0, 60, 0) == 50
    horizon.end("1", 57, 0)
    assert horizon.first_op_offset(0, 60, 0) == 55
    horizon.end("0", 58, 0)
    horizon.monotonic_ms = 100
    assert horizon.first_op_offset(0, 60, 101) == 60


def test_ended_one_is_remembered_to_the_end_of_its_time() -> None:
    """The op message of the first that still counts is kept, and no id is told before its time, or twice."""
    horizon, _ = horizon_of()
    horizon.end("a", 10, 500)
    horizon.end("b", 20, 550)
    horizon.monotonic_ms = 1_000
    assert horizon.first_op_offset(0, 60, 600) == 10
    assert list(horizon.forget_ended(600)) == []
    assert horizon.first_op_offset(0, 60, 601) == 20
    assert list(horizon.forget_ended(601)) == ["a"]
    assert list(horizon.forget_ended(651)) == ["b"]
    assert list(horizon.forget_ended(10_000)) == []
    assert horizon.first_op_offset(0, 60, 651) == 60


def test_ended_one_is_remembered_for_as_long_by_the_owners_clock_too() -> None:
    """Journal time may have jumped."""
    horizon, _ = horizon_of()
    horizon.monotonic_ms = 7_000
    horizon.end("a", 10, 500)
    horizon.monotonic_ms = 7_099
    assert horizon.first_op_offset(0, 60, 10_000) == 10
    assert list(horizon.forget_ended(10_000)) == []
    horizon.monotonic_ms = 7_100
    assert horizon.first_op_offset(0, 60, 10_000) == 60
    assert list(horizon.forget_ended(10_000)) == ["a"]


def test_first_position_beyond_l_holds_the_op_topic() -> None:
    """Ends between L and that S are told by op messages that came with it, or later."""
    horizon, _ = horizon_of()
    horizon.move(5, 100)
    horizon.move(5, 110)  # S did not move
    horizon.move(8, 120)
    assert horizon.first_op_offset(4, 130, 0) == 100
    assert horizon.first_op_offset(5, 130, 0) == 120
    assert horizon.first_op_offset(8, 130, 0) == 130
    horizon.move(9, 140)
    assert horizon.first_op_offset(8, 150, 0) == 140


def test_half_message_is_carried_forward_for_its_distance_or_its_age() -> None:
    """Beyond the bound, not at it; the oldest first, up to the number wanted."""
    horizon, live = horizon_of(live_one(0, 2, 50), live_one(1, 3, 60), live_one(2, 4, 70))
    assert horizon.choose_to_carry(12, 0, 1_050, 9) == []
    assert horizon.choose_to_carry(13, 0, 0, 9) == ["0"]
    assert horizon.choose_to_carry(14, 0, 0, 9) == ["0", "1"]
    assert horizon.choose_to_carry(0, 0, 1_051, 9) == ["0"]
    assert horizon.choose_to_carry(99, 0, 0, 2) == ["0", "1"]
    assert horizon.choose_to_carry(99, 0, 0, 0) == []
    horizon.mark("0", 5, 0)
    del live["1"]
    assert horizon.choose_to_carry(99, 0, 0, 9) == ["2"]


def test_op_message_is_carried_forward_for_its_distance_or_its_age() -> None:
    """Of a live one, by its last op message."""
    horizon, live = horizon_of()
    for number in range(3):
        live[f"{number}"] = live_one(number)
        horizon.mark(f"{number}", 50 + number, 100 + number)
    assert horizon.choose_to_carry(0, 70, 1_350, 9) == []
    assert horizon.choose_to_carry(0, 71, 0, 9) == ["0"]
    assert horizon.choose_to_carry(0, 72, 0, 9) == ["0", "1"]
    assert horizon.choose_to_carry(0, 0, 1_351, 9) == ["0"]  # a quarter of the age
    assert horizon.choose_to_carry(0, 99, 0, 2) == ["0", "1"]
    assert horizon.choose_to_carry(0, 99, 0, 0) == []
    horizon.mark("0", 90, 0)
    del live["1"]
    assert horizon.choose_to_carry(0, 99, 0, 9) == ["2"]


def test_many_live_ones_are_not_written_again_and_again() -> None:
    """Each is written at most once for four op messages of all: the bound grows with their number."""
    horizon, live = horizon_of()
    live |= {f"{number}": live_one(number) for number in range(10)}
    horizon.mark("0", 50, 0)
    assert horizon.choose_to_carry(0, 50 + 40, 0, 9) == []
    assert horizon.choose_to_carry(0, 50 + 41, 0, 9) == ["0"]


def test_half_message_of_an_earlier_life_of_the_id_holds_nothing() -> None:
    """A repeat after the first was forgotten has its own half message."""
    horizon, live = horizon_of(live_one(0, 2))
    live["0"] = Transaction("0", "g", 6, 0, 0, COMMITTED, blocked=True)
    horizon.add_half(live["0"])
    assert horizon.choose_to_carry(99, 0, 0, 9) == ["0"]
    assert horizon.first_journal_offset(9) == 6


def blocked_one(number: int, appended_ms: int, parked: int | None = None) -> Transaction:
    return Transaction(f"{number}", "g", 0, appended_ms, 0, COMMITTED, blocked=True, parked=parked)


def test_old_blocked_ones_are_carried_forward_however_young_their_op_messages() -> None:
    """At the age at which the journal may lose their body, the oldest first, up to the number wanted, each once."""
    horizon, live = horizon_of()
    live |= {"0": blocked_one(0, 30), "1": blocked_one(1, 10), "2": blocked_one(2, 20), "3": live_one(3)}
    live["4"] = blocked_one(4, 0, parked=7)
    for name in live:
        horizon.mark(name, 50, 5_000)
    assert horizon.choose_to_carry(0, 50, 5_009, 9) == []
    assert horizon.choose_to_carry(0, 50, 5_010, 9) == ["1"]
    horizon.mark("1", 51, 5_000)  # its next try
    assert horizon.choose_to_carry(0, 50, 5_030, 1) == ["2"]
    assert horizon.choose_to_carry(0, 50, 5_030, 0) == []
    assert horizon.choose_to_carry(0, 50, 5_030, 9) == ["0"]
    assert horizon.choose_to_carry(0, 50, 6_250, 9) == []


def test_blocked_ones_that_need_no_copy_any_more_are_passed_over() -> None:
    """Gone, tried with success, or copied meanwhile; they use up nothing of the number wanted."""
    horizon, live = horizon_of()
    for number in range(5):
        live[f"{number}"] = blocked_one(number, number)
        horizon.mark(f"{number}", 50, 5_000)
    del live["0"]
    live["1"] = live_one(1)
    live["2"] = blocked_one(2, 2, parked=7)
    assert horizon.choose_to_carry(0, 50, 5_100, 2) == ["3", "4"]


def test_limit_of_what_is_carried_forward_is_for_all_reasons_together() -> None:
    """Two half messages leave room for one of three blocked ones."""
    horizon, live = horizon_of(live_one(0), live_one(1))
    for number in (2, 3, 4):
        live[f"{number}"] = blocked_one(number, number)
        horizon.mark(f"{number}", 50, 5_000)
    assert horizon.choose_to_carry(99, 50, 5_100, 3) == ["0", "1", "2"]


def test_ended_id_is_noted_anew_when_it_is_blocked_again() -> None:
    """A repeat after the first was forgotten is another transaction."""
    horizon, live = horizon_of()
    for _ in range(2):
        live["0"] = blocked_one(0, 0)
        horizon.mark("0", 50, 5_000)
        assert horizon.choose_to_carry(0, 50, 5_100, 9) == ["0"]
        horizon.end("0", 51, 5_000)
