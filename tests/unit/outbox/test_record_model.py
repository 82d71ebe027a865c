"""The rule of transaction records as a model: every order of a local transaction, two checks, and crashes anywhere.

What one key of the table is to the model: a committed state, and at most one session that has inserted it and has
not ended. `tests/integration/test_transaction_record_races.py` plays the same on real databases.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

WRITTEN, BARRED = "written", "barred"
COMMIT, ROLLBACK, UNKNOWN = "COMMIT", "ROLLBACK", "UNKNOWN"
ANSWERS = {WRITTEN: COMMIT, BARRED: ROLLBACK, None: UNKNOWN}


class World(NamedTuple):
    """`holder`: who has inserted the key, uncommitted. `local`, `checks`: how far each has come."""

    committed: str | None = None
    holder: str | None = None
    local: str = "idle"
    checks: tuple[str, str] = ("idle", "idle")


Rule = Callable[[World, int], Iterator[World]]


def local_steps(world: World) -> Iterator[World]:
    """Writes its record, commits; waits for a bar that is being written; may end without a commit at any time."""
    if world.local == "idle" and world.holder is None:
        refused = world.committed is not None
        yield world._replace(local="gone") if refused else world._replace(local="holding", holder="local")
    if world.local == "holding":
        yield world._replace(local="committed", holder=None, committed=WRITTEN)
    if world.local in ("idle", "holding"):
        yield world._replace(local="gone", holder=None if world.holder == "local" else world.holder)


def moved(world: World, number: int, step: str, **changes: str | None) -> World:
    checks = (step, world.checks[1]) if number == 0 else (world.checks[0], step)
    return world._replace(checks=checks, **changes)  # type: ignore[arg-type]


def check_steps(world: World, number: int) -> Iterator[World]:
    """Reads; bars what is missing, without waiting; reads again and says what stands there."""
    name, step = f"check {number}", world.checks[number]
    if step == "idle":
        yield moved(world, number, ANSWERS[world.committed] if world.committed else "missing")
    elif step == "missing":
        is_free = world.holder is None and world.committed is None
        yield moved(world, number, "barring", holder=name) if is_free else moved(world, number, "again")
    elif step == "barring":
        yield moved(world, number, "again", holder=None, committed=BARRED)
    elif step == "again":
        yield moved(world, number, ANSWERS[world.committed])
    if step in ("idle", "missing", "barring", "again"):
        yield moved(world, number, "dead", holder=None if world.holder == name else world.holder)


def no_bar(world: World, number: int) -> Iterator[World]:
    """Planted: what is missing counts as rolled back."""
    if world.checks[number] == "idle":
        yield moved(world, number, ANSWERS[world.committed] if world.committed else ROLLBACK)


def early_answer(world: World, number: int) -> Iterator[World]:
    """Planted: the answer is given before the bar has committed."""
    for after in check_steps(world, number):
        yield moved(after, number, ROLLBACK) if after.checks[number] == "barring" else after


def dirty_read(world: World, number: int) -> Iterator[World]:
    """Planted: a record counts before its local transaction has committed."""
    if world.checks[number] == "idle" and world.holder == "local":
        yield moved(world, number, COMMIT)
    else:
        yield from check_steps(world, number)


def reachable(rule: Rule) -> set[World]:
    """Every state that any order of steps comes to."""
    found, new = {World()}, [World()]
    while new:
        world = new.pop()
        for after in (*local_steps(world), *rule(world, 0), *rule(world, 1)):
            if after not in found:
                found.add(after)
                new.append(after)
    return found


def is_honest(world: World) -> bool:
    """Answers agree with each other and with what has become, and can still become, of the local transaction."""
    answers = {check for check in world.checks if check in (COMMIT, ROLLBACK)}
    can_commit = world.local == "committed" or (world.committed is None and world.local in ("idle", "holding"))
    return not (
        len(answers) == 2 or (COMMIT in answers and world.local != "committed") or (ROLLBACK in answers and can_commit)
    )


def test_no_order_of_steps_makes_an_answer_false() -> None:
    """All states are looked at, those in which anybody has died included."""
    worlds = reachable(check_steps)
    assert [world for world in worlds if not is_honest(world)] == []
    ends = {(world.local, check) for world in worlds for check in world.checks}
    assert {("committed", COMMIT), ("gone", ROLLBACK), ("holding", UNKNOWN), ("committed", UNKNOWN)} <= ends
    assert len(worlds) > 150


@pytest.mark.parametrize("rule", [no_bar, early_answer, dirty_read])
def test_planted_mistakes_are_found(rule: Rule) -> None:
    """Each shortcut that suggests itself lies in some order of steps."""
    assert [world for world in reachable(rule) if not is_honest(world)] != []
