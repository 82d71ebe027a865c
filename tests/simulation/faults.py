"""Faults in force during a simulated run: what becomes of each request, and who dies or freezes at which step."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from bridge.core.message import MessageQueue
from bridge.store.memory.link import PASSES, Fate, Step, StepKind
from tests.simulation.schedule import Fault, FaultKind

Strike = Callable[[Fault], None]
_AT_STEP = {FaultKind.KILL_AT, FaultKind.FREEZE_AT}
_OF_END = {FaultKind.HOLD_END, FaultKind.REPEAT_END}


def instance_of(client: str) -> int:
    """Clients are called `<instance>.<life>`."""
    return int(client.partition(".")[0])


@dataclass(slots=True, eq=False)
class _Rule:
    fault: Fault
    until_ms: int
    left: int
    random: Random


@dataclass(slots=True)
class FaultsInForce:
    """Port Faults. `strike` kills or freezes the instance of a fault; `wait` lets the client feel it."""

    now_ms: Callable[[], int]
    strike: Strike
    pause: Callable[[str], Awaitable[None]]
    tell: Callable[[str, str, str], None]
    rules: list[_Rule] = field(default_factory=list)

    def add(self, fault: Fault, until_ms: int) -> None:
        """In force from now until then, or until it has struck."""
        self.rules.append(_Rule(fault, until_ms, fault.count, Random(fault.seed)))

    def clear(self) -> None:
        """Everything works again."""
        self.rules.clear()

    async def before(self, step: Step) -> Fate:
        fate = PASSES
        if self.rules:
            for rule in self._matching(step):
                fate = self._apply(rule, step, fate)
            await self._feel(step, is_after=False)
        return fate

    async def after(self, step: Step) -> None:
        if self.rules:
            await self._feel(step, is_after=True)

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue | None) -> int:
        now = self.now_ms()
        return max(
            (
                rule.fault.delay_ms
                for rule in self.rules
                if rule.fault.kind is FaultKind.LATE_MARKERS
                and rule.until_ms > now
                and queue is not None
                and (queue.topic == rule.fault.topic or rule.fault.seed % 3 == 0)
            ),
            default=0,
        )

    def _matching(self, step: Step) -> list[_Rule]:
        now, instance = self.now_ms(), instance_of(step.client)
        self.rules = [rule for rule in self.rules if rule.until_ms > now]
        return [
            rule
            for rule in self.rules
            if rule.fault.instance == instance
            and (rule.fault.kind in _OF_END or rule.fault.step is None or rule.fault.step is step.kind)
        ]

    def _apply(self, rule: _Rule, step: Step, fate: Fate) -> Fate:
        fault = rule.fault
        if fault.kind in _OF_END:
            return self._apply_to_end(rule, step, fate)
        if fault.kind in _AT_STEP or rule.random.random() >= fault.chance:
            return fate
        if fault.kind is FaultKind.LOSE_REQUEST:
            self.tell(step.client, "lost requests", f"{step.kind.value} to {step.subject} is lost")
            return fate._replace(request_ms=None)
        if fault.kind is FaultKind.LOSE_ANSWER:
            self.tell(step.client, "lost answers", f"answer to {step.kind.value} to {step.subject} is lost")
            return fate._replace(answer_ms=None)
        if fault.kind is FaultKind.DELAY and fate.request_ms is not None:
            return fate._replace(request_ms=fate.request_ms + rule.random.randrange(1, fault.delay_ms + 1))
        return fate

    def _apply_to_end(self, rule: _Rule, step: Step, fate: Fate) -> Fate:
        if step.kind is not StepKind.END or not self._strikes(rule):
            return fate
        kind = rule.fault.kind.value
        self.tell(step.client, kind, f"{kind}: {step.subject}, {rule.fault.delay_ms} ms")
        if rule.fault.kind is FaultKind.HOLD_END:
            return fate._replace(request_ms=rule.fault.delay_ms)
        # a repeat whose first answer the client has heard is what the Kafka options rule out
        return fate._replace(answer_ms=None, again_ms=rule.fault.delay_ms)

    async def _feel(self, step: Step, *, is_after: bool) -> None:
        """Dies or freezes here, if that is due."""
        for rule in self._matching(step):
            if rule.fault.kind in _AT_STEP and (rule.fault.chance >= 0.5) is is_after and self._strikes(rule):
                where = "after" if is_after else "before"
                kind = rule.fault.kind.value
                self.tell(step.client, kind, f"{kind}: {where} {step.kind.value} to {step.subject}")
                self.strike(rule.fault)
                await self.pause(step.client)

    def _strikes(self, rule: _Rule) -> bool:
        """Counts a passing; true once, at the last. Another step may have met it while this one was frozen."""
        if rule not in self.rules:
            return False
        if rule.left > 0:
            rule.left -= 1
            return False
        self.rules.remove(rule)
        return True
