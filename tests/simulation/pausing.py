"""Operators who pause what a group is asked, or what it prepares, in a simulated run, and resume it in the same run."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bridge.directory import GroupSwitch
from bridge.node import Node
from bridge.service.contract import RefusalCode, Refused
from bridge.service.operate import Who
from tests.simulation.situations import Pause, PauseKind

if TYPE_CHECKING:
    from tests.simulation.world import World

_ANSWER_MS = 3_000
_AGAIN_MS = 400
_GIVEN_UP_MS = 4_000  # an operator whose pause nobody takes for so long lets it be
_ATTEMPTS = 200  # to resume, which is insisted on
_WHO = Who("ops", "simulated pause")
_SWITCHES = {PauseKind.CHECKS: GroupSwitch.CHECKS, PauseKind.PREPARES: GroupSwitch.PREPARES}


class Switched(Struct, frozen=True):
    """One request to pause or resume, and when its answer came, or was no longer waited for."""

    kind: PauseKind
    group: str
    is_paused: bool
    began_ms: int
    at_ms: int
    is_ok: bool


class Pausing:
    """`requests`: all, as they ended."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.requests: list[Switched] = []

    async def do(self, pause: Pause) -> None:
        """Pauses, lets time pass, and resumes until that is heard."""
        clock = self._world.clock
        until_ms = clock.monotonic_ms() + _GIVEN_UP_MS
        turn = pause.instance
        while not await self._ask(pause, turn, is_paused=True) and clock.monotonic_ms() < until_ms:
            turn += 1
            await clock.sleep_ms(_AGAIN_MS)
        await clock.sleep_ms(pause.for_ms)
        await self._resume(pause)

    async def resume_all(self) -> None:
        """Whatever was ever paused goes on: a backup may have brought a pause back."""
        for pause in self._world.schedule.situation.pauses:
            await self._resume(pause)

    async def _resume(self, pause: Pause) -> None:
        turn = pause.instance
        for _ in range(_ATTEMPTS):
            turn += 1
            if await self._ask(pause, turn, is_paused=False):
                return
            await self._world.clock.sleep_ms(_AGAIN_MS)

    async def _ask(self, pause: Pause, turn: int, *, is_paused: bool) -> bool:
        """Whether it is so now; a group that was deleted has nothing to pause."""
        world = self._world
        node, began = world.nodes[turn % world.schedule.instances], world.clock.monotonic_ms()
        if node.is_dead or node.is_closed:
            return False
        found = await world.callers.reach(
            node, lambda service: _switch(service, pause, is_paused=is_paused), _ANSWER_MS
        )
        is_gone = isinstance(found, Refused) and found.code is RefusalCode.UNKNOWN_PRODUCER_GROUP
        is_ok = found is not None and not isinstance(found, Refused)
        at_ms = world.clock.monotonic_ms()
        self.requests.append(Switched(pause.kind, pause.group, is_paused, began, at_ms, is_ok))
        if is_ok and is_paused:
            world.struck[f"paused {pause.kind.value}"] += 1
        word = "pauses" if is_paused else "resumes"
        outcome = "done" if is_ok else f"{found}"[:100]
        world.story.tell("operator", f"{word} {pause.kind.value} {pause.group} at {node.name} -> {outcome}")
        return is_ok or is_gone


async def _switch(service: Node, pause: Pause, *, is_paused: bool) -> Any:
    """As the routes do; None of the bridge's switch means that it is done."""
    if pause.kind is PauseKind.BRIDGE:
        return await service.groups.switch_prepares(_WHO, is_paused=is_paused) or "switched"
    return await service.groups.switch(pause.group, _SWITCHES[pause.kind], _WHO, is_paused=is_paused)
