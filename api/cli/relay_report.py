"""What `relay` tells while it runs: a line that moves on a terminal, documents for programs."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from api.cli.output import Output, encode, message_console, print_line, say, show_document

if TYPE_CHECKING:
    from outbox.relay import RelayCounts

_LOOK_S: Final = 0.2
_INTERVAL_S: Final = 5.0
_LOG_NAME: Final = "outbox"


class RelayReport:
    """Adds rounds up; they are noted in any thread, told in one."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._began_s = self._told_s = time.monotonic()
        self._told = 0
        self._told_sums: tuple[int, ...] = ()
        self.published = self.parked = self.delayed = 0

    def note(self, counts: "RelayCounts") -> None:
        """One round."""
        with self._lock:
            self.published += counts.published
            self.parked += counts.parked
            self.delayed += counts.delayed

    def watch(self, thread: threading.Thread) -> None:
        """Tells until the thread has ended."""
        with message_console().status("waiting for rows") as status:
            while thread.is_alive():
                thread.join(_LOOK_S)
                status.update(self._line())
                if time.monotonic() - self._told_s >= _INTERVAL_S:
                    self.tell()
        self.tell(is_last=True)

    def tell(self, *, is_last: bool = False) -> None:
        """The sums so far, unless nothing has changed."""
        sums = (self.published, self.parked, self.delayed)
        if not is_last and sums == self._told_sums:
            return
        if self._output is Output.TABLE:
            if is_last:
                print_line(self._line())
        else:
            show_document(encode(self._members()), self._output)
        self._told, self._told_s, self._told_sums = self.published, time.monotonic(), sums

    @contextmanager
    def telling_warnings(self) -> Iterator[None]:
        """What the relay logs meanwhile goes to the user."""
        handler = _Sayer()
        log = logging.getLogger(_LOG_NAME)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)

    def _rate(self) -> float:
        return (self.published - self._told) / max(time.monotonic() - self._told_s, 0.001)

    def _members(self) -> dict[str, object]:
        return {
            "published": self.published,
            "parked": self.parked,
            "delayed": self.delayed,
            "per_second": round(self._rate(), 1),
            "seconds": round(time.monotonic() - self._began_s, 1),
        }

    def _line(self) -> str:
        line = f"{self.published} rows published, {self._rate():.0f} a second"
        if self.parked:
            line += f"; {self.parked} refused: `outbox-bridge relay parked list` tells why"
        return line + (f"; {self.delayed} tries put off" if self.delayed else "")


class _Sayer(logging.Handler):
    """Lines of the relay's log for the user."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage(), "yellow")
