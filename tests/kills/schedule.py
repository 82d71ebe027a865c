"""PURE. Which process is killed when, and for how long it is down: all drawn from one seed."""

import random
from typing import NamedTuple

COPIES = 2  # of each role
_WEIGHTS = {"producer": 30, "relay": 25, "settler": 20, "api": 14, "checks": 6, "projector": 5}
ROLES = tuple(_WEIGHTS)
_LONGEST_S = 3.0


class Target(NamedTuple):
    """One of the processes of a role."""

    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"


class Act(NamedTuple):
    """A kill, or the start that follows it."""

    at_s: float
    target: Target
    is_kill: bool


def make_acts(kills: int, seconds: float, seed: int) -> list[Act]:
    """By their times. Nothing is killed that is down; half of what is killed is started again at once."""
    rng = random.Random(seed)
    roles = list(ROLES[:kills]) + rng.choices(ROLES, list(_WEIGHTS.values()), k=max(0, kills - len(ROLES)))
    rng.shuffle(roles)
    up_from_s = {Target(role, number): 0.0 for role in ROLES for number in range(COPIES)}
    acts: list[Act] = []
    gap_s = seconds / kills
    for number, role in enumerate(roles):
        at_s = (number + rng.random()) * gap_s
        copies = [Target(role, copy) for copy in range(COPIES)]
        target = rng.choice([copy for copy in copies if up_from_s[copy] <= at_s] or copies)
        at_s = max(at_s, up_from_s[target])
        back_s = at_s + rng.choice((0.0, rng.uniform(0, _LONGEST_S)))
        up_from_s[target] = back_s
        acts += [Act(at_s, target, is_kill=True), Act(back_s, target, is_kill=False)]
    return sorted(acts, key=lambda act: act.at_s)
