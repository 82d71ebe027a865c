"""Spark's session, without Spark."""

import subprocess

import pytest

from bridge.broker.ports import find_java
from spark.session import java_flags


@pytest.mark.parametrize("is_brief", [True, False])
def test_java_starts_with_the_flags_of_short_and_of_long_jobs(is_brief: bool) -> None:
    """Java refuses a flag that it does not know; the only sign would be a Spark that does not start."""
    flags = ["-Xmx1024m", *java_flags(1_024, is_brief=is_brief).split()]
    started = subprocess.run([find_java().path, *flags, "-version"], capture_output=True, text=True, check=False)
    assert (started.returncode, "warning" in started.stderr.lower()) == (0, False), started.stderr
