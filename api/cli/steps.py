"""Progress of a start, on standard error: a spinner on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.status import Status
from rich.text import Text

from api.cli.output import message_console
from bridge.broker.jars import FetchProgress

_EVERY = 10  # jars, for a line where no bar can be drawn


class Steps:
    """One step after the other, each with the time it took."""

    def __init__(self) -> None:
        self._console = message_console()
        self._status: Status | None = None
        self._start = self._step_start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the first step."""
        return time.monotonic() - self._start

    def begin(self, name: str) -> None:
        """A step has begun."""
        self._step_start = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(f"starting {name} ...")
            self._status.start()

    def end(self, text: str) -> None:
        """The step has come to its end."""
        self.close()
        took = time.monotonic() - self._step_start
        self._console.print(Text.assemble(("  ok ", "green"), text, (f"  {took:.1f} s", "dim")))

    def report_jars(self, progress: FetchProgress) -> None:
        """Kafka's jars are being fetched."""
        done = f"fetching Kafka, once: {progress.fetched} of {progress.total} jars"
        if self._status is not None:
            width = 24 * progress.fetched // progress.total
            self._status.update(f"{done} [green]{'━' * width}[/green][dim]{'━' * (24 - width)}[/dim]")
        elif progress.fetched % _EVERY == 0 or progress.fetched in {1, progress.total}:
            self._console.print(Text(f"  {done}"))

    def close(self) -> None:
        """No step runs any more."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
