"""So many a second, on average: a bucket that fills steadily. Pure; times are of a clock that is never set."""


class Bucket:
    """Fills with `per_s` a second up to `most`, and is full when new. What is taken may leave a debt."""

    __slots__ = ("_at_ms", "_level", "_most", "_per_s")

    def __init__(self, per_s: float, most: float, now_ms: int) -> None:
        self._per_s = per_s
        self._most = self._level = float(most)
        self._at_ms = now_ms

    def has_one(self, now_ms: int) -> bool:
        """Whether one may be taken."""
        self._fill(now_ms)
        return self._level >= 1

    def is_full(self, now_ms: int) -> bool:
        """Whether it is as a new one would be."""
        self._fill(now_ms)
        return self._level >= self._most

    def find_wait_ms(self, now_ms: int) -> float:
        """How long until one may be taken; 0: now."""
        return 0.0 if self.has_one(now_ms) else (1 - self._level) * 1000 / self._per_s

    def take(self, amount: float = 1) -> None:
        """Takes so much; ask before whether there is any."""
        self._level -= amount

    def give_back(self) -> None:
        """Puts one back."""
        self._level = min(self._most, self._level + 1)

    def _fill(self, now_ms: int) -> None:
        self._level = min(self._most, self._level + (now_ms - self._at_ms) * self._per_s / 1000)
        self._at_ms = now_ms
