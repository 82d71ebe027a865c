"""Which blocked commits may be tried together."""

from msgspec.structs import replace

from bridge.core import transition
from bridge.core.check_rules import CheckTimes
from bridge.core.record import HalfMessage
from bridge.core.transaction import ORDER, SPLIT, UNTRIED, Transaction
from bridge.core.transition import LogPosition
from bridge.settler.blocked import BlockedSchedule, Try

TO = frozenset({"orders"})


def blocked(name: str, ordering_hash: int, end: int) -> Transaction:
    made = transition.prepare(HalfMessage(name, "g", 1, 0), LogPosition(0, 0), ordering_hash, CheckTimes()).transaction
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


def chains_of(*names: str) -> tuple[dict[str, Transaction], dict[int, list[str]]]:
    """Each name a chain of its own, ended in this order; the chains come in any."""
    live = {name: blocked(name, ordering_hash, ordering_hash) for ordering_hash, name in enumerate(names, start=1)}
    return live, {t.ordering_hash: [name] for name, t in reversed(live.items())}


def names_of(chosen: Try | None) -> list[str]:
    return [t.transaction_id for t in chosen.transactions] if chosen else []


def test_commit_that_fails_alone_waits_longer_each_time() -> None:
    """From a second to a minute; its set is the reason meanwhile, and success clears it in two steps."""
    schedule, (live, chains), now, pauses = BlockedSchedule(max_batch=3), chains_of("a"), 0, []
    for _ in range(9):
        chosen = schedule.choose_try(live, chains, {"a": TO}, now)
        assert chosen is not None
        schedule.note_failure(chosen, "NO_ANSWER", now)
        due_ms = schedule.next_due_ms(now)
        pauses.append(due_ms - now)
        assert schedule.choose_try(live, chains, {"a": TO}, due_ms - 1) is None
        now = due_ms
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    both = TO | {"credits"}
    assert [schedule.failing_reason(to) for to in (TO, both, both - TO)] == ["NO_ANSWER", "NO_ANSWER", None]
    states = []
    for _ in range(2):
        chosen = schedule.choose_try(live, chains, {"a": TO}, now)
        assert chosen is not None
        schedule.note_success(chosen._replace(is_joint=False))
        states.append((schedule.failing_reason(TO), schedule.is_any_failing))
    assert states == [(None, True), (None, False)]
    assert schedule.next_due_ms(now) == now + 1_000


def test_many_that_fail_are_tried_in_eighths_and_twice_as_many_after_each_success() -> None:
    """At once: nobody knows yet which one is bad. A joint try that fails takes nothing back."""
    schedule = BlockedSchedule(max_batch=64)
    live, chains = chains_of(*[f"{n:03}" for n in range(100)])
    to = dict.fromkeys(live, TO)
    sizes = []
    for _ in range(4):
        chosen = schedule.choose_try(live, chains, to, 0)
        assert chosen is not None
        assert not chosen.is_joint
        sizes.append(len(chosen.transactions))
        assert names_of(chosen) == [f"{n:03}" for n in range(sizes[-1])]
        if len(sizes) == 1:
            schedule.note_failure(chosen, "NO_ANSWER", 0)
            continue
        schedule.note_success(chosen)
        joint = schedule.choose_try(live, chains, to, 0)
        assert joint is not None
        assert (joint.is_joint, names_of(joint)) == (True, [f"{n:03}" for n in range(64)])
        schedule.note_failure(joint, "NO_ANSWER", 0)
    assert sizes == [64, 8, 16, 32]
    assert not schedule.is_any_failing


def test_set_that_is_refused_holds_up_no_other() -> None:
    """The one that ended first goes first; a chain waits with its first, also where nobody knows where that goes."""
    schedule, (live, chains) = BlockedSchedule(), chains_of("a", "b", "c", "d")
    live["e"] = blocked("e", 1, 9)
    chains[1].append("e")
    to = {"a": TO, "b": frozenset({"credits"}), "c": TO, "e": frozenset({"credits"})}
    schedule.note_refused(TO, "LEADERLESS", 0)
    assert names_of(schedule.choose_try(live, chains, to, 999)) == ["b"]
    assert names_of(schedule.choose_try(live, chains, to, 1_000)) == ["a", "c"]
    again = schedule.choose_try(live, chains, to, 1_000)
    assert again is not None
    schedule.note_success(again._replace(is_joint=False, transactions=[]))
    assert not schedule.is_any_failing
    schedule.note_refused(TO, "LEADERLESS", 0)
    schedule.suspend(["b"], 500)
    assert schedule.choose_try(live, chains, to, 600) is None
    assert schedule.next_due_ms(600) == 1_000
    assert schedule.next_due_ms(1_000) == 1_500
    assert names_of(schedule.choose_try(live, chains, to | {"a": frozenset({"audit"})}, 1_500)) == ["a"]


def test_one_that_failed_is_tried_after_others_of_its_set() -> None:
    """Where only few may be tried at once, it must not be the first of them for ever."""
    schedule, (live, chains) = BlockedSchedule(max_batch=8), chains_of("bad", "x", "y")
    to = dict.fromkeys(live, TO)
    alone = Try(TO, [live["bad"]])
    schedule.note_failure(alone, "MESSAGE_TOO_LARGE", 0)
    assert names_of(schedule.choose_try(live, chains, to, 1_000)) == ["x"]
    schedule.forget(["bad"])
    assert names_of(schedule.choose_try(live, chains, to, 1_000)) == ["bad"]


def test_split_commit_that_is_not_about_to_be_tried_gets_its_reason() -> None:
    """What its destinations failed with, else that it stands behind another, else that nobody came to it."""
    schedule = BlockedSchedule()
    schedule.note_refused(frozenset({"gone"}), "UNKNOWN_TOPIC", 0)
    rows = [
        ("young", 1, SPLIT, 100), ("behind", 1, SPLIT, 100), ("old", 2, SPLIT, 99), ("known", 3, "LEADERLESS", 0),
        ("after", 3, SPLIT, 100), ("gone", 4, SPLIT, 99), ("gone too", 4, SPLIT, 100), ("unread", 5, SPLIT, 100),
    ]  # fmt: skip
    live = {
        name: replace(blocked(name, ordering_hash, n), reason=reason, ended_ms=ended_ms)
        for n, (name, ordering_hash, reason, ended_ms) in enumerate(rows)
    }
    chains: dict[int, list[str]] = {}
    for t in live.values():
        chains.setdefault(t.ordering_hash, []).append(t.transaction_id)
    to = {name: frozenset({name.split()[0]}) for name in live if name != "unread"}
    behind = {"after": ORDER, "gone too": "UNKNOWN_TOPIC"}
    late = {"old": UNTRIED, "gone": "UNKNOWN_TOPIC"}
    assert schedule.explain_split(live, chains, to, 100) == behind | late
    everything = behind | late | {"young": UNTRIED, "behind": ORDER, "unread": UNTRIED}
    assert schedule.explain_split(live, chains, to, None) == everything


def test_set_that_is_published_with_others_works_too() -> None:
    """Else its commits would be told of what was, and be tried apart, as long as others come along with them (A)."""
    orders, both = frozenset({"orders"}), frozenset({"orders", "credits"})
    schedule = BlockedSchedule()
    for destinations in (orders, frozenset({"audit"})):
        schedule.note_refused(destinations, "UNKNOWN_TOPIC", 0)
    schedule.note_success(Try(both, [blocked("a", 1, 1)], is_joint=True))
    assert schedule.failing_reason(orders) is schedule.failing_reason(both) is None
    assert schedule.failing_reason(frozenset({"audit", "orders"})) == "UNKNOWN_TOPIC"
