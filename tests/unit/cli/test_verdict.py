"""api.cli.demo: each defect is counted as what it is."""

from api.cli.demo import VerdictLine, judge

ORDERS = {"A": 10, "B": 20}
GOOD = [VerdictLine("A", 10), VerdictLine("B", 20)]


def test_each_order_once_is_clean() -> None:
    """In any order."""
    verdict = judge(ORDERS, GOOD, GOOD[::-1])
    assert verdict.is_clean
    assert verdict.summary == "0 lost, 0 invented, 0 twice"


def test_missing_order_is_lost() -> None:
    """Also if only the credit is missing."""
    assert judge(ORDERS, GOOD, GOOD[:1]).lost == ["B"]
    assert judge(ORDERS, GOOD[1:], GOOD).lost == ["A"]


def test_order_of_nobody_is_invented() -> None:
    """A message without an order in the producer's database."""
    verdict = judge(ORDERS, [*GOOD, VerdictLine("C", 1)])
    assert verdict.invented == ["C"]
    assert verdict.summary == "0 lost, 1 invented, 0 twice"


def test_second_reading_is_twice() -> None:
    """The same order at two places of the log."""
    verdict = judge(ORDERS, [*GOOD, GOOD[0]])
    assert verdict.twice == ["A"]
    assert not verdict.is_clean


def test_other_content_is_altered() -> None:
    """Exactly once is not enough: it must be the same."""
    verdict = judge(ORDERS, [VerdictLine("A", 11), VerdictLine("B", 20)])
    assert verdict.altered == ["A"]
    assert verdict.summary == "0 lost, 0 invented, 0 twice, 1 altered"
