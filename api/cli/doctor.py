"""`doctor`: looks at everything a bridge rests on and names the remedy of what is wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from api.cli.http_calls import DEFAULT_URL, UrlOption
from api.cli.local import ConfigOption, load, run_loop
from api.cli.output import Exit, Output, OutputOption, encode, printable, result_console, show_documents

if TYPE_CHECKING:
    from api.cli.examinations import Diagnosis

_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "broken": ("broken ", "bold red")}


def doctor(config: ConfigOption = None, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Look at Kafka, topics, rights, clocks, SQL, Java, the bridge and the groups' endpoints; name each remedy.

    To read the brokers' clocks it appends one record without effect to each queue of the journal.
    Exit code 1 if something is broken.
    """
    from api.cli.examinations import examine  # noqa: PLC0415  # slow to import

    diagnoses = run_loop(examine(load(config), url))
    if output is Output.TABLE:
        _show(diagnoses)
    else:
        show_documents([encode(diagnosis._asdict()) for diagnosis in diagnoses], output)
    if any(diagnosis.verdict == "broken" for diagnosis in diagnoses):
        raise typer.Exit(Exit.FAILED)


def _show(diagnoses: Sequence["Diagnosis"]) -> None:
    console = result_console()
    for verdict, what, found, remedy in diagnoses:
        console.print(Text.assemble(_MARKS[verdict], f"  {what:16}  ", printable(found)))
        if remedy:
            console.print(Text.assemble((f"{'':27}what to do: ", "bold"), printable(remedy)))
