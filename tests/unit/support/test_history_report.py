"""What people read of a verdict, and that the work grows with the history only."""

import sys
from collections.abc import Iterable, Iterator

import pytest

from tests.support.history.events import Ok
from tests.support.history.evidence import Rules
from tests.support.history.report import write_report
from tests.support.history.verdict import judge
from tests.support.history_script import Told, tell


def report_of(told: Told, most: int = 10) -> str:
    return write_report(told.judge(), told.events, told.evidence(), most)


def test_good_verdict_says_what_was_looked_at() -> None:
    """A verdict on nothing must not look like one on a million."""
    report = report_of(tell("a.p a.c b.p b.abort b.r foreign d.p~0"))
    first, counts = report.splitlines()
    assert first == "GOOD: no promise broken"
    assert counts == (
        "calls 5, unknown calls 1, transactions 2, COMMITTED 1, ROLLED_BACK 1, abandoned 0, records 1, "
        "aborted records 1, foreign records 1, checks 0"
    )


def test_bad_verdict_tells_the_story_in_the_order_of_time() -> None:
    """All that is known of the transaction, from the prepare to what was found."""
    report = report_of(tell("a.p b.p +6000 a.k:UNKNOWN a.c b.c | copy:a"))
    lines = report.splitlines()
    assert lines[0] == "BAD: 1 findings (D 1)"
    assert lines[3] == "D duplicate a: orders-0@2 is one more than the 1 messages prepared"
    told = [line.split()[1].rstrip(":") for line in lines[4:] if "at last" not in line]
    assert told == ["invoke", "journal", "ok", "checks", "journal", "op", "invoke", "journal", "op",
                    "uncommitted", "uncommitted", "committed", "committed", "ok"]  # fmt: skip
    assert [line.split()[2].rstrip(":") for line in lines[4:] if "at last" in line] == ["sql", "shown"]
    assert "b/0" not in report


def test_only_the_first_findings_are_told() -> None:
    """A run that lost everything must still have a readable report."""
    names = [f"x{number}" for number in range(30)]
    script = " ".join(f"{name}.p {name}.c" for name in names) + "|" + " ".join(f" -rec:{name}" for name in names)
    report = report_of(tell(script), most=3)
    assert report.splitlines()[0] == "BAD: 30 findings (L 30)"
    assert report.count("L lost") == 3
    assert report.splitlines()[-1] == "and 27 more"


def test_killed_clients_call_is_in_the_story() -> None:
    """The call that never ended is often the culprit."""
    assert "call=commit" in report_of(tell("a.p a.c~ | -rec:a"))


def test_end_without_its_invoke_is_no_history() -> None:
    """A checker that guesses is none."""
    told = tell("a.p a.c")
    with pytest.raises(ValueError, match="c-9 ended and was never invoked"):
        judge([*told.events, Ok("c-9", 5)], told.evidence())


class Counted:
    """An iterable that counts what is taken, and how often it is begun."""

    def __init__(self, rows: Iterable[object]) -> None:
        self._rows = list(rows)
        self.taken = 0

    def __iter__(self) -> Iterator[object]:
        for row in self._rows:
            self.taken += 1
            yield row


def test_every_part_is_read_once() -> None:
    """A million transactions are read from files."""
    told = tell(" ".join(f"x{n}.p:mkey=M x{n}.c" for n in range(50)) + " consume")
    events = Counted(told.events)
    counted = {name: Counted(rows) for name, rows in told.parts.items()}
    told.parts = counted  # type: ignore[assignment]
    verdict = judge(events, told.evidence(), Rules(**told.rules))  # type: ignore[arg-type]
    assert verdict.is_good
    assert events.taken == 200
    assert {name: part.taken for name, part in counted.items()} == {
        "committed": 50, "uncommitted": 50, "consumed": 50, "journal": 100, "op": 50, "positions": 1, "parked": 0,
        "sql": 50, "shown": 50, "checks": 0, "counts": 1, "gone": 0, "audited": 0,
    }  # fmt: skip


def count_calls(script: str) -> int:
    """Functions called while a history is judged: work without a clock."""
    told = tell(script)
    evidence, rules, calls = told.evidence(), Rules(**told.rules), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        judge(told.events, evidence, rules)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param("x{n}.p:mkey=M x{n}.c", id="all of one ordering key"),
        pytest.param("x{n}.p~ +6000 x{n}.k:ROLLBACK", id="all of killed clients"),
        pytest.param("x{n}.p:from=same~ +6000 x{n}.k:ROLLBACK", id="all of killed clients with the same bytes"),
        pytest.param("x{n}.p:from=same! x{n}.p:from=same~", id="refused and unknown ones with the same bytes"),
        pytest.param("x0.p:key=K~", id="one transaction prepared again and again"),
        pytest.param("x0.p x0.c x0.r x0.get", id="one transaction ended again and again"),
        pytest.param("x{n}.p +9000 x{n}.k x{n}.k x{n}.k x{n}.k", id="many checks"),
        pytest.param("x0.p +9000 x0.k", id="all checks of one transaction"),
    ],
)
def test_work_grows_with_the_history_only(piece: str) -> None:
    """Twice the history, twice the work: a million transactions take minutes, not days."""
    once, twice = (count_calls(" ".join(piece.format(n=n) for n in range(size))) for size in (60, 120))
    assert twice < 2.1 * once


def test_many_copies_of_one_record_are_judged_in_linear_time() -> None:
    """The worst bug must not hang its own report."""
    once, twice = (count_calls("x0.p x0.c |" + " copy:x0" * size) for size in (50, 100))
    assert twice < 2.1 * once
