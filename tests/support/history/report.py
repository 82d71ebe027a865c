"""A verdict for people: one line, the counts, and the stories of the first transactions that went wrong."""

from collections.abc import Iterable, Iterator

import msgspec

from tests.support.history.content import Content, show_mark
from tests.support.history.events import Event, Invoke
from tests.support.history.evidence import Evidence
from tests.support.history.verdict import Verdict

_PARTS = ("journal", "op", "parked", "uncommitted", "committed", "consumed", "sql", "shown", "checks")
_TIMES = ("at_ms", "stored_ms", "timestamp_ms")


def write_report(verdict: Verdict, events: Iterable[Event], evidence: Evidence, most: int = 10) -> str:
    """`events` and the parts of the evidence are read once more, for the stories: they must begin anew."""
    if verdict.is_good:
        return f"GOOD: no promise broken\n{_counts(verdict)}\n"
    first = verdict.violations[:most]
    wanted = {violation.transaction_id for violation in first if violation.transaction_id is not None}
    stories = _tell(wanted, events, evidence)
    letters = ", ".join(f"{letter} {number}" for letter, number in sorted(verdict.promises().items()))
    lines = [f"BAD: {len(verdict.violations)} findings ({letters})", _counts(verdict)]
    told: set[str] = set()
    for violation in first:
        lines += ["", str(violation)]
        if violation.transaction_id is not None and violation.transaction_id not in told:
            told.add(violation.transaction_id)
            lines += stories.get(violation.transaction_id, [])
    if len(verdict.violations) > most:
        lines += ["", f"and {len(verdict.violations) - most} more"]
    return "\n".join(lines) + "\n"


def _counts(verdict: Verdict) -> str:
    return ", ".join(f"{name} {number}" for name, number in verdict.counts.items())


def _tell(wanted: set[str], events: Iterable[Event], evidence: Evidence) -> dict[str, list[str]]:
    """Events of these transactions in the order of time; of equal times, clients first."""
    told: dict[str, list[tuple[int, str]]] = {transaction_id: [] for transaction_id in wanted}
    for transaction_id, event in _events_of(wanted, events):
        told[transaction_id].append((event.at_ms, f"{type(event).__name__.lower()} {_show(event)}"))
    for part in _PARTS:
        for row in getattr(evidence, part) or ():
            if row.transaction_id in told:
                at_ms = next((getattr(row, name) for name in _TIMES if hasattr(row, name)), None)
                last = 1 << 62  # views without a time of their own come last
                told[row.transaction_id].append((last if at_ms is None else at_ms, f"{part}: {_show(row)}"))
    return {
        transaction_id: [f"    {at_ms if at_ms < 1 << 62 else 'at last':>14}  {text}" for at_ms, text in
                         sorted(lines, key=lambda line: line[0])]
        for transaction_id, lines in told.items()
    }  # fmt: skip


def _events_of(wanted: set[str], events: Iterable[Event]) -> Iterator[tuple[str, Event]]:
    open_calls: dict[str, Invoke] = {}
    for event in events:
        if isinstance(event, Invoke):
            open_calls[event.call_id] = event
            continue
        invoke = open_calls.pop(event.call_id)
        transaction_id = event.transaction_id or invoke.transaction_id
        if transaction_id in wanted and transaction_id is not None:
            yield transaction_id, invoke
            yield transaction_id, event
    for invoke in open_calls.values():
        if invoke.transaction_id in wanted and invoke.transaction_id is not None:
            yield invoke.transaction_id, invoke


def _show(row: msgspec.Struct) -> str:
    """The members that say something, but the transaction's own id."""
    members = msgspec.structs.asdict(row)
    return " ".join(
        f"{name}={_show_member(value)}"
        for name, value in members.items()
        if name != "transaction_id" and value not in (None, (), False)
    )


def _show_member(value: object) -> str:
    if isinstance(value, bytes):
        return show_mark(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_show_member, value)) + "]"
    if isinstance(value, Content):
        return f"{value.topic} {show_mark(value.key)}={show_mark(value.value)}"
    return str(value)
