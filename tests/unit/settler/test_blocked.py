"""Which blocked commits may be tried together."""

from msgspec.structs import replace

from bridge.core import transition
from bridge.core.config import CheckTimes
from bridge.core.record import HalfMessage
from bridge.core.transaction import Transaction
from bridge.core.transition import Place
from bridge.settler.blocked import Try

TO = frozenset({"orders"})


def blocked(name: str, okey: int, end: int) -> Transaction:
    made = transition.prepare(HalfMessage(name, "g", 1, 0), Place(0, 0), okey, CheckTimes()).transaction
    return replace(made, end=end, blocked=True)


def test_try_without_the_first_of_a_chain_has_none_of_that_chain() -> None:
    """O: whatever stands behind it waits too; other chains go on."""
    chains = {1: ["a", "b", "c"], 2: ["x"]}
    attempt = Try(TO, [blocked("a", 1, 1), blocked("b", 1, 2), blocked("x", 2, 3), blocked("c", 1, 4)])
    assert [t.transaction_id for t in attempt.without(["a"], chains).transactions] == ["x"]
    assert [t.transaction_id for t in attempt.without(["b"], chains).transactions] == ["a", "x"]
    assert [t.transaction_id for t in attempt.without([], chains).transactions] == ["a", "b", "x", "c"]
