"""What this process knows of a bridge that is away, so that not every caller has to wait to find out."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable

from outbox.client.replies import NoReply

FAILURES = 3  # in a row: one may be a single connection's fault
SPAN_S = 0.2  # from the beginning of the first of them: a restart behind a proxy breaks many connections in one moment
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 2.0
PROBE_S = 1.5  # what one call may lose to find out; an idle bridge answers in milliseconds

_LOG = logging.getLogger(__name__)


class Breaker:
    """Of one bridge. After failures in a row nothing is sent to it, but one call at a time that finds out.

    Any answer of the bridge, also a refusal, says that it is back.
    """

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._first_failed_s = math.inf
        self._answered_s = -math.inf
        self._reason = ""
        self._pause_s = FIRST_PAUSE_S
        self._next_s: float | None = None  # when the next call may try

    @property
    def is_open(self) -> bool:
        """Whether the bridge is taken to be away."""
        return self._next_s is not None

    def admit(self) -> float:
        """How long a call may take that is sent now; 0: it must not be sent."""
        with self._lock:
            now_s = self._now()
            if self._next_s is None:
                return math.inf
            if now_s < self._next_s:
                return 0.0
            self._next_s = now_s + PROBE_S  # if nothing is heard of this one, another may try then
            return PROBE_S

    def refuse(self) -> NoReply:
        """What a call hears that must not be sent."""
        left_s = max(0.0, (self._next_s or 0.0) - self._now())
        why = f"taken to be away: {self._failures} tries in a row failed, the last with: {self._reason}"
        return NoReply(f"{why}; tried again in {left_s:.1f} s", is_sent=False, is_final=True)

    def note_answer(self) -> None:
        """The bridge has answered."""
        with self._lock:
            self._answered_s = self._now()
            self._failures, self._first_failed_s = 0, math.inf
            is_back, self._next_s = self._next_s is not None, None
        if is_back:
            _LOG.warning("bridge_back url=%s", self.url)

    def note_failure(self, began_s: float, reason: str) -> None:
        """An exchange that began then was not answered by the bridge."""
        with self._lock:
            now_s = self._now()
            if began_s < self._answered_s:  # others have been answered since
                return
            self._failures += 1
            self._first_failed_s = min(self._first_failed_s, began_s)
            self._reason = reason
            is_new = self._next_s is None
            if is_new and (self._failures < FAILURES or now_s - self._first_failed_s < SPAN_S):
                return
            self._pause_s = FIRST_PAUSE_S if is_new else min(2 * self._pause_s, MAX_PAUSE_S)
            self._next_s = now_s + self._pause_s
        if is_new:
            _LOG.warning("bridge_away url=%s failures=%d reason=%s", self.url, self._failures, reason)


_BREAKERS: dict[str, Breaker] = {}


def breaker_of(url: str) -> Breaker:
    """The one that all connections of this process to a bridge share."""
    return _BREAKERS.setdefault(url, Breaker(url))


if hasattr(os, "register_at_fork"):  # the lock may be held by a thread of the parent
    os.register_at_fork(after_in_child=_BREAKERS.clear)
