"""`fault-points`, and the option with which a process obeys `OUTBOX_BRIDGE_FAULT`."""

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.output import Column, Output, OutputOption, Row, encode, show_documents, show_rows
from bridge.core.errors import ConfigError
from bridge.fault_points import ArmedFault, FaultPoint, arm, parse_fault

if TYPE_CHECKING:
    from api.settings import Settings

AllowFaultsOption = Annotated[
    bool,
    typer.Option("--allow-faults", help="Die where OUTBOX_BRIDGE_FAULT=NAME[:n] says. For tests of crashes only."),
]


def refuse_fault(settings: "Settings") -> None:
    """Raises ConfigError if a fault is set: who set it must also say on the command line that it is meant."""
    if settings.fault is not None:
        raise ConfigError("OUTBOX_BRIDGE_FAULT is set, but only serve, migrate and projection rebuild with "
                          "--allow-faults obey it; unset it, or give that flag")  # fmt: skip


def arm_fault(settings: "Settings") -> ArmedFault | None:
    """Arms what is set; None if nothing is. Raises ConfigError for an unknown name."""
    if settings.fault is None:
        return None
    fault = parse_fault(settings.fault)
    arm(fault)
    return fault


def fault_points(output: OutputOption = Output.TABLE) -> None:
    """List the crash points at which a process can be told to die.

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
