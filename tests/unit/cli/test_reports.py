"""api.cli.reports: what is proposed is looked at before it is sent."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.bridge_process import wait_until
from tests.support.canned_http import CannedServer
from tests.support.source_tree import ROOT
from tests.unit.cli.conftest import Cli

TX = "0" * 28
PATH = f"/v1/transactions/{TX}"
BODY = {"resolution": "COMMIT", "reason": "reconciliation: decided 70 s ago"}
PROPOSAL = {
    "transaction_id": TX,
    "kind": "UNSETTLED",
    "method": "POST",
    "path": f"{PATH}/force",
    "body": BODY,
    "precondition": {"state": ["PREPARED"], "published": False},
    "evidence": [],
}


def make_run(folder: Path) -> str:
    """A run's folder with one proposal."""
    (folder / "repair.jsonl").write_text(json.dumps(PROPOSAL) + "\n")
    (folder / "manifest.json").write_text("{}")
    return str(folder)


def test_repair_is_only_shown_unless_it_is_asked_for(cli: Cli, bridge: CannedServer, tmp_path: Path) -> None:
    """Dry run by default."""
    bridge.answer("GET", PATH, 200, {"state": "PREPARED"})
    ended = cli("report", "repair", make_run(tmp_path), "--url", bridge.url)
    assert ended.code == 0
    assert ended.out.splitlines()[1].split()[-2:] == ["PREPARED", "wanted"]
    assert "--apply" in ended.err
    assert [asked.method for asked in bridge.asked] == ["GET"]


def test_repair_shows_what_the_producer_remarked_last(cli: Cli, bridge: CannedServer, tmp_path: Path) -> None:
    """As text of one line, whatever it holds; reports of older versions have none."""
    bridge.answer("GET", PATH, 200, {"state": "PREPARED"})
    run = make_run(tmp_path)
    remark = "no\nstock\x1b[31m\u202e"
    (tmp_path / "repair.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in (PROPOSAL | {"remark": remark}, PROPOSAL))
    )
    lines = cli("report", "repair", run, "--url", bridge.url).out.splitlines()
    assert [line.split()[-3:] for line in lines[1:]] == [
        ["no\\nstock\\x1b[31m\\u202e", "PREPARED", "wanted"],
        ["-", "PREPARED", "wanted"],
    ]
    rows = cli("report", "repair", run, "--url", bridge.url, "-o", "json").out
    assert [row.get("remark") for row in json.loads(rows)] == [remark, None]


def test_repair_is_sent_when_it_is_still_needed(cli: Cli, bridge: CannedServer, tmp_path: Path) -> None:
    """With the reason that goes into the audit."""
    bridge.answer("GET", PATH, 200, {"state": "PREPARED"})
    bridge.answer("POST", f"{PATH}/force", 200, {"state": "COMMITTED"})
    assert cli("report", "repair", make_run(tmp_path), "--apply", "--url", bridge.url).code == 0
    assert bridge.asked[1].document == BODY


def test_repair_whose_end_is_not_known_is_not_told_as_refused(cli: Cli, bridge: CannedServer, tmp_path: Path) -> None:
    """It may have been done."""
    bridge.answer("GET", PATH, 200, {"state": "PREPARED"})
    problem = {"type": "https://x/outcome-unknown", "title": "-", "detail": "not settled in time", "outcome": "unknown"}
    bridge.answer("POST", f"{PATH}/force", 504, problem)
    ended = cli("report", "repair", make_run(tmp_path), "--apply", "--url", bridge.url)
    assert ended.code == 1
    assert "not known: not settled in time" in ended.out
    assert "refused" not in ended.out
    assert "1 of 1 were not done, or nobody knows" in ended.err


def test_repair_is_not_sent_when_things_have_changed(cli: Cli, bridge: CannedServer, tmp_path: Path) -> None:
    """The report is older than the transaction."""
    bridge.answer("GET", PATH, 200, {"state": "COMMITTED"})
    ended = cli("report", "repair", make_run(tmp_path), "--apply", "--url", bridge.url)
    assert ended.code == 0
    assert "not needed any more" in ended.out
    assert [asked.method for asked in bridge.asked] == ["GET"]


def test_proposals_of_a_version_that_did_not_look_for_records_are_not_sent(
    cli: Cli, bridge: CannedServer, tmp_path: Path
) -> None:
    """It proposed to commit what could be read already."""
    run = make_run(tmp_path)
    (tmp_path / "repair.jsonl").write_text(json.dumps({**PROPOSAL, "precondition": {"state": ["PREPARED"]}}) + "\n")
    ended = cli("report", "repair", run, "--apply", "--url", bridge.url)
    assert ended.code != 0
    assert "nobody has looked whether it was published" in ended.err
    assert bridge.asked == []


def test_half_a_report_is_no_report(cli: Cli, tmp_path: Path) -> None:
    """The manifest is written last."""
    ended = cli("report", "repair", str(tmp_path))
    assert ended.code == 3
    assert "no complete report" in ended.err


def test_job_needs_a_java_that_spark_runs_on(cli: Cli, tmp_path: Path, monkeypatch: object) -> None:
    """And says in one line what to do."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"25.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # type: ignore[attr-defined]
    ended = cli("report", "selftest", "--out", str(tmp_path / "runs"))
    assert ended.code == 3
    assert "is Java 25" in ended.err
    assert "JDK 17 or 21" in ended.err


def make_runs(folder: Path, count: int) -> None:
    """A folder of runs with a page each."""
    (folder / "ledger.json").write_text(json.dumps({"runs": [{"run": n} for n in range(1, count + 1)]}))
    for number in range(1, count + 1):
        run = folder / f"{number:06d}"
        run.mkdir()
        taken = {"taken_at": f"2026-01-31T12:00:0{number}.000Z"}
        summary = {"window": taken, "findings": {"total": number}, "sentence": f"Found {number}."}
        (run / "summary.json").write_text(json.dumps(summary))
        (run / "manifest.json").write_text("{}")


def test_runs_are_listed(cli: Cli, tmp_path: Path) -> None:
    """Newest first; an empty folder says what to name."""
    ended = cli("report", "list", "--out", str(tmp_path))
    assert (ended.code, "holds no complete report" in ended.err) == (3, True)
    make_runs(tmp_path, 2)
    lines = cli("report", "list", "--out", str(tmp_path)).out.splitlines()[1:]
    assert [line.split() for line in lines] == [
        ["000002", "2026-01-31T12:00:02.000Z", "2", "Found", "2."],
        ["000001", "2026-01-31T12:00:01.000Z", "1", "Found", "1."],
    ]


def test_run_is_shown(cli: Cli, tmp_path: Path) -> None:
    """The last one, or the one that is named; a browser only if it is asked for."""
    make_runs(tmp_path, 2)
    page = tmp_path / "000002" / "report.html"
    assert cli("report", "show", str(tmp_path)).out.splitlines() == ["Found 2.", str(page)]
    assert cli("report", "show", str(tmp_path / "000001")).out.startswith("Found 1.")
    shown = tmp_path / "shown"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}\n')
    browser.chmod(0o700)
    command = [sys.executable, "-m", "api", "report", "show", str(tmp_path), "--open"]
    subprocess.run(command, env={**os.environ, "BROWSER": str(browser)}, check=True, cwd=ROOT, capture_output=True)
    wait_until(lambda: shown.exists() and shown.read_text(), 10)
    assert shown.read_text().strip() == page.as_uri()
