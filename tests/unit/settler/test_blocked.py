"""Which blocked commits may be tried together."""

from msgspec.structs import replace

from bridge.core import transition
from bridge.core.check_rules import CheckTimes
from bridge.core.record import HalfMessage
from bridge.core.transaction import Transaction
from bridge.core.transition import LogPosition
from bridge.settler.blocked import BlockedSchedule, Try

TO = frozenset({"orders"})


def blocked(name: str, okey: int, end: int) -> Transaction:
    made = transition.prepare(HalfMessage(name, "g", 1, 0), LogPosition(0, 0), okey, CheckTimes()).transaction
    return replace(made, end=end, blocked=True)


def test_try_without_the_first_of_a_chain_has_none_of_that_chain() -> None:
    """O: whatever stands behind it waits too; other chains go on."""
    blocked_queues = {1: ["a", "b", "c"], 2: ["x"]}
    attempt = Try(TO, [blocked("a", 1, 1), blocked("b", 1, 2), blocked("x", 2, 3), blocked("c", 1, 4)])
    assert [t.transaction_id for t in attempt.without(["a"], blocked_queues).transactions] == ["x"]
    assert [t.transaction_id for t in attempt.without(["b"], blocked_queues).transactions] == ["a", "x"]
    assert [t.transaction_id for t in attempt.without([], blocked_queues).transactions] == ["a", "b", "x", "c"]


class Chain:
    """One ordering key with these destinations, in the order of the ends: a, b, c, ..."""

    def __init__(self, *destinations: str) -> None:
        self.names = [chr(ord("a") + n) for n in range(len(destinations))]
        self.live = {name: blocked(name, 1, n) for n, name in enumerate(self.names)}
        self.to = {name: frozenset(each.split()) for name, each in zip(self.names, destinations, strict=True)}
        self.schedule = BlockedSchedule(max_batch=3)

    def choose(self) -> Try:
        chosen = self.schedule.choose_try(self.live, {1: self.names}, self.to, 0)
        assert chosen is not None
        return chosen

    def pass_through(self, chosen: Try) -> list[str]:
        self.schedule.note_success(chosen)
        done = [t.transaction_id for t in chosen.transactions]
        self.names = [name for name in self.names if name not in done]
        return done


def test_sets_go_apart_until_their_topics_work_then_together() -> None:
    """One that nobody has seen working holds up only what stands behind it; no try is larger than a batch."""
    chain = Chain("orders", "credits", "orders credits", "orders", "credits", "orders audit", "orders")
    assert [chain.pass_through(chain.choose()) for _ in range(2)] == [["a"], ["b"]]
    together = chain.choose()
    assert together.is_joint
    assert together.destinations == {"orders", "credits"}
    assert chain.pass_through(together) == ["c", "d", "e"]
    assert chain.pass_through(chain.choose()) == ["f"]
    assert chain.pass_through(chain.choose()) == ["g"]


def test_joint_try_that_fails_is_tried_apart() -> None:
    """Nobody can say which topic it was."""
    chain = Chain("orders", "credits", "orders", "credits")
    for _ in range(2):
        chain.pass_through(chain.choose())
    chain.schedule.note_failure(chain.choose(), "NO_ANSWER", 0)
    apart = chain.choose()
    assert (apart.is_joint, [t.transaction_id for t in apart.transactions]) == (False, ["c"])


def test_refused_topic_and_suspended_transaction_are_never_tried_jointly() -> None:
    """What is known to fail fails nobody else."""
    chain = Chain("orders", "orders", "credits", "orders")
    chain.pass_through(chain.choose())
    chain.schedule.suspend(["d"], 0)
    chain.schedule.note_refused(frozenset({"credits"}), "UNKNOWN_TOPIC", 0)
    assert chain.names == ["c", "d"]
    assert chain.schedule.choose_try(chain.live, {1: chain.names}, chain.to, 0) is None
    chain.names = ["d"]
    assert chain.schedule.choose_try(chain.live, {1: chain.names}, chain.to, 0) is None
