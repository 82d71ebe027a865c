"""`serve`: the bridge's parts as a process, for production."""

from typing import Annotated

import structlog
import typer

from api.cli.faults import AllowFaultsOption
from api.cli.local import ConfigOption, load, run_loop
from api.cli.output import say

_LOG = structlog.get_logger()

RolesOption = Annotated[
    str, typer.Option("--roles", help="What this process does: api, settler (with the checker), projector.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on; loopback if not given.")]
PortOption = Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0: any.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure-no-auth", help="Listen beyond loopback although nobody is asked who he is.")
]


def serve(
    roles: RolesOption = "api,settler,projector",
    host: HostOption = None,
    port: PortOption = None,
    insecure_no_auth: InsecureOption = False,
    allow_faults: AllowFaultsOption = False,
    config: ConfigOption = None,
) -> None:
    """Run parts of the bridge until SIGTERM or Ctrl-C; several processes of each role share the work.

    Needs topics and tables: run `outbox-bridge migrate` once before.
    """
    from api.log_setup import configure_logging  # noqa: PLC0415  # slow to import, not needed for calls over HTTP
    from api.wiring import parse_roles, run_roles  # noqa: PLC0415

    flags = {"http": {"host": host, "port": port}, "insecure_no_auth": insecure_no_auth or None}
    settings = load(config, flags, allow_faults=allow_faults)
    configure_logging(settings.log.level, settings.log.format)
    if settings.fault is not None:
        _LOG.critical("fault_armed", fault=settings.fault)
    run_loop(run_roles(settings, parse_roles(roles), on_ready=lambda url: say(f"ready: {url} ({roles})")))
