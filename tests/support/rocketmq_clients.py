"""Unmodified clients of Apache RocketMQ, from Maven Central, and Java programs that use them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

_PROGRAMS = ROOT / "tests" / "e2e" / "rocketmq"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outbox-bridge"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def find_jars(version: str, artifact: str = "rocketmq-client") -> Path:
    """A folder with the jars of a client; downloaded once. Without Maven or a JDK the test is skipped, by name."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {missing[0]}: clients of RocketMQ cannot be run")
    jars = _CACHE / f"{artifact}-{version}"
    if not jars.exists():
        part = jars.with_name(f"{jars.name}.{os.getpid()}")
        command = ["mvn", "-q", "-B", "-f", str(_PROGRAMS / "pom.xml"), f"-Dclient={version}", f"-Dartifact={artifact}"]
        done = subprocess.run(
            [*command, _COPY, f"-DoutputDirectory={part}"], capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]
        try:
            part.rename(jars)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return jars


def compile_program(name: str, jars: Path, folder: Path) -> Path:
    """The folder with its classes."""
    classes = folder / f"classes-{jars.name}"
    command = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(_PROGRAMS / f"{name}.java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return classes


def java(jars: Path, folder: Path, *options: str) -> list[str]:
    """A command line up to the class; logs go to the folder."""
    classes = folder / f"classes-{jars.name}"
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")]
    own = ["-Xmx256m", f"-Duser.home={folder}", "-Drocketmq.client.logUseSlf4j=false"]
    return ["java", *opens, *own, *options, "-cp", f"{classes}:{jars}/*"]


def run_program(command: Sequence[str], seconds: float = 90) -> tuple[int, list[str]]:
    """Exit code, and what it wrote."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()[-20:]]
