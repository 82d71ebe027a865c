"""Recovery figures by hand."""

from tests.chaos.figures import (
    ALONE,
    BROKER_BACK,
    KILL_TO_COMMIT,
    TAKE_OVER,
    Commit,
    Distribution,
    Recovery,
    distribution,
    distributions,
    find_recoveries,
    first_commit_after,
    read_commits,
)
from tests.chaos.schedule import Done, Kind
from tests.support.history.events import Call, Invoke, Ok, Unknown

COMMITS = [Commit(900, 2_500, 0), Commit(1_000, 5_000, 1), Commit(1_500, 1_900, 0), Commit(4_000, 4_100, 1)]


def test_first_commit_is_the_first_answered_one_that_was_asked_afterwards() -> None:
    """One that was under way before the fault proves nothing about it."""
    assert first_commit_after(COMMITS, 1_000) == 0.9
    assert first_commit_after(COMMITS, 1_000, queue=1) == 3.1
    assert first_commit_after(COMMITS, 901, queue=0) == 0.999
    assert first_commit_after(COMMITS, 4_001) is None


def test_commits_are_those_that_clients_were_told_of() -> None:
    """Sorted by the asking; neither rollbacks nor unknown ones; the queue is in the id."""
    first, second = "00" + "a" * 26, "0v" + "b" * 26
    events = [
        Invoke("a-0", 20, Call.COMMIT, first),
        Invoke("a-1", 10, Call.COMMIT, second),
        Invoke("a-2", 30, Call.ROLLBACK, first),
        Invoke("a-3", 30, Call.COMMIT, first),
        Ok("a-0", 25, 200, first, "COMMITTED"),
        Ok("a-1", 27, 200, second, "COMMITTED"),
        Ok("a-2", 35, 200, first, "ROLLED_BACK"),
        Unknown("a-3", 35),
    ]
    assert read_commits(events) == [Commit(10, 27, 31), Commit(20, 25, 0)]


def test_each_fault_counts_where_it_belongs() -> None:
    """A killed settler loses its queues, a frozen one only after its session; brokers count from their return."""
    done = [
        Done(Kind.KILL, "settler", 1_000, 1_100, queues=(0, 1)),
        Done(Kind.PAUSE, "settler", 1_000, 3_000, queues=(0,)),
        Done(Kind.PAUSE, "settler", 1_400, 8_000, queues=(0,)),
        Done(Kind.BROKER_KILL, "kafka-1", 3_000, 3_900),
        Done(Kind.SQL_KILL, "PostgreSQL", 0, 1_200),
        Done(Kind.KILL_CLIENT, "producer-0", 1_450, 1_460),
    ]
    assert find_recoveries(COMMITS, done) == [
        Recovery(KILL_TO_COMMIT, 1_000, 0.9, is_alone=False),  # SQL was away
        Recovery(TAKE_OVER, 1_000, 0.9, is_alone=False),
        Recovery(TAKE_OVER, 1_000, 3.1, is_alone=False),
        Recovery(TAKE_OVER, 1_400, 0.5, is_alone=True),
        Recovery(BROKER_BACK, 3_900, 0.2, is_alone=True),
    ]


def test_what_happened_alone_is_shown_beside_the_rest() -> None:
    """Nobody can recover faster than what it needs."""
    told = distributions([Recovery(TAKE_OVER, 0, 3.0, is_alone=False), Recovery(TAKE_OVER, 9, 1.0, is_alone=True)])
    assert told[TAKE_OVER] == {"": distribution([3.0, 1.0]), ALONE: distribution([1.0])}
    assert told[BROKER_BACK] == {"": None, ALONE: None}


def test_distributions_tell_the_ends_too() -> None:
    """One value is its own distribution, none has none."""
    assert distribution([]) is None
    assert distribution([2.0]) == Distribution(1, 2.0, 2.0, 2.0, 2.0, 2.0)
    assert distribution([4.0, 0.0, 1.0, 3.0, 2.0]) == Distribution(5, 0.0, 2.0, 3.6, 3.96, 4.0)
