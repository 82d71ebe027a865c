"""What one record does to one transaction, where an error would be slow to show."""

import pytest

from bridge.core import transition
from bridge.core.check_rules import is_exhausted
from bridge.core.config import CheckTimes
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.transaction import MAX_CHECKS, PREPARED, Transaction
from bridge.core.transition import Place

ID = "0" * 28
TIMES = CheckTimes(max_checks=2)


def prepared() -> Transaction:
    return transition.prepare(HalfMessage(ID, "g", 1, 0), Place(0, 1_000), 0, TIMES).transaction


def answer(t: Transaction, number: int, source: Source = Source.CHECK) -> Transaction:
    """The transaction after an UNKNOWN with this check number."""
    record = EndRecord(ID, Resolution.UNKNOWN, source, 0, check_number=number)
    return transition.end(t, record, Place(t.at + 1, 2_000), TIMES, has_body=True).transaction


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
    resumed = transition.act(parked, resume, Place(9, 9_000)).transaction
    assert resumed.state is PREPARED
    assert not is_exhausted(resumed, TIMES)
    assert answer(resumed, 3).check_times == 3
