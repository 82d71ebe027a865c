"""How a job's end becomes the command's: with a job that ends as it is told, for Spark itself takes long to start."""

import json
import signal
import subprocess
import sys

import pytest

from api.cli.reports import _follow
from tests.support.source_tree import ROOT

_RUN = """
import json, sys, typer
from api.cli.reports import run_job
try:
    print(run_job("tests.support.ending_job", json.loads(sys.argv[1])).lines)
except typer.Exit as done:
    sys.exit(done.exit_code)
"""


_KILLED = """
import os, sys
from spark.reconcile import explained, run_command
from spark.session import running_session
def work(tell):
    with running_session(cores=1, is_brief=True) as spark:
        java = spark.sparkContext._gateway.proc
        java.kill()
        java.wait()
        with explained():
            return spark.range(1).count()
sys.exit(run_command(work))
"""


def start(**given: object) -> "subprocess.Popen[str]":
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        pytest.param({"result": "there"}, 0, ["[   0.1 s] first step"], id="pass"),
        pytest.param(
            {"code": 2, "error": "no such topic"},
            2,
            ["[   0.1 s] first step", "error: no such topic", "what to do: Something else."],
            id="error",
        ),
    ],
)
def test_steps_and_reason_are_told_and_noise_is_not(given: dict[str, object], code: int, told: list[str]) -> None:
    """What Java says at each start hides what matters."""
    job = start(**given)
    out, err = job.communicate(timeout=300)
    assert job.returncode == code
    assert err.splitlines()[-len(told) :] == told
    assert "noise" not in err
    assert ("there" in out) == (code == 0)


@pytest.mark.parametrize("code", [99, 1, 0])
def test_defect_is_no_finding(code: int) -> None:
    """Python ends with 1 for a defect; without a result that is no verdict, and the last words are shown."""
    job = start(code=code)
    _, err = job.communicate(timeout=300)
    assert job.returncode == 3
    assert "noise of Java" in err
    assert "error: the job has ended with" in err
    assert ("RuntimeError: a defect" in err) == (code == 99)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_job_and_command(number: signal.Signals, code: int) -> None:
    """No job goes on by itself, whoever was signalled; a verdict it is not."""
    job = start(is_waiting=1)
    assert job.stderr is not None
    for line in job.stderr:
        if "first step" in line:
            break
    job.send_signal(number)
    _, err = job.communicate(timeout=300)
    assert job.returncode == code
    assert "what was begun does not count" in err


def test_java_that_is_killed_is_no_defect() -> None:
    """As the kernel does where memory is short: what has ended is told, and what to do."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 3
    assert "error: Java has ended in the middle of its work\nwhat to do: " in done.stderr
    assert "defect" not in done.stderr


def test_defect_is_told_however_long_its_traceback_is() -> None:
    """Without it nobody can report the defect."""
    work = "def work(tell, left=50):\n    return work(tell, left - 1) if left else 1 // left\n"
    run = f"import sys\nfrom spark.reconcile import run_command\n{work}sys.exit(run_command(work))"
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    said = _follow(done.stderr.splitlines(keepends=True))
    assert (done.returncode, said.reason) == (3, "")
    assert any("ZeroDivisionError" in line for line in said.rest)
