"""Lets rounds wait for their slots; who is next is decided in `checker.concurrency`."""

import asyncio

from checker.concurrency import Slots


class SlotGate:
    """One waiter for each group at a time."""

    def __init__(self, total: int) -> None:
        self.slots = Slots(total)
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
        """A round is over; see `Slots.give_back`."""
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
