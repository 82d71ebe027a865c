"""Faults for the in-memory log, put in by rule: this step of that kind is lost, late, doubled, or kills its client.

faults = ScriptedFaults()
faults.give(StepKind.END, Fate(answer_ms=None))            # the next end: carried out, answer lost
faults.give(StepKind.APPEND, Fate(request_ms=None), skip=2)  # the third append from now never arrives
faults.kill_at(5)                                          # the client dies at the sixth point (before, after, ...)
faults.marker_delays[MessageQueue("orders", 0)] = 500      # this queue's markers come late
world = make_memory_world(faults=faults)
"""

from dataclasses import dataclass, field

from bridge.core.message import MessageQueue
from bridge.store.memory.link import PASSES, Fate, Step, StepKind


class ProcessKilled(BaseException):
    """The client process is gone."""


@dataclass(slots=True)
class _Rule:
    kind: StepKind
    fate: Fate
    skip: int
    client: str | None


@dataclass(slots=True)
class ScriptedFaults:
    """`steps` is every request that was about to be sent; `points` counts befores and afters."""

    steps: list[Step] = field(default_factory=list)
    points: int = 0
    marker_delays: dict[MessageQueue | None, int] = field(default_factory=dict)
    _rules: list[_Rule] = field(default_factory=list)
    _killed_at: int | None = None

    def give(self, kind: StepKind, fate: Fate, *, skip: int = 0, client: str | None = None) -> None:
        """The next step of this kind (after `skip` others) has this fate, once."""
        self._rules.append(_Rule(kind, fate, skip, client))

    def kill_at(self, point: int) -> None:
        """Kills whoever comes to this point, counted from now."""
        self._killed_at = self.points + point

    async def before(self, step: Step) -> Fate:
        self.steps.append(step)
        self._reach_point()
        for rule in self._rules:
            if rule.kind is step.kind and rule.client in {None, step.client}:
                if rule.skip == 0:
                    self._rules.remove(rule)
                    return rule.fate
                rule.skip -= 1
        return PASSES

    async def after(self, step: Step) -> None:
        self._reach_point()

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue) -> int:
        return self.marker_delays.get(queue, 0)

    def _reach_point(self) -> None:
        self.points += 1
        if self._killed_at == self.points - 1:
            self._killed_at = None
            raise ProcessKilled
