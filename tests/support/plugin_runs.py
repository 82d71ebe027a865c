"""Runs of pytest as a user of the package has them: its plugins are found by pyproject's entry points."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.source_tree import ROOT


class UserProject:
    """A folder with a user's tests, without any setting of ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site = folder / "site"
        plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
        metadata = self._site / "the_plugin_under_test-1.dist-info"
        metadata.mkdir(parents=True)
        lines = ["[pytest11]", *[f"{name} = {module}" for name, module in plugins.items()]]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: the-plugin-under-test\nVersion: 1\n")
        files = "outbox/__init__.py,,\noutbox/pytest_plugin.py,,\n"  # pytest looks at these
        (metadata / "RECORD").write_text(files)
        (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    def write(self, name: str, text: str) -> None:
        """A file of the user's."""
        (self._folder / name).write_text(text)

    def hide(self, module: str) -> None:
        """As if it were not installed."""
        hook = f"import sys\nsys.modules[{module!r}] = None\n"
        (self._site / "sitecustomize.py").write_text(hook)

    def run(self, *arguments: str, before: str = "") -> "subprocess.CompletedProcess[str]":
        """One run in a process of its own; warnings are errors. `before`: Python code before pytest begins."""
        environment = {**os.environ, "PYTHONPATH": f"{self._site}{os.pathsep}{ROOT}"}
        start = f"{before}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
        command = [sys.executable, "-c", start, "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *arguments]
        return subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
