"""Pull mode: due checks of a group that fetches them are put on the board, one look an interval."""

from collections.abc import Iterable, Sequence
from enum import Enum

import structlog

from bridge.core.errors import BridgeError
from bridge.directory import PullCheck, UnansweredRound
from bridge.fault_points import FaultPoint, reach
from checker.call import Failure
from checker.context import CheckContext
from checker.scheduler import DueCheck

_LOG = structlog.get_logger()
_MAX_LYING = 10_000  # of a group, in one process
_JITTER = 0.2  # of the interval
_QUIET_INTERVALS = 2
_ALERT = "producer_group_claims_no_checks"


class PullStatus(Enum):
    """What a look at a due check found."""

    NEW = "lies there from now on"
    CLAIMED = "was claimed since the last look, and not answered"
    UNCLAIMED = "lies there since the last look, and nobody came"
    NO_ROOM = "the group lets too many lie"
    NOT_LAID = "the board cannot be reached, or another owner has the queue"


_FAILURES = {PullStatus.CLAIMED: Failure.NOT_ANSWERED, PullStatus.UNCLAIMED: Failure.NOT_CLAIMED}


class PullDispatcher:
    """The looks of one group."""

    def __init__(self, context: CheckContext, group: str) -> None:
        self._context = context
        self._group = group
        self._unclaimed_ms: int | None = None  # when nobody had come last

    async def offer(self, asks: Sequence[DueCheck]) -> None:
        """Puts checks on the board, or finds them still there; lands every ask, whatever happens."""
        flying = {ask.transaction.transaction_id: ask for ask in asks}
        try:
            for queue_id in sorted({ask.queue_id for ask in asks}):
                wanted = [ask for ask in asks if ask.queue_id == queue_id]
                for ask, look in await self._look(queue_id, wanted):
                    del flying[ask.transaction.transaction_id]
                    self._land(ask, look)
        finally:
            for ask in flying.values():
                self._land(ask, PullStatus.NOT_LAID)

    async def _look(self, queue_id: int, asks: Sequence[DueCheck]) -> list[tuple[DueCheck, PullStatus]]:
        keeper = self._context.keeper
        before = [keeper.find(queue_id, _check_of(ask)) for ask in asks]
        room = max(0, _MAX_LYING - keeper.count_lying(self._group))
        laid, left = self._divide(asks, before, room)
        try:
            claims = await keeper.lay(queue_id, [_check_of(ask) for ask in laid]) if laid else {}
        except BridgeError as error:
            _LOG.warning("checks_not_laid", group=self._group, queue=queue_id, error=type(error).__name__)
            claims = None
        if claims is None:
            return [(ask, PullStatus.NOT_LAID) for ask in asks]
        reach(FaultPoint.CHECKS_LAID)
        keeper.ended(queue_id, [_id_of(ask) for ask in laid if not self._context.timetable.is_current(ask)])
        known = {check.transaction_id: check.claims for check in before if check is not None}
        looks = [(ask, _compare(known.get(_id_of(ask)), claims[_id_of(ask)])) for ask in laid]
        self._tell(looks)
        return [*looks, *[(ask, PullStatus.NO_ROOM) for ask in left]]

    @staticmethod
    def _divide(
        asks: Sequence[DueCheck], before: Iterable[PullCheck | None], room: int
    ) -> tuple[list[DueCheck], list[DueCheck]]:
        """The checks that are there already or find room, and the others."""
        laid: list[DueCheck] = []
        left: list[DueCheck] = []
        for ask, known in zip(asks, before, strict=True):
            if known is None and room == 0:
                left.append(ask)
                continue
            room -= known is None
            laid.append(ask)
        return laid, left

    def _land(self, ask: DueCheck, look: PullStatus) -> None:
        context = self._context
        moment = context.moment_of(ask.queue_id)
        interval_ms = context.directory.settings_of(self._group).times.interval_ms
        spread_ms = int(context.jitter() * _JITTER * interval_ms)
        if look is PullStatus.NOT_LAID:
            context.timetable.set_postponed(ask, moment, context.config.append_retry_ms, was_tried=False)
        elif look is PullStatus.NO_ROOM:
            context.timetable.set_postponed(ask, moment, interval_ms + spread_ms, was_tried=False)
        else:
            context.timetable.set_offered(ask, moment, interval_ms, found_nobody=look is PullStatus.UNCLAIMED)

    def _tell(self, looks: Sequence[tuple[DueCheck, PullStatus]]) -> None:
        """Counts, notes of rounds without answer, and the alert that nobody comes."""
        context = self._context
        rounds = []
        for ask, look in looks:
            now_ms = context.now_of(ask.queue_id)
            if look is PullStatus.NEW:
                context.counts.asked += 1
                context.counts.lateness.add(now_ms - ask.due_ms)
                continue
            failure = _FAILURES[look]
            context.counts.count_silence(self._group, failure.value)
            rounds.append(UnansweredRound(_id_of(ask), self._group, now_ms, failure.value, None))
        context.recorder.add(rounds)
        self._alert(is_unclaimed=any(look is PullStatus.UNCLAIMED for _, look in looks))

    def _alert(self, *, is_unclaimed: bool) -> None:
        """Over when for a while nothing was found unclaimed."""
        monotonic_ms = self._context.clock.monotonic_ms()
        if is_unclaimed:
            self._unclaimed_ms = monotonic_ms
            self._context.raise_alert(self._group, _ALERT)
        elif self._unclaimed_ms is not None:
            quiet_ms = _QUIET_INTERVALS * self._context.directory.settings_of(self._group).times.interval_ms
            if monotonic_ms - self._unclaimed_ms > quiet_ms:
                self._unclaimed_ms = None
                self._context.clear_alert(self._group, _ALERT)


def _compare(before: int | None, claims: int) -> PullStatus:
    if before is None:
        return PullStatus.NEW
    return PullStatus.CLAIMED if claims > before else PullStatus.UNCLAIMED


def _check_of(ask: DueCheck) -> PullCheck:
    transaction = ask.transaction
    return PullCheck(transaction.transaction_id, transaction.group, transaction.check_times + 1, ask.due_ms)


def _id_of(ask: DueCheck) -> str:
    return ask.transaction.transaction_id
