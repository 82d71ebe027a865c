"""Room for calls with a transaction that is larger than a call should be: few at once, since each takes much memory."""


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
