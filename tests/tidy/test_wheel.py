"""The wheel: what comes out depends on the project's files alone."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.source_tree import ROOT


def copy_project(folder: Path) -> None:
    """Only what a wheel is made of, with times of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copyfile)


def build_wheel(folder: Path, *, umask: int, zone: str) -> bytes:
    """On a machine with these habits."""
    folder.mkdir()
    previous = os.umask(umask)
    try:
        copy_project(folder)
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        subprocess.run(command, cwd=folder, env={**os.environ, "TZ": zone}, check=True, capture_output=True)
    finally:
        os.umask(previous)
    (wheel,) = (folder / "dist").iterdir()
    return wheel.read_bytes()


def test_wheel_is_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    """Byte for byte: whoever builds a tag can compare."""
    first = build_wheel(tmp_path / "first", umask=0o022, zone="UTC")
    second = build_wheel(tmp_path / "second", umask=0o077, zone="Asia/Kolkata")
    assert first == second
