"""Pull mode: live instances of a group claim its due checks, and answer them as resolutions with their nonce."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import structlog

from bridge.clock import Clock
from bridge.core.check_rules import CheckMode
from bridge.core.errors import SqlUnavailable, StoreError
from bridge.core.grants import EVERYTHING, Rights, Verb
from bridge.core.message import Message
from bridge.core.transaction import TransactionState, TransactionView
from bridge.directory import PullCheck, PullCheckStore
from bridge.fault_points import FaultPoint, reach
from bridge.service.contract import RefusalCode, Refused, refuse_for_group, refuse_group, refuse_unavailable
from bridge.service.groups import refuse_sql
from bridge.service.journal import Deadline
from bridge.service.reads import BodyReader, CurrentReads, refuse_read
from bridge.sql.directory import SqlDirectory

_LOG = structlog.get_logger()


class Waited(Enum):
    """Why a claim waits no more."""

    FREE = "checks of the group are free"
    OVER = "nothing came in time, or nobody wants it any more"
    UNREACHABLE = "the board cannot be looked at"
    CROWDED = "too many wait"


class ClaimCall(NamedTuple):
    """`is_wanted`: whether the caller is still there to be waited with. `is_counted`: among those of which only so many
    may wait; the claims of a door are not, which has one for each of its groups, and a bound of these."""

    group: str
    limit: int
    wait_ms: int
    lease_ms: int
    is_wanted: Callable[[], bool]
    rights: Rights = EVERYTHING
    is_counted: bool = True


class ClaimWatch:
    """Claims are served in the order of their arrival; no more of a group's claims than its free checks can serve."""

    def __init__(self, board: PullCheckStore, clock: Clock, *, poll_ms: int, max_waiting: int) -> None:
        self._board = board
        self._clock = clock
        self._poll_ms = poll_ms
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[Waited], ClaimCall] = {}
        self._counted = 0
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, call: ClaimCall, deadline: Deadline) -> Waited:
        """Waits until checks of the group are free. The call is asked now and then whether to go on waiting."""
        if not deadline.left_ms():
            return Waited.OVER
        if call.is_counted and self._counted >= self._max_waiting and not self._make_room(call.group):
            return Waited.CROWDED
        future: asyncio.Future[Waited] = asyncio.get_running_loop().create_future()
        self._waiting[future] = call
        self._counted += call.is_counted
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())
        try:
            return future.result() if await deadline.wait(future) else Waited.OVER
        finally:
            self._counted -= call.is_counted
            self._waiting.pop(future, None)

    def _make_room(self, group: str) -> bool:
        """Ends the oldest claim of the group with the most, which asks again: the many of one keep out no other's."""
        waiting = {future: call.group for future, call in self._waiting.items() if call.is_counted}
        counts = Counter(waiting.values())
        largest = max(counts, key=counts.__getitem__, default=group)
        if counts[group] + 1 >= counts[largest]:
            return False
        self._let_go(next(future for future, its in waiting.items() if its == largest), Waited.OVER)
        return True

    async def _poll(self) -> None:
        while self._waiting:
            await self._clock.sleep_ms(self._poll_ms)
            for future in [future for future, waiting in self._waiting.items() if not waiting.is_wanted()]:
                self._let_go(future, Waited.OVER)
            groups = {waiting.group for waiting in self._waiting.values()}
            try:
                free = await self._board.count_free(groups) if groups else {}
            except SqlUnavailable as error:
                _LOG.warning("check_board_unreachable", reason=str(error))
                for future in list(self._waiting):
                    self._let_go(future, Waited.UNREACHABLE)
                return
            self._wake(free)

    def _wake(self, free: Mapping[str, int]) -> None:
        left = dict(free)
        for future, waiting in list(self._waiting.items()):
            if left.get(waiting.group, 0) > 0:
                left[waiting.group] -= waiting.limit
                self._let_go(future, Waited.FREE)

    def _let_go(self, future: "asyncio.Future[Waited]", reason: Waited) -> None:
        del self._waiting[future]
        if not future.done():
            future.set_result(reason)


@dataclass(frozen=True, slots=True)
class ClaimsConfig:
    """Bounds of claims in one process. `max_waiting`: of those that are counted. `max_bytes`: of the values in one
    answer; a larger transaction goes alone."""

    poll_ms: int = 500
    max_waiting: int = 256
    max_bytes: int = 8 * 1024 * 1024
    read_wait_ms: int = 2_000


class ClaimedCheck(NamedTuple):
    """A check that is the caller's until its check lease is over. `claim`: what is given back."""

    view: TransactionView
    number: int
    messages: Sequence[Message]
    claim: PullCheck


class ClaimService:
    """Nothing is handed out that has ended: what was claimed is looked up as currently as a `GET` would."""

    def __init__(
        self,
        board: PullCheckStore,
        directory: SqlDirectory,
        reads: CurrentReads,
        bodies: BodyReader,
        clock: Clock,
        config: ClaimsConfig | None = None,
    ) -> None:
        self._board = board
        self._directory = directory
        self._reads = reads
        self._bodies = bodies
        self._clock = clock
        self._config = config or ClaimsConfig()
        self._watch = ClaimWatch(board, clock, poll_ms=self._config.poll_ms, max_waiting=self._config.max_waiting)

    async def claim(self, call: ClaimCall) -> Sequence[ClaimedCheck] | Refused:
        """Due checks of the group, the longest due first; none if none came while it waited."""
        deadline = Deadline.after(self._clock, call.wait_ms)
        refused = refuse_for_group(call.rights, Verb.CHECK, call.group) or await self._find_refusal(call.group)
        while refused is None:
            claimed = await self._claim_now(call)
            if isinstance(claimed, Refused):
                return claimed
            if claimed and not call.is_wanted():  # it went, or its right did, while they were read
                await self.give_back(claimed)
                return []
            if claimed:
                return claimed
            waited = await self._watch.wait(call, deadline)
            if waited is Waited.OVER:
                return []
            refused = _refuse_waiting(waited)
        return refused

    async def give_back(self, claimed: Sequence[ClaimedCheck]) -> None:
        """Nobody can be asked after all: the checks are free again, and nothing is used up."""
        await self._give_back([check.claim for check in claimed])

    async def _find_refusal(self, group: str) -> Refused | None:
        """Why nobody can claim checks of the group; what another process changed a moment ago counts."""
        directory = self._directory
        known = directory.get(group)
        if known is None or known.settings.calls.mode is not CheckMode.PULL:
            try:
                await directory.refresh()
            except SqlUnavailable as error:
                return refuse_sql(error)
            known = directory.get(group)
        if known is None:
            return refuse_group(group)
        if known.settings.calls.mode is not CheckMode.PULL:
            return Refused(RefusalCode.NOT_PULL_MODE, f"checks of {group} are sent to its endpoints")
        return None

    async def _claim_now(self, call: ClaimCall) -> Sequence[ClaimedCheck] | Refused:
        """What is free now, of a group that is not paused. Looks before it writes: most looks find nothing."""
        board = self._board
        if self._directory.settings_of(call.group).pauses_checks:
            return []
        try:
            if not await board.count_free([call.group]):
                return []
            checks = await board.claim(call.group, call.limit, call.lease_ms)
        except SqlUnavailable as error:
            return refuse_sql(error)
        if not checks:
            return []
        reach(FaultPoint.CHECKS_CLAIMED)
        try:
            return await self._fill(checks)
        except BaseException:
            await self._give_back(checks)
            raise

    async def _fill(self, checks: Sequence[PullCheck]) -> Sequence[ClaimedCheck] | Refused:
        deadline = Deadline.after(self._clock, self._config.read_wait_ms)
        read = await self._reads.find([check.transaction_id for check in checks], deadline)
        if read.value is None:
            await self._give_back(checks)
            return refuse_read(read.currency)
        views = read.value
        await self._remove([check for check in checks if not _is_open(check, views)])
        still_open = [check for check in checks if _is_open(check, views)]
        taken = self._take_as_many_as_fit(still_open, views)
        await self._give_back(still_open[len(taken) :])
        try:
            bodies = await self._bodies.read([views[check.transaction_id] for check in taken])
        except StoreError as error:
            _LOG.warning("bodies_not_read", error=type(error).__name__)
            await self._give_back(taken)
            return refuse_unavailable("the journal cannot be read now")
        return [
            ClaimedCheck(views[check.transaction_id], check.check_number, bodies[check.transaction_id], check)
            for check in taken
            if check.transaction_id in bodies
        ]

    def _take_as_many_as_fit(
        self, checks: Sequence[PullCheck], views: Mapping[str, TransactionView]
    ) -> Sequence[PullCheck]:
        """The first checks whose values fit into one answer, at least one."""
        used = 0
        for index, check in enumerate(checks):
            used += sum(message.value_bytes or 0 for message in views[check.transaction_id].messages)
            if index and used > self._config.max_bytes:
                return checks[:index]
        return checks

    async def _give_back(self, checks: Sequence[PullCheck]) -> None:
        """What cannot be given back now is free again when its check lease is over."""
        try:
            if checks:
                await self._board.release(checks)
        except SqlUnavailable as error:
            _LOG.warning("checks_not_given_back", count=len(checks), reason=str(error))

    async def _remove(self, checks: Sequence[PullCheck]) -> None:
        """The owner of the queue is about to, or died before it could."""
        try:
            if checks:
                await self._board.remove(checks)
        except SqlUnavailable as error:
            _LOG.warning("checks_not_removed", count=len(checks), reason=str(error))


def _is_open(check: PullCheck, views: Mapping[str, TransactionView]) -> bool:
    """Whether the transaction still waits for the answer to this very check."""
    view = views.get(check.transaction_id)
    return (
        view is not None
        and view.state is TransactionState.PREPARED
        and not view.is_unproven
        and view.group == check.group
        and view.check_times + 1 == check.check_number
    )


def _refuse_waiting(waited: Waited) -> Refused | None:
    if waited is Waited.UNREACHABLE:
        return refuse_unavailable("the database cannot be read now")
    if waited is Waited.CROWDED:
        return refuse_unavailable("too many claims wait already")
    return None
