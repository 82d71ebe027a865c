"""Every order in which two settler instances can send their store calls, with one crash at every point.

    python -m tests.simulation.interleavings             # the settings of the gate; --wider: A takes over twice
    python -m tests.simulation.interleavings --replay NUMBER PATH       # tells a run again; PATH as a failure prints it

The stretch: the journal holds two half messages and, behind the position, their ends. A takes the queue over and
settles it; at any point of that, its own take-over included, B does the same, because the queue is B's now. A does not
hear of it: it stands still for as long as it may and goes on whenever it may. B, fenced by what A still had to send,
takes over again. So both contend until both transactions are final and A has found out, is dead, or stands at the end.

Complete means: from each state every next event is tried. Events: the next store call of A, or of B; the death of
either, once a run (B is then started again, A has no take-over left); the time-out of an open Kafka transaction for
whose end one waits who may yet write.
What is left out changes nothing:

* A state that was met before (equal log, coordinator, place of each instance) is not gone on from twice. Where an
  instance stands is all it has heard since it began its take-over, and its `QueueMemory`; see `contest`.
* Death before a call and death after the one before it are one event: in between nothing leaves the process.
* Reads of the journal, and descriptions of topics, are no events: both stand still here, so each time is alike.
* A call under a fenced epoch is refused whenever it comes, and has no effect: it goes at once. So does what A reads in
  its last take-over after both of its epochs were fenced: all it can still do is to be refused.
* A look at the journal's end that finds nothing happens once after each other call: time stands still, and a second
  one would find the instance as the first one left it.

The bounds: A begins one take-over (`--wider`: two, without a crash) and B as many as it needs; one crash; two
transactions; time passes only at the end, for commits put off after an unknown outcome, when B goes on alone, and for
Kafka transactions left open (10 s); markers are written at once, requests are not doubled or lost: the seeded
schedules have those.
"""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from msgspec import Struct

from bridge.core.message import Message
from bridge.core.op_message import ANSWERS_KEY, POSITION_KEY, decode_op, decode_position
from bridge.core.record import Resolution
from bridge.core.transaction import Transaction
from tests.simulation.evidence import Archive
from tests.simulation.ownership_race import Choice, Contest, State
from tests.simulation.promises import Evidence, Violation, check_records
from tests.simulation.stepped_log import INTERNAL, Deal, Setting

_ONE, _TWO = Message("orders", b"k1", b"one"), Message("credits", b"k2", b"two")
_COMMIT, _ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
SETTINGS = (
    Setting("a commit and a rollback, one after the other", (Deal((_ONE,), _COMMIT), Deal((_TWO,), _ROLLBACK)), 1),
    Setting("two commits to two topics in one batch", (Deal((_ONE,), _COMMIT), Deal((_TWO,), _COMMIT)), 2),
)
WIDER = (
    Setting(
        "a commit and a rollback in one batch, A takes over twice",
        (Deal((_ONE,), _COMMIT), Deal((_TWO,), _ROLLBACK)),
        2,
        take_overs_of_a=2,
        can_crash=False,
    ),
)


class Tally(Struct):
    """What was explored. `ends`: different states in which nothing was left to happen; each was judged."""

    setting: Setting
    interleavings: int = 0
    states: int = 0
    steps: int = 0
    crashes: int = 0
    ends: int = 0
    broken: tuple[Choice, ...] | None = None
    violations: Sequence[Violation] = ()

    def __str__(self) -> str:
        crash = f"one crash at each of {self.crashes:,} points" if self.setting.can_crash else "no crash"
        return (
            f"interleavings: {self.interleavings:,} complete, 2 instances, {len(self.setting.deals)} transactions, "
            f"{crash} ({self.setting.name}; {self.steps:,} steps, {self.states:,} states, {self.ends:,} ends judged)"
        )


class _Frame(Struct):
    state: State
    choices: Sequence[Choice]
    tried: int = 0
    interleavings: int = 0


@contextmanager
def _uncollected() -> Iterator[None]:
    """What was met is kept to the end: looking through it for garbage would take a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_uncollected()
def explore(setting: Setting) -> Tally:
    """Depth first, up to the first broken promise. The interleavings of a state are the sum of those behind it."""
    contest, tally = Contest(setting), Tally(setting)
    behind: dict[State, int] = {}
    path: list[Choice] = []
    stack = [_Frame(contest.start, _choices(contest, contest.start))]
    while stack:
        frame = stack[-1]
        if frame.tried == len(frame.choices):
            behind[frame.state] = frame.interleavings
            stack.pop()
            if stack:
                stack[-1].interleavings += frame.interleavings
                path.pop()
            continue
        choice = frame.choices[frame.tried]
        frame.tried += 1
        state, _ = contest.take(frame.state, choice)
        tally.steps += choice.verb != "!"
        tally.crashes += choice.verb == "!"
        if state in behind:
            frame.interleavings += behind[state]
            continue
        path.append(choice)
        stack.append(_Frame(state, _choices(contest, state)))
        if not contest.moves(state):
            tally.ends += 1
            stack[-1].interleavings = 1
            if violations := judge(contest, state):
                tally.broken, tally.violations = tuple(path), violations
                return tally
    tally.interleavings, tally.states = behind[contest.start], len(behind)
    return tally


def _choices(contest: Contest, state: State) -> list[Choice]:
    return contest.moves(state) + contest.crashes(state)


class _NoSql(Struct):
    has_sql: bool = False


def judge(contest: Contest, state: State) -> list[Violation]:
    """Every promise that the log alone can show, after B has gone on alone for a while."""
    is_held = contest.quieten(state)
    archive = Archive(contest.world.cluster.log)
    reason = archive.unquiet(INTERNAL, None) if is_held else "the queue has halted"
    found = [] if reason is None else [Violation("T", "", reason)]
    archive.keep()
    evidence = Evidence(_NoSql(), INTERNAL, archive, [], [], None)  # type: ignore[arg-type]
    return found + check_records(evidence) + list(_contradictions(archive))


def _contradictions(archive: Archive) -> Iterator[Violation]:
    """F: no reader of the op topic hears two things of what has ended, or sees the position go back."""
    ended: dict[str, Transaction] = {}
    s = 0
    for _, messages in archive.read(INTERNAL.op):
        for stored in messages:
            assert stored.key is not None
            assert stored.value is not None
            if stored.key == POSITION_KEY:
                before, s = s, decode_position(stored.value).s
                if s < before:
                    yield Violation("F", "", f"the position goes back from {before} to {s}")
            elif stored.key != ANSWERS_KEY:
                transaction_id = stored.key.decode()
                t = decode_op(transaction_id, stored.value).transaction
                first = ended.setdefault(transaction_id, t) if t.is_final else ended.get(transaction_id, t)
                if first.state is not t.state:
                    yield Violation("F", transaction_id, f"{t.state.value} after {first.state.value}")


def tell(setting: Setting, path: Sequence[Choice]) -> tuple[str, Sequence[Violation]]:
    """A run by its choices: a line for each step, and what it broke."""
    contest = Contest(setting)
    state, lines = contest.start, []
    for choice in path:
        state, told = contest.take(state, choice)
        lines += told
    return "\n".join(lines), judge(contest, state)


def describe(tally: Tally) -> str:
    """A broken run, to be read and to be replayed."""
    assert tally.broken is not None
    story, violations = tell(tally.setting, tally.broken)
    path = ",".join(str(choice) for choice in tally.broken)
    return "\n".join([f"{tally.setting.name}: after", story, *[str(v) for v in violations], f"path: {path}"])


def main(arguments: Sequence[str]) -> int:
    """0: no interleaving breaks a promise."""
    parser = argparse.ArgumentParser("python -m tests.simulation.interleavings")
    parser.add_argument("--wider", action="store_true", help="A begins two take-overs, and nobody dies")
    parser.add_argument("--replay", nargs=2, metavar=("NUMBER", "PATH"), help="one run, of setting NUMBER (from 0)")
    options = parser.parse_args(arguments)
    settings = SETTINGS + WIDER if options.wider else SETTINGS
    if options.replay:
        path = [Choice.parse(text) for text in options.replay[1].split(",")]
        story, violations = tell((SETTINGS + WIDER)[int(options.replay[0])], path)
        sys.stdout.write("\n".join([story, *[str(violation) for violation in violations], ""]))
        return 1 if violations else 0
    for setting in settings:
        began = monotonic()
        tally = explore(setting)
        text = describe(tally) if tally.broken is not None else f"{tally}, {monotonic() - began:.0f} s"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if tally.broken is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
