"""Where rounds wait for their slots, and where calls with a large transaction wait."""

import asyncio

from checker.concurrency import ConcurrencyLimiter


class ConcurrencyGate:
    """One waiter for each group at a time."""

    def __init__(self, total: int) -> None:
        self.slots = ConcurrencyLimiter(total)
        self._waiters: dict[str, asyncio.Future[bool]] = {}
        self._is_closed = False

    async def take(self, group: str, most: int) -> bool:
        """Waits for a slot of the group; False when the gate was closed meanwhile."""
        if self._is_closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[group] = waiter
        self.slots.want(group, most)
        self._let_in()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._leave(group, waiter)
            raise

    def give_back(self, group: str, *, was_answered: bool | None) -> None:
        """A round is over; see `ConcurrencyLimiter.give_back`."""
        self.slots.give_back(group, was_answered=was_answered)
        self._let_in()

    def close(self) -> None:
        """Nobody is let in any more."""
        self._is_closed = True
        for group, waiter in self._waiters.items():
            self.slots.withdraw(group)
            if not waiter.done():
                waiter.set_result(False)
        self._waiters.clear()

    def _let_in(self) -> None:
        while granted := self.slots.grant():
            for group in granted:
                waiter = self._waiters.pop(group)
                if waiter.done():  # cancelled in this very step
                    self.slots.give_back(group, was_answered=None)
                else:
                    waiter.set_result(True)

    def _leave(self, group: str, waiter: asyncio.Future[bool]) -> None:
        if waiter.done() and not waiter.cancelled():
            if waiter.result():
                self.give_back(group, was_answered=None)
        elif self._waiters.get(group) is waiter:
            del self._waiters[group]
            self.slots.withdraw(group)


class LargeCalls:
    """One call of a group, `most` of all, and one of those to groups whose last one got no answer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: set[str] = set()
        self._silent: set[str] = set()

    def take(self, group: str) -> bool:
        """Whether the group may make one now; to be given back."""
        is_silent_full = group in self._silent and not self._silent.isdisjoint(self._under_way)
        if group in self._under_way or len(self._under_way) >= self._most or is_silent_full:
            return False
        self._under_way.add(group)
        return True

    def give_back(self, group: str, *, was_answered: bool) -> None:
        """The call is over."""
        self._under_way.discard(group)
        if was_answered:
            self._silent.discard(group)
        else:
            self._silent.add(group)
