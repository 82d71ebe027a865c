"""api.cli.groups: receivers listed and tried, and what a report has found told to the bridge."""

import json
from pathlib import Path

import pytest

from api.cli.groups import tell_findings
from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli

PATH = "/v1/webhooks"
TESTED = {"name": "pager", "told": True, "status": 204, "failure": None, "latency_ms": 3}


def test_list_shows_what_waits_and_why(cli: Cli, bridge: CannedServer) -> None:
    """As a table and as it came."""
    row = {"name": "pager", "url": "https://ops", "events": ["queue.stalled"], "waiting": 2, "oldest_at": None}
    bridge.answer("GET", PATH, 200, {"webhooks": [row | {"last_failure": "timeout"}]})
    shown = cli("webhook", "list", "--url", bridge.url)
    assert (shown.code, "timeout" in shown.out, "queue.stalled" in shown.out) == (0, True, True)
    assert json.loads(cli("webhook", "list", "-o", "json", "--url", bridge.url).out)["webhooks"][0]["waiting"] == 2


def test_test_that_is_not_taken_is_a_failure(cli: Cli, bridge: CannedServer) -> None:
    """One that is taken is none; a name that nobody knows is not found."""
    bridge.answer("POST", f"{PATH}/pager/test", 200, TESTED)
    assert cli("webhook", "test", "pager", "--url", bridge.url).code == 0
    bridge.answer("POST", f"{PATH}/other/test", 200, TESTED | {"told": False, "failure": "status 500"})
    ended = cli("webhook", "test", "other", "--url", bridge.url)
    assert (ended.code, "other did not take the event: status 500" in ended.err) == (1, True)
    bridge.refuse("POST", f"{PATH}/nobody/test", 404, "not-found", "no such webhook")
    assert cli("webhook", "test", "nobody", "--url", bridge.url).code == 3


@pytest.mark.parametrize(("found", "asked"), [({"LOST": 2, "STALE": 0}, 1), ({}, 0)])
def test_findings_of_a_run_are_told(bridge: CannedServer, tmp_path: Path, found: dict[str, int], asked: int) -> None:
    """Where there are any; a bridge that does not know the call is no failure of the run."""
    folder = tmp_path / "000012"
    folder.mkdir()
    summary = {"window": {"taken_at": "2026-03-01T12:00:00Z"}, "sentence": "s", "findings": {"by_kind": found}}
    (folder / "summary.json").write_text(json.dumps(summary))
    bridge.answer("POST", f"{PATH}/findings", 202, {"webhooks": 1})
    tell_findings(bridge.url, folder)
    told = {"run": 12, "taken_at": "2026-03-01T12:00:00Z", "sentence": "s", "findings": {"LOST": 2}}
    assert [call.document for call in bridge.asked] == [told] * asked
    bridge.refuse("POST", f"{PATH}/findings", 404, "not-found", "nothing there")
    tell_findings(bridge.url, folder)
