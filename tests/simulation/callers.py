"""Those who call the bridge in a simulated run: each transaction's producer, and whoever insists on the truth."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from bridge.core.transaction import TransactionState
from bridge.service.contract import Outcome, RefusalCode, Refused
from bridge.service.operate import Who
from tests.simulation.clients import WAIT_MS, Answer, Heard, perform, prepare, prepare_call, understand
from tests.simulation.schedule import Call, Deed, Verb

WHO = Who("simulation", "")

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_ASK_LIMIT_MS = WAIT_MS + 1_000
_RETRIES = 4
_RETRY_MS = 600
_LOOKED_AT = 4  # one transaction in so many is asked for at the end; the projection's rows are compared for all
_INSISTED_ON = (Verb.COMMIT, Verb.ROLLBACK, Verb.FORCE_COMMIT, Verb.FORCE_ROLLBACK, Verb.RESUME, Verb.CHECK)
_TRY_AGAIN = {RefusalCode.UNAVAILABLE.value, RefusalCode.PROJECTION_BEHIND.value, "connection refused"}


class Finding(Exception):
    """The run itself came to an end that no promise allows."""


class Callers:
    """What they heard is in `heard`, in order."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.heard: list[Heard] = []

    async def follow(self, call: Call) -> None:
        """One transaction's life as its producer leads it."""
        first_ms = self._read_kafka_time(call)
        late = asyncio.ensure_future(self._deliver_late(call, first_ms))
        try:
            await self._lead(call, first_ms)
        finally:
            await late

    async def _lead(self, call: Call, first_ms: int | None) -> None:
        world = self._world
        heard = self._give_up(call) if call.is_delivered_late else await self._prepare(call, call.instance, first_ms)
        for _ in range(_RETRIES):
            if heard.outcome == "ok" or call.idempotency_key is None:
                break
            await world.clock.sleep_ms(_RETRY_MS)
            heard = await self._prepare(call, call.instance)
        if heard.outcome != "ok" or heard.transaction_id is None:
            return
        if heard.state is TransactionState.PREPARED:
            world.locals.begin(call.number)
        started = world.clock.monotonic_ms()
        for deed in call.deeds:
            await world.clock.sleep_ms(max(0, started + deed.after_ms - world.clock.monotonic_ms()))
            await self._act(call, deed, heard.transaction_id)

    async def _act(self, call: Call, deed: Deed, transaction_id: str) -> None:
        """A: where the log can be read and nobody stands still, who repeats a call that is in doubt hears the truth."""
        heard = await self.do(call, deed, transaction_id)
        if heard.outcome == "unknown" and self._world.schedule.situation.is_calm:
            again = await self.do(call, deed, transaction_id)
            if again.outcome == "unknown":
                raise Finding(f"client {call.number} was told {again.code} twice in a row while the log could be read")

    async def _prepare(self, call: Call, instance: int, first_ms: int | None = None) -> Heard:
        return await self._ask(call, None, instance, lambda service: prepare(service, call, first_ms))

    def _give_up(self, call: Call) -> Heard:
        """What the producer makes of a first try that is still on its way."""
        now = self._world.clock.monotonic_ms()
        heard = understand(call, None, None, now, now)
        self.heard.append(heard)
        return heard

    def _read_kafka_time(self, call: Call) -> int | None:
        """What a process told the producer, who says it of its first try; 0: nothing yet."""
        node = self._world.nodes[(call.instance + 1) % self._world.schedule.instances]
        if not call.is_told_first or node.is_dead or node.is_closed:
            return 0 if call.is_told_first else None
        return node.bridge.transactions.kafka_time_ms()

    async def _deliver_late(self, call: Call, first_ms: int | None) -> None:
        """The first try arrives at another process when its producer has given it up, and nobody hears the answer."""
        world = self._world
        if not call.is_delivered_late:
            return
        await world.clock.sleep_ms(call.late_ms)
        node = world.nodes[(call.instance + 1) % world.schedule.instances]
        if not node.is_dead and not node.is_closed:
            calls = [prepare_call(call)]
            await self.reach(
                node, lambda service: service.transactions.prepare(calls, WAIT_MS, first_ms), _ASK_LIMIT_MS
            )

    async def do(self, call: Call, deed: Deed, transaction_id: str) -> Heard:
        heard = await self._ask(
            call, deed.verb, deed.instance, lambda service: perform(service, call, deed, transaction_id), transaction_id
        )
        if heard.view is None or deed.verb is not Verb.LOOK:
            return heard
        return await self._look_inside(heard, deed.instance)

    async def _look_inside(self, heard: Heard, instance: int) -> Heard:
        """The messages of one that was looked at."""
        node, view = self._world.nodes[instance], heard.view
        if node.is_dead or node.process.is_stopped or view is None:
            return heard
        asking = node.spawn(node.ask(lambda service: service.transactions.get_bodies(view, WHO)))
        await asyncio.wait({asking})
        found = None if asking.cancelled() else asking.result()
        if isinstance(found, list):
            heard = msgspec.structs.replace(heard, bodies=found)
            self.heard.append(heard)
        return heard

    async def reach(self, node: "Node", work: Any, limit_ms: int) -> Any:
        """The answer of one process; None if the connection broke, or nothing came in time."""
        answering = node.spawn(node.ask(work))
        limit = asyncio.ensure_future(self._world.clock.sleep_ms(limit_ms))
        await asyncio.wait({answering, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        if answering.done():
            return None if answering.cancelled() else answering.result()
        answering.cancel()
        return None

    async def _ask(
        self, call: Call, verb: Verb | None, instance: int, work: Any, transaction_id: str | None = None
    ) -> Heard:
        world = self._world
        node, began = world.nodes[instance], world.clock.monotonic_ms()
        what = verb.value if verb else "prepare"
        if node.is_dead or node.is_closed:
            heard = understand(call, verb, _no_connection(), began, began)
        else:
            found = await self.reach(node, work, _ASK_LIMIT_MS)
            answer: Answer | None = found[0] if isinstance(found, list) else found
            heard = understand(call, verb, answer, began, world.clock.monotonic_ms())
        heard = msgspec.structs.replace(heard, asked_id=transaction_id, node=node.name)
        self.heard.append(heard)
        world.story.tell(f"client {call.number}", f"{what} at {node.name} -> {heard} {heard.transaction_id or ''}")
        return heard

    async def find_truth(self, call: Call) -> None:
        """Repeats what is unknown until it is known, then looks."""
        mine = [heard for heard in self.heard if heard.number == call.number]
        instance = call.number % self._world.schedule.instances
        last = {heard.verb: heard for heard in mine}
        known = next((heard.transaction_id for heard in mine if heard.transaction_id), None)
        if call.idempotency_key is not None and last[None].outcome != "ok":
            heard = await self._insist(call, lambda: self._prepare(call, instance))
            known = known or heard.transaction_id
        if known is None:
            return
        for verb in _INSISTED_ON:
            if verb in last and last[verb].outcome == "unknown":
                await self._insist(call, lambda verb=verb: self.do(call, Deed(0, verb, instance, call.group), known))
        if call.number % _LOOKED_AT == 0:
            await self._insist(call, lambda: self.do(call, Deed(0, Verb.LOOK, instance), known))

    async def _insist(self, call: Call, ask: Callable[[], Awaitable[Heard]]) -> Heard:
        """Asks until the answer is no doubt. T: it comes. A: all rests, so nobody hears "unknown" twice in a row."""
        is_doubt = False
        for _ in range(40):
            heard = await ask()
            if is_doubt and heard.outcome == "unknown":
                raise Finding(f"client {call.number} was told {heard.code} twice in a row")
            is_doubt = heard.outcome == "unknown"
            if heard.outcome == "ok" or (heard.outcome == "fail" and heard.code not in _TRY_AGAIN):
                return heard
            await self._world.clock.sleep_ms(1_000)
        raise Finding(f"client {call.number} never heard the truth")


def _no_connection() -> Refused:
    return Refused(RefusalCode.UNAVAILABLE, "connection refused", Outcome.NOT_APPLIED)
