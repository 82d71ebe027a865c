"""Commands that use Kafka or SQL themselves: settings, loops, and the option that arms a fault."""

import asyncio
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.output import Column, Output, OutputOption, Row, encode, say, show_documents, show_rows
from bridge.core.errors import ConfigError
from bridge.fault_points import ArmedFault, FaultPoint, arm, parse_fault

if TYPE_CHECKING:
    from api.settings import Settings
    from api.wiring import KafkaParts


AllowFaultsOption = Annotated[
    bool,
    typer.Option("--allow-faults", help="Die where OUTBOX_BRIDGE_FAULT=NAME[:n] says. For tests of crashes only."),
]


def refuse_fault(settings: "Settings") -> None:
    """Raises ConfigError if a fault is set: who set it must also say on the command line that it is meant."""
    if settings.fault is not None:
        raise ConfigError("OUTBOX_BRIDGE_FAULT is set, but only serve, migrate and projection rebuild with "
                          "--allow-faults obey it; unset it, or give that flag")  # fmt: skip


def _find_dev_kafka(settings: "Settings") -> str:
    """Where the Kafka of a `dev` on these data listens, if nothing else is said: it may have taken another port."""
    from api.settings import Origin  # noqa: PLC0415  # slow to import

    note = settings.data_dir / DEV_KAFKA
    if settings.origin("kafka.bootstrap.servers") is not Origin.DEFAULT or not note.exists():
        return ""
    return note.read_text().strip()


def read_seconds(text: str) -> float:
    """A duration such as 1s, 500ms or 2m."""
    read = re.fullmatch(r"(\d{1,6})(ms|s|m|h)", text)
    if read is None:
        raise typer.BadParameter(f"{text!r} is no duration: say 1s, 500ms or 2m")
    return int(read[1]) * _SECONDS[read[2]]


def arm_fault(settings: "Settings") -> ArmedFault | None:
    """Arms what is set; None if nothing is. Raises ConfigError for an unknown name."""
    if settings.fault is None:
        return None
    fault = parse_fault(settings.fault)
    arm(fault)
    return fault


def fault_points(output: OutputOption = Output.TABLE) -> None:
    """List the crash points at which a process can be made to die.

    For tests of crashes: OUTBOX_BRIDGE_FAULT=NAME[:n] together with --allow-faults ends serve, migrate or
    projection rebuild at the n-th passing of the point, as SIGKILL would.
    """
    rows: list[Row] = [{"name": p.name, "role": p.role, "meaning": p.meaning} for p in FaultPoint]
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
        return
    columns: list[Column] = [
        ("POINT", lambda row: row["name"]),
        ("PASSED BY", lambda row: row["role"]),
        ("MEANING", lambda row: row["meaning"]),
    ]
    show_rows(rows, columns)


T = TypeVar("T")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; outbox-bridge.toml here, if it exists."),
]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}

DEV_KAFKA = "dev.kafka"

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def load(config: Path | None, flags: Mapping[str, Any] | None = None, *, allow_faults: bool = False) -> "Settings":
    """The settings of this process. Raises ConfigError."""
    from api.settings import load_settings  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load_settings(flags, config)
    if flags is None and (found := _find_dev_kafka(settings)):
        settings = load_settings({"kafka": {"bootstrap.servers": found}}, config)
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


def with_kafka(
    config: Path | None,
    act: Callable[["KafkaParts", "Settings"], Awaitable[T]],
    flags: Mapping[str, Any] | None = None,
) -> T:
    """Runs `act` with the cluster of the settings. `flags`: settings of the command line."""
    from api.wiring import kafka_parts  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load(config, flags)

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
