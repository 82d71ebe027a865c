"""Spark's session, without Spark."""

import errno
import os
import subprocess

import pytest
from py4j.protocol import Py4JNetworkError

from bridge.broker.ports import find_java
from spark.errors import BadUsage, Indeterminate, explain
from spark.options import parse_options
from spark.reconcile import explained
from spark.session import java_flags


@pytest.mark.parametrize("is_brief", [True, False])
def test_java_starts_with_the_flags_of_short_and_of_long_jobs(is_brief: bool) -> None:
    """Java refuses a flag that it does not know; the only sign would be a Spark that does not start."""
    flags = ["-Xmx1024m", *java_flags(1_024, is_brief=is_brief).split()]
    started = subprocess.run([find_java().path, *flags, "-version"], capture_output=True, text=True, check=False)
    assert (started.returncode, "warning" in started.stderr.lower()) == (0, False), started.stderr


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o65.load.\n: org.postgresql.util.PSQLException: FATAL: no user\n\tat x",
            "org.postgresql.util.PSQLException: FATAL: no user",
        ),
        (
            "An error occurred while calling o65.load.\n: java.lang.Error: no\n\tat x\nCaused by: java.io.Other: why\n",
            "java.io.Other: why",
        ),
        (
            "An error occurred while calling x.\n: E: Python worker exited unexpectedly (crashed).\nCaused by: F\n",
            "a Python worker has ended in the middle of its work: was it killed, as where memory is short?",
        ),
        ("[NO_SUCH] a table\nmore", "[NO_SUCH] a table"),
    ],
)
def test_reason_is_told_and_not_the_call(said: str, told: str) -> None:
    """What a database has refused, as a password, has no cause besides."""
    assert explain(RuntimeError(said)) == told


@pytest.mark.parametrize(("given", "names"), [("", []), ("a, b", ["a", "b"]), ("a,", ["a"])])
def test_topics_are_named_with_or_without_blanks(given: str, names: list[str]) -> None:
    """None at all are all of them."""
    assert parse_options(["--out", "o", "--kafka", "k:1", "--topics", given]).topics == names


@pytest.mark.parametrize("given", [",", " "])
def test_topics_that_name_none_are_not_all_of_them(given: str) -> None:
    """As of a variable that nobody has set."""
    with pytest.raises(BadUsage, match="names no topic"):
        parse_options(["--out", "o", "--kafka", "k:1", "--topics", given])


def interrupt() -> None:
    """As PySpark's `collect` ends."""
    try:
        raise KeyboardInterrupt
    finally:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_ctrl_c_is_no_error_of_java() -> None:
    """PySpark, on its way out, asks Java on the connection that was closed: exit code 3 says that another try helps."""
    with pytest.raises(KeyboardInterrupt), explained():
        interrupt()


@pytest.mark.parametrize(("number", "is_told"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_full_disk_is_one_of_two(number: int, is_told: bool) -> None:
    """Spark spills into a folder of its own, which its error does not name."""
    with pytest.raises(Indeterminate) as raised, explained():
        raise OSError(number, os.strerror(number))
    assert ("SPARK_LOCAL_DIRS" in raised.value.remedy) is is_told
