"""When a client is to be replaced: it was used, and for too long nobody has answered."""

import threading
import time
from collections.abc import Callable, Hashable

DEAF_S = 15.0
"""A client can stay deaf for ever after a broker was frozen (librdkafka 4615, 4820, 5301)."""


class Silence:
    """How long the calls about each thing have had no answer. A refusal is an answer; a pause without calls is none."""

    def __init__(self, limit_s: float = DEAF_S, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._limit_s = limit_s
        self._since: dict[Hashable, float] = {}

    def end(self, about: Hashable = None) -> None:
        """Somebody has answered."""
        self._since.pop(about, None)

    def go_on(self, about: Hashable = None, since: float | None = None) -> bool:
        """Nobody has answered a call that began then (now). Whether that has lasted for too long: replace the client.

        Then all begins anew: so the next one has as long as this one had.
        """
        now = self.now()
        first = self._since.setdefault(about, now if since is None else since)
        if now - first < self._limit_s:
            return False
        self._since.clear()
        return True


def let_go(end: Callable[[], object]) -> None:
    """Ends a replaced client on the side: that waits for its threads, and perhaps for a broker."""
    threading.Thread(target=end, name="kafka-let-go", daemon=True).start()
