"""The project's own files, as the tidy tests read them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "bridge", "checker", "outbox", "spark")
FOLDERS = (*PACKAGES, "alembic", "benchmarks", "docker", "docs", "examples", "requirements", "tests", ".ci")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".in", ".yaml", ".yml", ".html", ".js", ".css", ".sha256", ".mako", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    """Every `.py` below these folders of the project."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    """Everything people read or write: code, docs, settings."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    candidates = [*below, *ROOT.iterdir()]
    return sorted(
        path
        for path in candidates
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts and path.name != ".git"
    )


@cache
def parsed(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


def functions_of(path: Path) -> Iterator[Function]:
    """Every function and method, nested ones too."""
    return (node for node in ast.walk(parsed(path)) if isinstance(node, Function))


def place(path: Path, node: ast.AST | None = None) -> str:
    """Where it is, for a message one can click on."""
    line = getattr(node, "lineno", None)
    return str(path.relative_to(ROOT)) + (f":{line}" if line else "")


def read_commit() -> str:
    """The commit of the project, with a mark if there are changes."""
    commit = run_git("rev-parse", "--short", "HEAD")
    return (commit or "unknown") + ("+" if run_git("status", "--porcelain", "--untracked-files=no") else "")


def run_git(*arguments: str) -> str:
    """What git says of the project; empty if it fails."""
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
