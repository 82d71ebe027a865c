"""docs/: the commands of a page that are marked to run, one after the other, by the commands of the built wheel."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.example_process import environment
from tests.support.example_stage import Stage
from tests.support.source_tree import ROOT

_TIMEOUT_S = 200


def blocks(page: Path, mark: str) -> list[tuple[str, str]]:
    """What stands behind the mark, and the text of the block below it."""
    return re.findall(rf"^<!-- {mark}:? ?(\S*) -->\n```\w+\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if blocks(page, "run")]


@pytest.mark.parametrize("bin_folder", ["newest"], indirect=True)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_can_be_followed(page: Path, stage: Stage, bin_folder: Path, tmp_path: Path) -> None:
    """Its files are written, its commands run in one shell; none fails."""
    for name, text in blocks(page, "file"):
        (tmp_path / name).write_text(text)
    script = "\n".join(text for _, text in blocks(page, "run"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=_settings_of(stage, bin_folder),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if page.name == "start.md":
        _look_at_the_rescue(done.stdout)


def _settings_of(stage: Stage, bin_folder: Path) -> dict[str, str]:
    own = {name: value for name, value in stage.bridge.environment().items() if name.startswith("OUTBOX_BRIDGE_")}
    path = f"{bin_folder}:{environment()['PATH']}"
    return environment({**own, "OUTBOX_BRIDGE_URL": stage.api.url, "PATH": path})


def _look_at_the_rescue(said: str) -> None:
    before, after = said.split("the shop is dead")
    assert before.count('"order": 1') + before.count('{"order":1}') == 1, said
    assert "PREPARED" in after.partition("COMMIT\n")[0], said
    assert after.partition("COMMIT\n")[2].count("order") >= 2, said
    assert "check" in after, said
