"""README.md and docs/: the commands of a page, one after the other, with the built wheel, as a reader runs them."""

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli.reports import driver_jars
from spark.read.table_list import SQLITE
from tests.support.bridge_process import wait_until
from tests.support.example_process import EXAMPLES, environment, install_wheel
from tests.support.example_stage import Stage
from tests.support.pages import BASH, PAGES, is_run, make_script, own_network, read_steps
from tests.support.postgres import PostgresServer
from tests.support.source_tree import ROOT

# What a reader must have seen who has followed the page, where commands that do not fail say too little.
SHOWN = {
    "README.md": r'value={"order":42,.*Receipt\(topic=',
    "docs/start.md": r"key=1 .*is dead\n.*PREPARED((?!key=2 ).)*\nCOMMIT\n.* check .*key=1 .*key=2 ",
    "docs/producers.md": r'value={"order":1,((?!key=2 ).)*no answer\n.* PREPARED((?!key=2 ).)*key=2 .* check ',
    "docs/stuck.md": r"PARKED .*done +1\n.* COMMITTED\n",
    "docs/reconciliation.md": r"nothing is wrong.* planted, 0 not found, 0 false\n.* offsets landed",
}
_DEV = "outbox-bridge dev --port 0 --kafka-port 0 --topic orders.created -o jsonl"
_TOOLS = ("curl", "java", "jq", "node", "sqlite3")
_TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(_TIMEOUT_S + 60)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a reader sits: a network, and what the shell has. `bridge`: settings for one that runs already."""

    network: list[str]
    settings: Mapping[str, str]
    bridge: Mapping[str, str]

    def run(self, script: str, folder: Path, settings: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        """To its end, in one shell."""
        (folder / "terminals").mkdir(parents=True)
        return subprocess.run(
            [*self.network, *BASH, script],
            cwd=folder,
            env=environment({**self.settings, **settings, "TERMINALS": str(folder / "terminals")}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel requires: this environment's packages, without the checkout and its commands."""
    folder = tmp_path_factory.mktemp("required")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "outbox" not in path.name and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def desk(
    stage: Stage, required: Path, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """With the wheel installed, an index that has it and nothing else, and a `dev` that runs on free ports."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    driver_jars([SQLITE])  # a page's commands would fetch it, and their network leads nowhere
    folder = tmp_path_factory.mktemp("desk")
    programs = install_wheel(folder, stage.wheel)
    for name in ("pip", "uvicorn"):
        (programs / name).write_text(f'#!/bin/sh\nexec {programs / "python"} -m {name} "$@"\n')
        (programs / name).chmod(0o755)
    settings = {
        "PATH": f"{programs}:{postgres.tools}:{environment()['PATH']}",
        "PYTHONPATH": str(required),
        "PIP_NO_INDEX": "1",
        "PIP_QUIET": "1",
        "PIP_FIND_LINKS": str(stage.wheel.parent),
        "EXAMPLES": str(EXAMPLES),
        **postgres.settings,
    }
    with own_network() as network, running_dev([*network, *_DEV.split()], folder, settings) as bridge:
        yield Desk(network, settings, bridge)


@contextmanager
def running_dev(command: list[str], folder: Path, settings: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """What leads to it."""
    log = folder / "dev.log"
    with log.open("w") as output:
        dev = subprocess.Popen(command, cwd=folder, env=environment(settings), stdout=output, stderr=output)

    def ready() -> "re.Match[str] | None":
        assert dev.poll() is None, log.read_text()
        return re.search(r'^{"event":"ready".*}$', log.read_text(), re.MULTILINE)

    try:
        told = json.loads(wait_until(ready, 120, "a bridge that is ready")[0])
        kafka = json.dumps({"bootstrap.servers": told["kafka"]})
        yield {"OUTBOX_BRIDGE_URL": told["url"], "OUTBOX_BRIDGE_DATA_DIR": told["data"], "OUTBOX_BRIDGE_KAFKA": kafka}
    finally:
        dev.terminate()
        dev.wait(60)


@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_page_can_be_followed(page: Path, desk: Desk, tmp_path: Path) -> None:
    """Its files are written, its commands run; none fails. A page that starts a bridge is told of no other."""
    folder = tmp_path / "shop"
    for name in ("api", "bridge", "checker", "spark", "tests"):  # the shop's own packages: nobody takes them for ours
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('the shop has been asked for it')\n")
    steps = read_steps(page)
    for step in steps:
        if step.kind == "file":
            (folder / step.text).write_text(step.block)
    script = make_script(steps)
    done = desk.run(script, folder, {} if "outbox-bridge dev" in script else desk.bridge)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    shown = SHOWN.get(str(page.relative_to(ROOT)), "")
    assert re.search(shown, done.stdout, re.DOTALL), f"not shown: {shown}\n{done.stdout}"
