"""api.cli.groups: settings as the HTTP interface wants them."""

from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli

PATH = "/v1/producer-groups/orders"


def test_put_sends_endpoints_and_settings(cli: Cli, bridge: CannedServer) -> None:
    """Numbers as numbers, words as words; the secret is pointed out."""
    bridge.answer("PUT", PATH, 201, {"producer_group": "orders", "secret": "whsec_x"})
    checks = ("--check", "interval_seconds=1.5", "--check", "mode=push")
    ended = cli("group", "put", "orders", "-e", "http://a/c", "-e", "http://b/c", *checks, "--url", bridge.url)
    assert ended.code == 0
    assert "whsec_x" in ended.out
    assert "shown only now" in ended.err
    assert bridge.asked[-1].document == {
        "endpoints": [{"url": "http://a/c"}, {"url": "http://b/c"}],
        "check": {"interval_seconds": 1.5, "mode": "push"},
    }


def test_put_shows_what_it_resets(cli: Cli, bridge: CannedServer) -> None:
    """Nobody loses a setting unawares; what was named, and leased endpoints, are no news."""
    before = {
        "endpoints": [{"url": "http://a/c", "leased": False}, {"url": "http://b/c", "leased": True}],
        "check": {"max_checks": 3, "interval_seconds": 30.0, "batch_size": 100},
    }
    after = {"endpoints": [], "check": {"max_checks": 15, "interval_seconds": 10.0, "batch_size": 100}}
    bridge.answer("GET", PATH, 200, before)
    bridge.answer("PUT", PATH, 200, after)
    ended = cli("group", "put", "orders", "--check", "interval_seconds=10", "--url", bridge.url)
    assert [line for line in ended.err.splitlines() if "reset" in line] == [
        "reset: check max_checks from 3 to 15; `group set` would have kept it",
        "reset: endpoint http://a/c is gone; `group set` would have kept it",
    ]


def test_malformed_setting_is_a_usage_error(cli: Cli, bridge: CannedServer) -> None:
    """Nothing is sent."""
    assert cli("group", "put", "orders", "--check", "interval", "--url", bridge.url).code == 2
    assert bridge.asked == []


def test_delete_and_rotation_name_the_group(cli: Cli, bridge: CannedServer) -> None:
    """204 has no body."""
    bridge.answer("DELETE", PATH, 204, b"")
    bridge.answer("POST", f"{PATH}/rotate-secret", 200, {"secret": "whsec_y"})
    assert cli("group", "delete", "orders", "--url", bridge.url).code == 0
    assert "whsec_y" in cli("group", "rotate-secret", "orders", "-o", "json", "--url", bridge.url).out


def test_pause_names_what_and_why(cli: Cli, bridge: CannedServer) -> None:
    """Checks, unless something else is named; never without a reason."""
    bridge.answer("POST", f"{PATH}/pause", 200, {"name": "orders", "checks_paused": True})
    bridge.answer("POST", f"{PATH}/resume", 200, {"name": "orders", "checks_paused": False})
    why = ("--reason", "moved", "--url", bridge.url)
    assert "checks paused" in cli("group", "pause", "orders", *why).out
    assert bridge.asked[-1].document == {"what": "checks", "reason": "moved"}
    assert cli("group", "resume", "orders", "--what", "prepares", *why).code == 0
    assert bridge.asked[-1].document == {"what": "prepares", "reason": "moved"}
    assert cli("group", "pause", "orders", "--url", bridge.url).code == 2


def test_group_in_use_is_a_conflict(cli: Cli, bridge: CannedServer) -> None:
    """Its transactions must end first."""
    bridge.refuse("DELETE", PATH, 409, "producer-group-in-use", "2 pending")
    assert cli("group", "delete", "orders", "--url", bridge.url).code == 4


def test_set_changes_only_what_is_named(cli: Cli, bridge: CannedServer) -> None:
    """Leased endpoints are not made lasting ones; a query that the bridge hides is not overwritten by what it shows."""
    known = {
        "endpoints": [{"url": "http://a/c", "leased": False}, {"url": "http://b/c", "leased": True}],
        "check": {"interval_seconds": 30, "mode": "push"},
    }
    bridge.answer("GET", PATH, 200, known)
    bridge.answer("GET", PATH, 200, known | {"endpoints": [{"url": "http://a/c?<hidden>", "leased": False}]})
    bridge.answer("PUT", PATH, 200, {"name": "orders"})
    assert cli("group", "set", "orders", "--check", "interval_seconds=10", "--url", bridge.url).code == 0
    assert bridge.asked[-1].document == {
        "endpoints": [{"url": "http://a/c"}],
        "check": {"interval_seconds": 10, "mode": "push"},
    }
    assert cli("group", "set", "orders", "--url", bridge.url).code == 2
    assert cli("group", "set", "orders", "--check", "max_checks=3", "--url", bridge.url).code == 2
    assert bridge.asked[-1].method == "GET"


def test_prepares_of_all_groups_are_paused_with_a_reason(cli: Cli, bridge: CannedServer) -> None:
    """The audit keeps it; without one nothing is sent."""
    bridge.answer("POST", "/v1/pause", 200, {"accept_prepares": False})
    bridge.answer("POST", "/v1/resume", 200, {"accept_prepares": True})
    assert cli("pause", "--url", bridge.url).code == 2
    for act in ("pause", "resume"):
        assert cli(act, "--reason", "a move", "--url", bridge.url).code == 0
    assert [(asked.path, asked.document) for asked in bridge.asked] == [
        ("/v1/pause", {"reason": "a move"}),
        ("/v1/resume", {"reason": "a move"}),
    ]
