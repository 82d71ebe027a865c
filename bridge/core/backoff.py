"""Pauses that grow. Pure."""


class Backoff:
    """A pause after each failure, twice as long as the one before, up to a limit."""

    __slots__ = ("_first_ms", "_longest_ms", "pause_ms")

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self.pause_ms = 0
        """The last one; 0 after a success."""

    def next_ms(self) -> int:
        """The pause after one more failure."""
        self.pause_ms = min(self._longest_ms, max(self._first_ms, self.pause_ms * 2))
        return self.pause_ms

    def reset(self) -> None:
        """It works again."""
        self.pause_ms = 0
