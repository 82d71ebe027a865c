"""History + evidence -> verdict.

events = LineReader(Event, *paths)                      # of clients, each with a LineWriter of its own
op, positions = read_op(stored)                         # raw_records; likewise real topics, journal, parked topic
evidence = Evidence(committed, uncommitted, op=op, positions=positions, sql=rows, checks=LineReader(CheckCall, ...))
verdict = judge(events, evidence, Rules(is_foreign=...))
print(write_report(verdict, events, evidence))          # reads what can be iterated again once more
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from tests.support.history import checks, honesty, order, views, visibility
from tests.support.history.events import Event
from tests.support.history.evidence import Evidence, Rules
from tests.support.history.facts import Facts
from tests.support.history.joined import Joined, join
from tests.support.history.violation import Violation

OnTransaction = Callable[[Joined, Facts], Iterator[Violation]]

ON_EACH: Sequence[OnTransaction] = (
    visibility.find_phantoms,
    visibility.find_lost,
    visibility.compare_messages,
    visibility.compare_times,
    visibility.compare_copies,
    views.compare_decisions,
    views.compare_abandoned,
    views.compare_shown,
    views.compare_answers,
    views.compare_groups,
    views.compare_receipts,
    checks.find_early_checks,
    checks.find_late_checks,
    checks.find_too_many_checks,
    checks.find_miscounted_checks,
    checks.find_strange_checks,
    checks.find_groundless_parks,
    honesty.find_false_refusals,
    honesty.find_false_accepts,
    honesty.find_unrecovered,
    honesty.find_forgotten,
    honesty.find_bad_parks,
    honesty.find_unsettled,
)
ON_ALL: Sequence[Callable[[Joined], Iterator[Violation]]] = (
    order.find_out_of_order,
    views.check_counts,
    honesty.find_groundless_refusals,
)


class Verdict(Struct):
    """What was found. `counts`: how much was looked at; a verdict on nothing is no verdict."""

    violations: list[Violation]
    counts: dict[str, int]

    @property
    def is_good(self) -> bool:
        """Whether every promise held, as far as this history can tell."""
        return not self.violations

    def promises(self) -> dict[str, int]:
        """Number of findings by the letter of the promise."""
        return dict(Counter(violation.kind.promise for violation in self.violations))


def judge(events: Iterable[Event], evidence: Evidence, rules: Rules | None = None) -> Verdict:
    """Time and memory grow with the number of transactions. Raises ValueError for a history that is not one."""
    joined = join(events, evidence, rules or Rules())
    return Verdict(list(find_violations(joined)), _count(joined))


def find_violations(joined: Joined) -> Iterator[Violation]:
    """What joining found, then what each pass finds."""
    yield from joined.found
    for facts in joined.transactions.values():
        for on_each in ON_EACH:
            yield from on_each(joined, facts)
    for on_all in ON_ALL:
        yield from on_all(joined)


def _count(joined: Joined) -> dict[str, int]:
    states = Counter(facts.state or "NONE" for facts in joined.transactions.values())
    return {
        "calls": joined.told.calls,
        "unknown calls": joined.told.unknown_calls,
        "transactions": len(joined.transactions),
        **{state: states[state] for state in sorted(states)},
        "abandoned": sum(facts.is_abandoned() for facts in joined.transactions.values()),
        "records": sum(map(len, joined.visible.values())),
        "aborted records": joined.aborted,
        "foreign records": joined.foreign,
        "checks": sum(len(facts.checks) for facts in joined.transactions.values()),
    }
