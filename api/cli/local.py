"""What commands that work on this machine share: settings, an event loop, Kafka."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.faults import arm_fault, refuse_fault
from api.cli.output import say

if TYPE_CHECKING:
    from api.settings import Settings
    from api.wiring import KafkaParts

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; outbox-bridge.toml here, if it exists."),
]


def load(config: Path | None, flags: Mapping[str, Any] | None = None, *, allow_faults: bool = False) -> "Settings":
    """The settings of this process. Raises ConfigError."""
    from api.settings import load_settings  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load_settings(flags, config)
    if not allow_faults:
        refuse_fault(settings)
    elif (fault := arm_fault(settings)) is not None:
        say(f"FAULT ARMED: this process dies at passing {fault.passing} of {fault.point.name}", "bold red")
    return settings


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs until it is done, on the faster event loop."""
    import uvloop  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def with_kafka(config: Path | None, act: Callable[["KafkaParts", "Settings"], Awaitable[T]]) -> T:
    """Runs `act` with the cluster of the settings."""
    from api.wiring import kafka_parts  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load(config)

    async def run() -> T:
        parts = kafka_parts(settings)
        try:
            return await act(parts, settings)
        finally:
            await parts.close()

    return run_loop(run())


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: with everything stopped that it started."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def noticed_ctrl_c(*others: signal.Signals) -> Iterator[threading.Event]:
    """The first Ctrl-C, or one of the other signals, sets the event, the second interrupts.

    An exception raised by a signal is lost when it falls into a finalizer; an event is not.
    """
    noticed = threading.Event()

    def notice(_: int, __: FrameType | None) -> None:
        if noticed.is_set():
            raise KeyboardInterrupt
        noticed.set()

    before = {number: signal.signal(number, notice) for number in (signal.SIGINT, *others)}
    try:
        yield noticed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
