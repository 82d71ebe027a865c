"""Ctrl-C in a long run: the first one lets it come to its end early, a second one ends it at once."""

import signal
import threading
import time
from types import FrameType

_SAME_S = 2.0


def stop_at_ctrl_c(stopping: threading.Event) -> None:
    """Sets `stopping` at the first SIGINT or SIGTERM; raises KeyboardInterrupt at the next."""
    first: list[float] = []

    def stop(*_: int | FrameType | None) -> None:
        """A process and its group may be told of one Ctrl-C each: only a later one is a second."""
        if first and time.monotonic() > first[0] + _SAME_S:
            raise KeyboardInterrupt
        first.append(time.monotonic())
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
