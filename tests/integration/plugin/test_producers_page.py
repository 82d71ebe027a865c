"""docs/producers.md: a stranger who follows the page must get what it says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import outbox
from api.cli.main import app
from outbox.testing.bridge import MemoryOutboxBridge
from outbox.testing.process import BridgeProcess
from tests.support.plugin_runs import UserProject
from tests.support.source_tree import ROOT

PAGE = (ROOT / "docs" / "producers.md").read_text()
PYTHON = sys.executable


def blocks(mark: str) -> dict[str, str]:
    """What is in the blocks that are marked so, by name."""
    found = re.findall(rf"<!-- {mark}:? ?(\S*) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return dict(found)


def bash_lines() -> list[str]:
    """Every command line of the page."""
    return [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[MemoryOutboxBridge]:
    """A bridge where the page has `outbox-bridge dev --topic orders.created`."""
    folder = tmp_path / "bridge"
    folder.mkdir()
    with BridgeProcess("memory", folder) as process:
        made = MemoryOutboxBridge(process)
        made.open()
        made.create_topic("orders.created")
        yield made


def names_of(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def environment(bridge: MemoryOutboxBridge, folder: Path, **more: str) -> dict[str, str]:
    database = f"sqlite:///{folder / 'shop.db'}"
    own = {"BRIDGE_URL": bridge.url, "OUTBOX_BRIDGE_URL": bridge.url, "DATABASE_URL": database}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own, **more}


def test_tests_of_the_page_pass_on_its_service(tmp_path: Path) -> None:
    """Sections 2 and 3 as they stand, with warnings as errors."""
    project = UserProject(tmp_path)
    for name, text in blocks("file").items():
        project.write(name, text)
    run = project.run()
    assert "2 passed" in run.stdout, run.stdout[-4000:] + run.stderr[-1000:]


@pytest.mark.parametrize("name", sorted(blocks("script")))
def test_script_publishes_its_order(name: str, bridge: MemoryOutboxBridge, tmp_path: Path) -> None:
    """The other ways, each as it stands."""
    command = [PYTHON, "-W", "error", "-c", blocks("script")[name]]
    subprocess.run(command, env=environment(bridge, tmp_path), check=True, timeout=60, capture_output=True)
    (message,) = bridge.published("orders.created", at_least=1)
    assert (message.key, message.json()) == (b"42", {"order": 42})


def test_commands_of_the_page_exist_with_their_options() -> None:
    """A renamed option would otherwise be found by the first reader."""
    commands = [shlex.split(line)[1:] for line in bash_lines() if line.startswith("outbox-bridge ")]
    assert len(commands) >= 3
    for words in commands:
        known, options = typer.main.get_command(app), [word for word in words if word.startswith("--")]
        for word in words:
            known = getattr(known, "commands", {}).get(word, known)
        assert {*options} <= {option for parameter in known.params for option in names_of(parameter)}, words


def test_links_of_the_page_lead_somewhere() -> None:
    """To a page, and to a heading in it."""
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        name, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / (name or "producers.md")).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, target


def test_every_error_of_the_table_is_one() -> None:
    """Names of the table, and in it every error that a block can raise."""
    section = PAGE.partition("## What can go wrong")[2].partition("## Other ways")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    elsewhere = {
        "OutboxError", "OutboxConfigError", "OutcomeUnknown", "Refused", "Conflict", "AlreadyResolved",
        "CheckEndpointRefused", "NotPullMode",
    }  # fmt: skip
    errors = {name for name in outbox.__all__ if _is_error(getattr(outbox, name))}
    assert named == errors - elsewhere


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, outbox.OutboxError)
