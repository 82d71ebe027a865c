"""From the first use to `close`: nothing new begins after it, and what has begun may end."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.errors import Closed


class Lifetime:
    """Counts what is under way; safe in threads."""

    def __init__(self) -> None:
        self._under_way = 0
        self._is_closing = False
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        _ALL.add(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Something that `close` waits for. Raises Closed after it."""
        with self._lock:
            if self._is_closing:
                raise Closed("used after close")
            self._under_way += 1
        try:
            yield
        finally:
            self._leave()

    def close(self, call_when_idle: Callable[[], None]) -> bool:
        """Ends it; whether this is the first call. What is given is called, from any thread, once nothing goes on."""
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            is_idle = self._under_way == 0
            if not is_idle:
                self._waiting.append(call_when_idle)
        if is_idle:
            call_when_idle()
        return is_first

    def forget_other_threads(self) -> None:
        """After a fork: what other threads had under way, and the lock they may have held, are the parent's."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting.clear()

    def _leave(self) -> None:
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            idle = self._waiting if self._under_way == 0 else []
            if idle:
                self._waiting = []
        for call_when_idle in idle:
            call_when_idle()


_ALL: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


def _after_fork() -> None:
    for lifetime in list(_ALL):
        lifetime.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
