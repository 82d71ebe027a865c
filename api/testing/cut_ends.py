"""What a producer that dies after its local commit looks like to the bridge: its end never comes."""

from collections.abc import Sequence

from bridge.core.record import Source
from bridge.core.transaction import TransactionView
from bridge.service.contract import Accepted, EndCall, RefusalCode, Refused, Wait
from bridge.service.transactions import TransactionService

_LONG_S = 3_600  # nobody waits so long: a living producer gives up at once, and leaves it to the back-check


class CutEnds(TransactionService):
    """The same service; while cut, producers' ends do not get through."""

    def __init__(self, calls: TransactionService) -> None:
        vars(self).update(vars(calls))  # with all that it works with
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
            return await super().end(calls, wait, wait_ms)
        through = [call for call in calls if not _is_producers(call)]
        answers = iter(await super().end(through, wait, wait_ms) if through else ())
        self.left.extend(call.transaction_id for call in calls if _is_producers(call))
        return [_refuse(call) if _is_producers(call) else next(answers) for call in calls]


def _is_producers(call: EndCall) -> bool:
    """Not the answer to a check."""
    return call.source is Source.PRODUCER and call.check_number == 0


def _refuse(call: EndCall) -> Refused:
    detail = "cut off by kill_before_commit"
    return Refused(RefusalCode.UNAVAILABLE, detail, transaction_id=call.transaction_id, retry_after_s=_LONG_S)
