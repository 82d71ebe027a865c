"""What one record does to one transaction, where an error would be slow to show."""

from typing import Any

import pytest
from msgspec.structs import replace

from bridge.core import transition
from bridge.core.check_rules import CheckTimes, is_exhausted
from bridge.core.op_message import AnswerCode
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import (
    BODY_EXPIRED,
    COMMITTED,
    MAX_CHECKS,
    PARKED,
    PREPARED,
    ROLLED_BACK,
    Transaction,
    TransactionState,
)
from bridge.core.transition import Effect, LogPosition, Park, Publish, Reply, Schedule, Transition, WriteOp

ID = "0" * 28
TIMES = CheckTimes(max_checks=2)


def prepared() -> Transaction:
    return transition.prepare(HalfMessage(ID, "g", 1, 0), LogPosition(0, 1_000), 0, TIMES).transaction


def answer(t: Transaction, number: int, source: Source = Source.CHECK) -> Transaction:
    """The transaction after an UNKNOWN with this check number."""
    record = EndRecord(ID, Resolution.UNKNOWN, source, 0, check_number=number)
    return transition.end(t, record, LogPosition(t.at + 1, 2_000), TIMES).transaction


@pytest.mark.parametrize(("number", "source"), [(0, Source.CHECK), (2, Source.CHECK), (1, Source.PRODUCER)])
def test_unknown_that_answers_no_open_check_uses_none_up(number: int, source: Source) -> None:
    """K: repeated by a second owner, or invented."""
    assert answer(prepared(), number, source).check_times == 0


def test_answer_that_comes_twice_uses_up_one_check() -> None:
    """K: both owners of a queue in a take-over may ask, and both answers are appended."""
    once = answer(prepared(), 1)
    assert once.check_times == 1
    assert answer(once, 1).check_times == 1


def test_resumed_transaction_has_all_its_checks_again() -> None:
    """Its numbers go on; its allowance begins anew."""
    asked = answer(answer(prepared(), 1), 2)
    assert is_exhausted(asked, TIMES)
    parked = transition.park(asked, MAX_CHECKS, asked.at).transaction
    resume = ActRecord(ID, Act.RESUME, "me", "because", 0, "a")
    resumed = transition.act(parked, resume, LogPosition(9, 9_000)).transaction
    assert resumed.state is PREPARED
    assert not is_exhausted(resumed, TIMES)
    assert answer(resumed, 3).check_times == 3


T = Transaction(ID, "g", 3, 1_000, 77, PREPARED, 3, 1_000, 7_000, max_checks=5, max_life_s=60, requests=("old",))
PLACE = LogPosition(9, 9_000)


def follow(made: Transition) -> tuple[Transaction, list[Effect]]:
    return made.transaction, list(made.effects)


def test_prepared_begins_with_its_own_limits() -> None:
    """Whoever prepared with a key waits for an answer; others wait for nothing."""
    half = HalfMessage(ID, "g", 1, 0, immunity_s=10, max_checks=5, max_life_s=60)
    made = Transaction(ID, "g", 9, 9_000, 77, PREPARED, 9, 9_000, 19_000, 0, 0, 5, 60)
    assert follow(transition.prepare(half, PLACE, 77, TIMES)) == (made, [Schedule(made)])
    keyed = replace(half, request="a")
    assert follow(transition.prepare(keyed, PLACE, 77, TIMES)) == (
        made,
        [Schedule(made), Reply("a", ID, AnswerCode.ALREADY)],
    )


def test_published_is_committed_by_its_producer_at_once() -> None:
    """Half message and end are one record."""
    half = HalfMessage(ID, "g", 1, 0, idempotency_key="k", request="a", is_published=True)
    made = Transaction(
        ID, "g", 9, 9_000, 77, COMMITTED, 9, 9_000, 15_000, by="producer", end=9, ended_ms=9_000, requests=("a",)
    )
    assert follow(transition.prepare(half, PLACE, 77, TIMES)) == (made, [Publish(made)])


def end_of(
    t: Transaction, resolution: Resolution, source: Source, *, obstacle: str | None = None, **more: Any
) -> Transition:
    return transition.end(t, EndRecord(ID, resolution, source, 0, **more), PLACE, TIMES, obstacle)


@pytest.mark.parametrize(
    ("source", "by"), [(Source.PRODUCER, "producer"), (Source.CHECK, "check"), (Source.OPERATOR, "operator")]
)
@pytest.mark.parametrize("state", [PREPARED, PARKED])
def test_first_resolution_ends_it_wherever_it_comes_from(source: Source, by: str, state: TransactionState) -> None:
    """Who, where and when are kept, why it was parked is not; whoever asked before has had his answer."""
    reason, parked = ("MAX_CHECKS", 6) if state is PARKED else (None, None)
    t = replace(T, state=state, reason=reason, parked=parked, check_times=2, base=1)
    ended = replace(t, state=COMMITTED, at=9, by=by, end=9, ended_ms=9_000, reason=None, requests=("a",))
    assert follow(end_of(t, Resolution.COMMIT, source, request="a", group="g")) == (ended, [Publish(ended)])
    ended = replace(ended, state=ROLLED_BACK, requests=())
    assert follow(end_of(t, Resolution.ROLLBACK, source)) == (ended, [WriteOp(ended)])


def test_answer_to_the_next_check_is_counted_with_its_resolution() -> None:
    """And any other number is not."""
    t = replace(T, check_times=2)
    for number, count in ((3, 3), (2, 2), (4, 2)):
        assert end_of(t, Resolution.COMMIT, Source.CHECK, check_number=number).transaction.check_times == count
    assert end_of(t, Resolution.COMMIT, Source.PRODUCER, check_number=3).transaction.check_times == 2


def test_counted_unknown_puts_the_next_check_off_by_an_interval() -> None:
    """Written, so that no successor asks the same number again."""
    counted = replace(T, check_times=1, at=9, next_due_ms=39_000, requests=("a",))
    made = end_of(T, Resolution.UNKNOWN, Source.CHECK, check_number=1, request="a")
    assert follow(made) == (counted, [WriteOp(counted), Schedule(counted)])


@pytest.mark.parametrize(
    ("t", "resolution", "more", "code"),
    [
        (T, Resolution.COMMIT, {"group": "other"}, AnswerCode.GROUP_MISMATCH),
        (replace(T, state=COMMITTED), Resolution.COMMIT, {"group": "other"}, AnswerCode.GROUP_MISMATCH),
        (replace(T, state=COMMITTED), Resolution.ROLLBACK, {"group": "g"}, AnswerCode.ALREADY),
        (replace(T, state=COMMITTED, blocked=True), Resolution.ROLLBACK, {}, AnswerCode.ALREADY),
        (replace(T, state=ROLLED_BACK), Resolution.COMMIT, {}, AnswerCode.ALREADY),
        (T, Resolution.UNKNOWN, {"group": "g"}, AnswerCode.ALREADY),
        (replace(T, state=PARKED), Resolution.UNKNOWN, {"check_number": 1}, AnswerCode.ALREADY),
        (T, Resolution.COMMIT, {"obstacle": BODY_EXPIRED}, AnswerCode.BODY_EXPIRED),
    ],
)
def test_ends_that_change_nothing_are_answered(
    t: Transaction, resolution: Resolution, more: dict[str, Any], code: AnswerCode
) -> None:
    """If somebody waits; the transaction stays the same."""
    assert follow(end_of(t, resolution, Source.CHECK, request="a", **more)) == (t, [Reply("a", ID, code)])
    assert follow(end_of(t, resolution, Source.CHECK, **more)) == (t, [])


@pytest.mark.parametrize("obstacle", [BODY_EXPIRED, "REFUSED"])
def test_rollback_meets_no_obstacle(obstacle: str) -> None:
    """Nothing is to be published."""
    ended, effects = follow(end_of(T, Resolution.ROLLBACK, Source.OPERATOR, obstacle=obstacle))
    assert (ended.state, ended.blocked, effects) == (ROLLED_BACK, False, [WriteOp(ended)])


def test_commit_that_cannot_be_published_stands() -> None:
    """It is blocked, whether it ends a half message or comes with it."""
    ended, effects = follow(end_of(T, Resolution.COMMIT, Source.CHECK, obstacle="REFUSED", check_number=1, request="a"))
    assert (ended.state, ended.blocked, ended.reason, ended.by, ended.requests) == (
        COMMITTED, True, "REFUSED", "check", ("a",)
    )  # fmt: skip
    assert effects == [WriteOp(ended)]
    half = HalfMessage(ID, "g", 1, 0, is_published=True)
    at_once, effects = follow(transition.prepare(half, PLACE, 7, TIMES, "REFUSED"))
    assert (at_once.state, at_once.blocked, at_once.end, effects) == (COMMITTED, True, PLACE.offset, [WriteOp(at_once)])


def act_on(t: Transaction, act: Act, request: str | None = "a") -> tuple[Transaction, list[Effect]]:
    return follow(transition.act(t, ActRecord(ID, act, "me", "why", 0, request), PLACE))


@pytest.mark.parametrize(
    ("check_times", "due_ms", "next_due_ms"),
    [(0, 20_000, 20_000), (0, 8_000, 8_000), (1, 20_000, 9_000), (1, 8_000, 8_000), (2, 20_000, 9_000)],
)
def test_asking_now_brings_the_next_check_forward_but_never_the_first(
    check_times: int, due_ms: int, next_due_ms: int
) -> None:
    """K: the immunity time is the producer's promise to itself."""
    asked = replace(T, check_times=check_times, next_due_ms=next_due_ms, at=9)
    t = replace(T, check_times=check_times, next_due_ms=due_ms)
    assert act_on(t, Act.CHECK) == (asked, [Schedule(asked), Reply("a", ID, AnswerCode.ALREADY)])
    assert act_on(t, Act.CHECK, None) == (asked, [Schedule(asked)])


def test_acts_on_other_states_change_nothing() -> None:
    """Only what is PREPARED is asked about, only what is PARKED resumed."""
    for state in (PARKED, COMMITTED, ROLLED_BACK):
        t = replace(T, state=state)
        assert act_on(t, Act.CHECK) == (t, [Reply("a", ID, AnswerCode.ALREADY)])
        assert act_on(t, Act.CHECK, None) == (t, [])
    for state in (PREPARED, COMMITTED, ROLLED_BACK):
        t = replace(T, state=state)
        assert act_on(t, Act.RESUME) == (t, [Reply("a", ID, AnswerCode.NOT_PARKED)])
        assert act_on(t, Act.RESUME, None) == (t, [])


def test_resumed_lives_anew_from_now() -> None:
    """Due at once; why it was parked is forgotten, where its copy lies is not."""
    t = replace(T, state=PARKED, reason="MAX_LIFE", by="timer", check_times=4, base=2, parked=6)
    resumed = replace(
        t, state=PREPARED, at=9, by="operator", since_ms=9_000, next_due_ms=9_000, base=4, reason=None, requests=("a",)
    )
    assert act_on(t, Act.RESUME) == (resumed, [WriteOp(resumed), Schedule(resumed)])


def test_blocked_commit_is_given_up_and_nothing_is_published() -> None:
    """The resolution, who gave it and when, and the reason of the block stay; only the asking operator is named."""
    t = replace(T, state=COMMITTED, at=3, end=3, by="check", blocked=True, reason="UNKNOWN_TOPIC", requests=("old",))
    abandoned = replace(t, blocked=False, abandoned=True, at=9, requests=("a",))
    assert act_on(t, Act.ABANDON) == (abandoned, [WriteOp(abandoned)])
    assert not abandoned.is_live
    assert abandoned.is_final


def test_only_a_blocked_commit_is_given_up() -> None:
    """Whatever else it is, and once it is given up, the act changes nothing."""
    others = [replace(T, state=state) for state in (PREPARED, PARKED, COMMITTED, ROLLED_BACK)]
    for t in (*others, replace(T, state=COMMITTED, abandoned=True)):
        assert act_on(t, Act.ABANDON) == (t, [Reply("a", ID, AnswerCode.ALREADY)])
        assert act_on(t, Act.ABANDON, None) == (t, [])


@pytest.mark.parametrize("resolution", list(Resolution))
def test_later_ends_of_an_abandoned_one_change_nothing(resolution: Resolution) -> None:
    """They hear it as it is."""
    t = replace(T, state=COMMITTED, abandoned=True, reason="UNKNOWN_TOPIC")
    assert follow(end_of(t, resolution, Source.PRODUCER, request="a")) == (t, [Reply("a", ID, AnswerCode.ALREADY)])


def test_moves_of_the_owner_name_nobody_who_waits() -> None:
    """Parked, blocked, tried again, put back: the whole of what each changes."""
    parked = replace(T, state=PARKED, at=8, by="timer", reason="MAX_LIFE", requests=())
    assert follow(transition.park(T, "MAX_LIFE", 8)) == (parked, [Park(parked)])
    ended = replace(T, state=COMMITTED)
    blocked = replace(ended, blocked=True, reason="ORDER")
    assert follow(transition.block(ended, "ORDER")) == (blocked, [WriteOp(blocked)])
    released = replace(ended, at=8)
    assert follow(transition.unblock(blocked, 8)) == (released, [Publish(released)])


@pytest.mark.parametrize(
    ("blocked", "parked", "is_old", "is_copied"),
    [(True, None, True, True), (True, 6, True, False), (True, None, False, False), (False, None, True, True)],
)
def test_carrying_forward_copies_the_body_of_an_old_one(
    blocked: bool, parked: int | None, is_old: bool, is_copied: bool
) -> None:
    """Once, before the journal loses it."""
    t = replace(T, blocked=blocked, parked=parked)
    again = replace(t, requests=())
    assert follow(transition.carry_forward(t, is_old=is_old)) == (again, [Park(again) if is_copied else WriteOp(again)])
