"""What a producer that dies after its local commit looks like to the bridge: its end never comes."""

from collections.abc import Sequence

from api.web.services import TransactionCalls
from bridge.core.message import Message
from bridge.core.record import Act, Resolution, Source
from bridge.core.transaction import TimelineEvent, TransactionView
from bridge.service.contract import Accepted, EndCall, PrepareCall, Prepared, RefusalCode, Refused, Wait
from bridge.service.operate import Who

_LONG_S = 3_600  # nobody waits so long: a living producer gives up at once, and leaves it to the back-check


class CutEnds:
    """Port TransactionCalls over another; while cut, producers' ends do not get through."""

    def __init__(self, calls: TransactionCalls) -> None:
        self._calls = calls
        self._cuts: list[list[str]] = []

    @property
    def left(self) -> list[str]:
        """The ids of the transactions whose ends have been cut off since the last `cut`."""
        return self._cuts[-1]

    def cut(self) -> None:
        """From now on no producer's end gets through, until as many `mend` have come."""
        self._cuts.append([])

    def mend(self) -> list[str]:
        """Ends the last cut; the ids that were cut off by it."""
        return self._cuts.pop()

    async def end(
        self, calls: Sequence[EndCall], wait: Wait = Wait.SETTLED, wait_ms: int = 10_000
    ) -> Sequence[TransactionView | Accepted | Refused]:
        if not self._cuts:
            return await self._calls.end(calls, wait, wait_ms)
        through = [call for call in calls if not _is_producers(call)]
        answers = iter(await self._calls.end(through, wait, wait_ms) if through else ())
        self.left.extend(call.transaction_id for call in calls if _is_producers(call))
        return [_refuse(call) if _is_producers(call) else next(answers) for call in calls]

    async def prepare(
        self, calls: Sequence[PrepareCall], wait_ms: int = 10_000
    ) -> Sequence[Prepared | TransactionView | Refused]:
        return await self._calls.prepare(calls, wait_ms)

    async def get(self, transaction_id: str) -> TransactionView | Refused:
        return await self._calls.get(transaction_id)

    async def get_bodies(self, view: TransactionView) -> Sequence[Message] | Refused | None:
        return await self._calls.get_bodies(view)

    async def timeline(self, transaction_id: str) -> Sequence[TimelineEvent] | Refused:
        return await self._calls.timeline(transaction_id)

    async def act(self, transaction_id: str, act: Act, who: Who, wait_ms: int = 10_000) -> TransactionView | Refused:
        return await self._calls.act(transaction_id, act, who, wait_ms)

    async def force(
        self, transaction_id: str, resolution: Resolution, who: Who, wait_ms: int = 10_000
    ) -> TransactionView | Refused:
        return await self._calls.force(transaction_id, resolution, who, wait_ms)


def _is_producers(call: EndCall) -> bool:
    """Not the answer to a check."""
    return call.source is Source.PRODUCER and call.check_number == 0


def _refuse(call: EndCall) -> Refused:
    detail = "cut off by kill_before_commit"
    return Refused(RefusalCode.UNAVAILABLE, detail, transaction_id=call.transaction_id, retry_after_s=_LONG_S)
