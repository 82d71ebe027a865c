"""`demo`: three orders of a real shop, one of them rescued after a SIGKILL, and a verdict anybody can recompute."""

import contextlib
import signal
from typing import Annotated

import typer

from api.cli.failures import Exit
from api.cli.local import sigterm_as_ctrl_c
from api.cli.output import say
from api.cli.stage import Stage
from api.cli.steps import Steps
from api.cli.story import Story
from bridge.broker.jars import fetch_jars
from bridge.broker.java import find_java

BreakOption = Annotated[
    bool, typer.Option("--break", help="Hide one message from the consumer, to see that the verdict notices.")
]
StayOption = Annotated[bool, typer.Option("--stay", help="Keep everything running at the end, until Ctrl-C.")]


def demo(is_broken: BreakOption = False, stay: StayOption = False) -> None:
    """A committed order, one rolled back, and one rescued after its producer was killed. On a real Kafka.

    Exit code 1 if the consumer did not get each order of the shop's database exactly once.
    """
    find_java()
    with Steps() as steps:
        steps.begin("Kafka")
        fetch_jars(report=steps.report_jars)
    with sigterm_as_ctrl_c(), Stage() as stage:
        is_so = Story(stage, is_broken=is_broken).tell()
        if stay:
            say("everything keeps running; Ctrl-C ends it")
            _wait_for_ctrl_c()
    if not is_so:
        raise typer.Exit(Exit.FAILED)


def _wait_for_ctrl_c() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
