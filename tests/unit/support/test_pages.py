"""The runner of the documents' pages lets no failure pass."""

import subprocess
from pathlib import Path

import pytest

from tests.support.pages import BASH, make_script, read_steps

_OPEN = "<!-- run until: ready -->\n```\n{}\n```\n"
_WAITS = "trap '{}' INT; echo ready; while true; do sleep 0.01; done"


def follow(text: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    page, terminals = folder / "page.md", folder / "terminals"
    page.write_text(text)
    terminals.mkdir()
    return subprocess.run(
        [*BASH, make_script(read_steps(page))],
        env={"PATH": "/usr/bin:/bin", "TERMINALS": str(terminals)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_page_goes_on_beside_what_goes_on(tmp_path: Path) -> None:
    """What was given and exported is known in a terminal, which ends where the page says so, and not before."""
    given = "<!-- given: export ONE=1 -->\n"
    ends = "trap 'echo $ONE > ended; exit 0' INT; echo ready; while true; do sleep 0.01; done"
    before, after = "<!-- run -->\n```\n[ ! -e ended ]\n```\n", "<!-- run -->\n```\ncat ended\n```\n"
    done = follow(given + _OPEN.format(ends) + before + "\n<!-- Ctrl-C -->\n" + after, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n1\n", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("<!-- run -->\n```bash\nfalse\ntrue\n```\n", "failed: false", id="a command"),
        pytest.param("<!-- given: false -->\n", "failed: false", id="what is given"),
        pytest.param(_OPEN.format("echo other"), "ended before it said: ready", id="a terminal that ends"),
        pytest.param(_OPEN.format(_WAITS.format("exit 3")), "ended with 3 after Ctrl-C", id="an end with an error"),
        pytest.param(
            _OPEN.format(_WAITS.format("echo Traceback; exit 0")), "a defect after Ctrl-C", id="an end with a defect"
        ),
    ],
)
def test_failure_ends_the_page(text: str, told: str, tmp_path: Path) -> None:
    """And is named."""
    done = follow(text, tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
