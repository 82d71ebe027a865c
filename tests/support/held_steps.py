"""Faults that stop a client before one of its requests for as long as a story wants: the window between two requests.

faults = HeldSteps()
world = make_settler_world(faults=faults)
late = faults.hold(StepKind.END, client="first")   # the next end that "first" is about to send
await late.reached.wait()
...                                                # whatever happens meanwhile
late.release()
"""

import asyncio
from dataclasses import dataclass, field

from bridge.core.message import MessageQueue
from bridge.store.memory.link import PASSES, Fate, NoFaults, Step, StepKind


@dataclass(slots=True)
class HeldStep:
    """One request that waits. `subject`: of which transactional id, group or topic; None: of any."""

    kind: StepKind
    client: str
    subject: str | None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """The client goes on."""
        self._released.set()

    def is_for(self, step: Step) -> bool:
        """Whether this is the request meant."""
        return (step.kind, step.client) == (self.kind, self.client) and self.subject in {None, step.subject}

    async def wait(self) -> None:
        """Says that the client is here, and waits for `release`."""
        self.reached.set()
        await self._released.wait()


class HeldSteps(NoFaults):
    """`marker_delays`: by queue, how much later the markers of Kafka transactions come there."""

    def __init__(self) -> None:
        self.marker_delays: dict[MessageQueue | None, int] = {}
        self._held: list[HeldStep] = []

    def hold(self, kind: StepKind, *, client: str, subject: str | None = None) -> HeldStep:
        """The client waits before its next such request."""
        held = HeldStep(kind, client, subject)
        self._held.append(held)
        return held

    async def before(self, step: Step) -> Fate:
        for held in self._held:
            if held.is_for(step):
                self._held.remove(held)
                await held.wait()
                break
        return PASSES

    def marker_delay_ms(self, transactional_id: str, queue: MessageQueue) -> int:
        return self.marker_delays.get(queue, 0)
