"""`group test`: what it needs, what it prints, how it ends."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.clock import SystemClock
from bridge.core.check_rules import CheckCalls, CheckMode, GroupSettings
from bridge.sql.directory import SqlDirectory
from bridge.sql.engine import Database
from bridge.sql.tables import secrets
from tests.support.trial_endpoint import SECRET, trial_endpoint
from tests.unit.cli.conftest import Cli

pytest_plugins = ["tests.support.postgres"]

PATIENT = GroupSettings(calls=CheckCalls(call_timeout_ms=30_000))
PULL = GroupSettings(calls=CheckCalls(mode=CheckMode.PULL))
Put = Callable[..., None]


@pytest.fixture
def put(make_sqlite_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts the group `orders` into the database that the command reads, with the endpoints' secret."""
    url = make_sqlite_url()
    monkeypatch.setenv("OUTBOX_BRIDGE_DATABASE_URL", url)

    def put_group(*urls: str, settings: GroupSettings = PATIENT) -> None:
        async def write() -> None:
            database = Database(url)
            await SqlDirectory(database, SystemClock()).put_group("orders", settings, urls)
            await database.run(lambda conn: conn.execute(secrets.update().values(secret=SECRET)))
            await database.close()

        asyncio.run(write())

    return put_group


def test_good_endpoint_ends_well_after_a_restart(cli: Cli, put: Put, tmp_path: Path) -> None:
    """The command of the user is run once, its output is none of the result; what was not given is told."""
    mark = tmp_path / "restarted"
    script = f"print('starting'); open({str(mark)!r}, 'x').close()"
    with trial_endpoint() as endpoint:
        put(endpoint.url)
        endpoint.states["0" * 28] = "COMMIT"
        command = f'{sys.executable} -c "{script}"'
        ended = cli("group", "test", "orders", "--committed", "0" * 28, "--restart-command", command, "-o", "json")
    assert ended.code == 0, ended
    assert mark.exists()
    verdicts = {finding["trial"]: finding["verdict"] for finding in json.loads(ended.out)}
    assert (verdicts["committed transaction"], verdicts["after a restart"]) == ("good", "good")
    assert [trial for trial, verdict in verdicts.items() if verdict == "skipped"] == [
        "open local transaction",
        "after it has ended",
    ]


def test_bad_endpoint_is_a_failure_with_remedies(cli: Cli, put: Put) -> None:
    """A table for people, exit code 1."""
    with trial_endpoint("credulous") as endpoint:
        put(endpoint.url)
        ended = cli("group", "test", "orders")
    assert ended.code == 1
    assert "Verify the signature before anything else" in ended.out
    assert "hidden" not in ended.out


def test_what_cannot_be_tried_says_why(cli: Cli, put: Put) -> None:
    """Nobody of that name 3, no endpoint 1, one that fetches 2, no terminal to ask at 2."""
    assert cli("group", "test", "orders").code == 3
    put()
    assert cli("group", "test", "orders").code == 1
    put(settings=PULL)
    fetching = cli("group", "test", "orders")
    assert (fetching.code, "fetches its checks" in fetching.err) == (2, True)
    put("http://127.0.0.1:1/check")
    assert cli("group", "test", "orders", "--interactive").code == 2


@pytest.mark.parametrize(("command", "code"), [("false", 1), ("no-such-command-at-all", 2), ("'", 2), ("", 2)])
def test_restart_that_fails_ends_the_trial(cli: Cli, put: Put, command: str, code: int) -> None:
    """What would be found afterwards would mean nothing."""
    put("http://127.0.0.1:1/check")
    ended = cli("group", "test", "orders", "--restart-command", command)
    assert (ended.code, "--restart-command" in ended.err) == (code, True)
