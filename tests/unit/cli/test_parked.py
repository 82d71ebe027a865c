"""api.cli.parked: nothing is acted on that nobody has seen."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_transactions import TRANSACTION

DEADLINE_S = 60.0
REDRIVE = "/v1/parked/redrive"
BODY = {"action": "resume", "filter": {"producer_group": "orders"}, "rate_per_second": 50}
ARGUMENTS = ("parked", "redrive", "resume", "--reason", "back", "--group", "orders")


def job(state: str, **counts: int) -> dict[str, object]:
    return {"job_id": "j1", "state": state, "counts": counts}


def test_list_asks_for_parked_ones(cli: Cli, bridge: CannedServer) -> None:
    """With the filters of the HTTP interface."""
    bridge.answer("GET", "/v1/parked", 200, {"transactions": [], "next": None})
    assert cli("parked", "list", "--topic", "t", "-o", "json", "--url", bridge.url).out == "[]\n"
    assert bridge.asked[0].query == {"topic": "t", "limit": "50"}


def test_list_shows_why_and_since_when(cli: Cli, bridge: CannedServer) -> None:
    """A parked one has not been resolved, so it has no time of that."""
    row = TRANSACTION | {"state": "PARKED", "resolved_at": None, "reason": "NO_ENDPOINT", "receipts": []}
    row["parked_at"] = "2026-01-31T13:07:00.000Z"
    bridge.answer("GET", "/v1/parked", 200, {"transactions": [row], "next": None})
    header, shown = cli("parked", "list", "--url", bridge.url).out.splitlines()
    assert header.split()[-1] == "PARKED"
    assert "NO_ENDPOINT" in shown
    assert shown.split()[-1] == "2026-01-31T13:07:00.000Z"


def test_redrive_runs_to_its_end(cli: Cli, bridge: CannedServer) -> None:
    """Preview, job, progress, result."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 202, job("running"))
    bridge.answer("GET", f"{REDRIVE}/j1", 200, job("running", resumed=1))
    bridge.answer("GET", f"{REDRIVE}/j1", 200, job("done", resumed=2))
    ended = cli(*ARGUMENTS, "--yes", "--url", bridge.url)
    assert ended.code == 0
    assert [line.split() for line in ended.out.splitlines()] == [["job", "j1"], ["state", "done"], ["resumed", "2"]]
    assert [asked.document for asked in bridge.asked[:2]] == [{**BODY, "preview": True}, {**BODY, "reason": "back"}]


def test_preview_changes_nothing(cli: Cli, bridge: CannedServer) -> None:
    """Only one request, and that one says preview."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": True, "sample": []})
    assert (
        cli(*ARGUMENTS, "--preview", "--url", bridge.url).err == "2 or more transactions match; 0 of them are shown\n"
    )
    assert len(bridge.asked) == 1


def test_reason_is_needed_to_act_and_not_to_look(cli: Cli, bridge: CannedServer) -> None:
    """Nothing is asked of the bridge without one; a preview goes into no audit."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    looking = ("parked", "redrive", "resume", "--url", bridge.url)
    assert cli(*looking).code == 2
    assert bridge.asked == []
    assert cli(*looking, "--preview").code == 0


def test_without_a_terminal_yes_must_be_said(cli: Cli, bridge: CannedServer) -> None:
    """A script that forgot --yes acts on nothing and does not wait for ever."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    ended = cli(*ARGUMENTS, "--url", bridge.url)
    assert ended.code == 2
    assert "--yes" in ended.err
    assert len(bridge.asked) == 1


def test_nothing_to_do_begins_no_job(cli: Cli, bridge: CannedServer) -> None:
    """And is no failure."""
    bridge.answer("POST", REDRIVE, 200, {"count": 0, "more": False, "sample": []})
    assert cli(*ARGUMENTS, "--url", bridge.url).code == 0
    assert len(bridge.asked) == 1


def test_nothing_is_done_to_more_than_were_shown(
    cli: Cli, bridge: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator answers minutes later: what was parked meanwhile nobody has seen, and no commit is taken back."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 200, {"count": 500, "more": False, "sample": []})
    ended = cli(*ARGUMENTS, "--url", bridge.url)
    assert ended.code == 4
    assert "500 transactions match by now, 2 were shown" in ended.err
    assert [asked.document for asked in bridge.asked] == [{**BODY, "preview": True}] * 2


def test_stopped_job_is_a_failure(cli: Cli, bridge: CannedServer) -> None:
    """Somebody stopped it: not all that was asked for has happened."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 202, job("running"))
    bridge.answer("GET", f"{REDRIVE}/j1", 200, job("stopped", resumed=1))
    assert cli(*ARGUMENTS, "--yes", "--url", bridge.url).code == 1


def test_job_that_is_lost_sight_of_is_named(cli: Cli, bridge: CannedServer) -> None:
    """It goes on in the bridge, whoever does not answer us: an operator must not take it for over."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 202, job("running"))
    bridge.answer("GET", f"{REDRIVE}/j1", 200, job("running", resumed=1))
    bridge.refuse("GET", f"{REDRIVE}/j1", 503, "unavailable", "the database cannot be reached")
    ended = cli(*ARGUMENTS, "--yes", "--url", bridge.url)
    assert ended.code == 5
    assert "the job j1 was begun, and may go on" in ended.err
    assert "the database cannot be reached" in ended.err
    assert "outbox-bridge parked stop j1" in ended.err


def test_ctrl_c_before_the_job_has_its_name_stops_it(
    cli: Cli, bridge: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the bridge answers the call that begins it, which may take seconds: nobody would know of the job."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 202, job("running"))
    bridge.answer("POST", f"{REDRIVE}/j1/stop", 200, job("stopped", resumed=1))
    take = bridge.take

    def interrupt(method: str, path: str) -> tuple[int, bytes]:
        answer = take(method, path)
        if (path, answer[0]) == (REDRIVE, 202):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return answer

    monkeypatch.setattr(bridge, "take", interrupt)
    ended = cli(*ARGUMENTS, "--yes", "--url", bridge.url)
    assert ended.code == 1
    assert "the job is stopped" in ended.err
    assert bridge.asked[-1].path == f"{REDRIVE}/j1/stop"


def test_ctrl_c_stops_the_job(bridge: CannedServer) -> None:
    """The job runs in the bridge: without this it would go on behind the operator's back."""
    bridge.answer("POST", REDRIVE, 200, {"count": 2, "more": False, "sample": []})
    bridge.answer("POST", REDRIVE, 202, job("running"))
    bridge.answer("GET", f"{REDRIVE}/j1", 200, job("running", resumed=1))
    bridge.answer("POST", f"{REDRIVE}/j1/stop", 200, job("stopped", resumed=1))
    command = [sys.executable, "-m", "api", *ARGUMENTS, "--yes", "--url", bridge.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not any(asked.method == "GET" for asked in bridge.asked):
            assert time.monotonic() < deadline, "it does not look after its job"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "the job is stopped" in err
    assert "resumed" in out
    assert [asked.path for asked in bridge.asked if asked.method == "POST"][-1] == f"{REDRIVE}/j1/stop"


def test_jobs_of_others_are_found_and_stopped(cli: Cli, bridge: CannedServer) -> None:
    """One that was begun from a page goes on without its browser: it must not need that to be stopped."""
    known = {**job("running", resumed=7), "action": "resume", "created_at": "-", "actor": "ann", "reason": "back"}
    bridge.answer("GET", REDRIVE, 200, {"jobs": [known]})
    bridge.answer("POST", f"{REDRIVE}/j1/stop", 200, job("stopped", resumed=8))
    heading, row = cli("parked", "jobs", "--limit", "3", "--url", bridge.url).out.splitlines()
    assert heading.split() == ["JOB", "STATE", "ACTION", "DONE", "BEGUN", "BY", "REASON"]
    assert row.split() == ["j1", "running", "resume", "7", "-", "ann", "back"]
    stopped = cli("parked", "stop", "j1", "--reason", "too fast", "--url", bridge.url)
    assert (stopped.code, "stopped" in stopped.out) == (0, True)
    assert bridge.asked[0].query == {"limit": "3"}
    assert bridge.asked[-1].document == {"reason": "too fast"}
    assert cli("parked", "stop", "j1", "--url", bridge.url).code == 2


def test_without_a_job_none_is_found(cli: Cli, bridge: CannedServer) -> None:
    """As other lists say it."""
    bridge.answer("GET", REDRIVE, 200, {"jobs": []})
    bridge.answer("GET", REDRIVE, 200, {"jobs": []})
    assert cli("parked", "jobs", "--url", bridge.url).err == "none found\n"
    assert cli("parked", "jobs", "-o", "json", "--url", bridge.url).out == "[]\n"
