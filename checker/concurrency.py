"""Which groups may start a round now: a limit for each group that adapts, and one for all. Pure.

A group whose last round got no answer is *silent*; silent groups share a quarter of all slots, so that dead
endpoints never hold up the others. A group's limit grows by one with each answered round and halves with
each unanswered one.
"""

from collections import deque
from itertools import count

_SILENT_SHARE = 4
_GROUP_SHARE = 2  # no group has more than half of all slots, whatever its settings say


class _Group:
    """`turn`: when its waiting round was asked for; 0 if none waits."""

    __slots__ = ("in_use", "is_silent", "limit", "most", "turn")

    most: int
    turn: int

    def __init__(self) -> None:
        self.limit = 1
        self.in_use = 0
        self.is_silent = False


class ConcurrencyLimiter:
    """Slots for rounds; first come, first served among those that may."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._groups: dict[str, _Group] = {}
        self._queues: dict[bool, deque[tuple[int, str]]] = {False: deque(), True: deque()}  # by being silent
        self._turns = count(1)
        self.in_use = 0
        self._silent_in_use = 0

    def want(self, group: str, most: int) -> None:
        """The group has one round to start; `most`: its own limit."""
        known = self._groups.setdefault(group, _Group())
        known.most = max(1, min(most, self._total // _GROUP_SHARE))
        known.limit = min(known.limit, known.most)
        known.turn = next(self._turns)
        self._queue(group, known)

    def withdraw(self, group: str) -> None:
        """The group wants none any more."""
        known = self._groups.get(group)
        if known is not None:
            known.turn = 0

    def grant(self) -> list[str]:
        """Groups whose round may start now; each holds a slot until `give_back`."""
        granted = []
        while self.in_use < self._total and (group := self._next()) is not None:
            known = self._groups[group]
            known.turn = 0
            known.in_use += 1
            self.in_use += 1
            self._silent_in_use += known.is_silent
            granted.append(group)
        return granted

    def give_back(self, group: str, *, was_answered: bool | None) -> None:
        """A round is over. `was_answered` None: nobody was asked, which says nothing about the group."""
        known = self._groups[group]
        self.in_use -= 1
        self._silent_in_use -= known.is_silent
        known.in_use -= 1
        if was_answered is not None:
            self._learn(known, was_answered)
        if known.turn:
            self._queue(group, known)

    def forget(self, group: str) -> None:
        """Drops what is known of a group that has nothing pending."""
        known = self._groups.get(group)
        if known is not None and not known.in_use and not known.turn:
            del self._groups[group]

    def is_silent(self, group: str) -> bool:
        """Whether the group's last round got no answer."""
        known = self._groups.get(group)
        return known is not None and known.is_silent

    def in_use_of(self, group: str) -> int:
        """How many rounds the group has now."""
        known = self._groups.get(group)
        return known.in_use if known else 0

    def limit_of(self, group: str) -> int:
        """How many rounds the group may have at once now."""
        known = self._groups.get(group)
        return known.limit if known else 1

    def _learn(self, known: _Group, was_answered: bool) -> None:
        if known.is_silent is was_answered:
            known.is_silent = not was_answered
            self._silent_in_use += known.in_use if known.is_silent else -known.in_use
        known.limit = min(known.most, known.limit + 1) if was_answered else max(1, known.limit // 2)

    def _queue(self, group: str, known: _Group) -> None:
        """A group at its own limit waits aside, until a round of its own ends."""
        if known.in_use < known.limit:
            self._queues[known.is_silent].append((known.turn, group))

    def _next(self) -> str | None:
        heads = [head for is_silent in (False, True) if (head := self._head(is_silent)) is not None]
        if not heads:
            return None
        _, is_silent = min(heads)
        return self._queues[is_silent].popleft()[1]

    def _head(self, is_silent: bool) -> tuple[int, bool] | None:
        """The first of a queue that still waits there and may have a slot."""
        queue = self._queues[is_silent]
        while queue and not self._is_current(queue[0], is_silent):
            queue.popleft()
        is_full = is_silent and self._silent_in_use >= self._total // _SILENT_SHARE
        return (queue[0][0], is_silent) if queue and not is_full else None

    def _is_current(self, item: tuple[int, str], is_silent: bool) -> bool:
        turn, group = item
        known = self._groups.get(group)
        if known is None or known.turn != turn:
            return False
        return known.is_silent is is_silent and known.in_use < known.limit
