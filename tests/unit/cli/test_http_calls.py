"""api.cli.connect: how refusals and silence of a bridge end a command."""

import pytest

from api.cli.connect import call, find_all
from api.cli.output import CommandFailed, Exit
from bridge.broker.ports import choose_free_port
from tests.support.canned_http import CannedServer


@pytest.mark.parametrize(
    ("status", "slug", "code"),
    [
        (400, "malformed-json", Exit.USAGE),
        (422, "invalid-request", Exit.USAGE),
        (422, "unknown-topic", Exit.FAILED),
        (404, "unknown-transaction", Exit.NOT_FOUND),
        (409, "already-resolved", Exit.CONFLICT),
        (503, "unavailable", Exit.UNREACHABLE),
        (504, "outcome-unknown", Exit.FAILED),
        (500, "internal", Exit.FAILED),
    ],
)
def test_problem_has_its_exit_code_and_remedy(bridge: CannedServer, status: int, slug: str, code: Exit) -> None:
    """A script sees what kind of failure it was, a person also why and what to do."""
    bridge.refuse("GET", "/x", status, slug, "because")
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert caught.value.code is code
    assert caught.value.reason == f"because ({slug})"
    assert caught.value.remedy


def test_silence_is_unreachable() -> None:
    """Nobody listens: says how to start one."""
    with pytest.raises(CommandFailed) as caught:
        call(f"http://127.0.0.1:{choose_free_port()}", "GET", "/x")
    assert caught.value.code is Exit.UNREACHABLE
    assert "outbox-bridge dev" in caught.value.remedy


def test_url_that_is_none_is_unreachable() -> None:
    """A typing error in --url is no traceback."""
    with pytest.raises(CommandFailed) as caught:
        call("nonsense", "GET", "/x")
    assert caught.value.code is Exit.UNREACHABLE


def test_stranger_is_told_from_a_bridge(bridge: CannedServer) -> None:
    """Another server's 404 is not "no such transaction"."""
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert caught.value.code is Exit.FAILED
    assert "--url" in caught.value.remedy


def test_pages_are_followed_up_to_the_limit(bridge: CannedServer) -> None:
    """Three pages, of which two are wanted; the cursor behind them is given back."""
    bridge.answer("GET", "/x", 200, {"items": [{"n": 1}, {"n": 2}], "next": "c1"})
    bridge.answer("GET", "/x", 200, {"items": [{"n": 3}], "next": "c2"})
    found, cursor = find_all(bridge.url, "/x", "items", {"state": "PARKED", "topic": None}, 3)
    assert [bytes(item) for item in found] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    assert cursor == "c2"
    assert bridge.asked[0].query == {"state": "PARKED", "limit": "3"}
    assert bridge.asked[1].query == {"state": "PARKED", "limit": "1", "cursor": "c1"}
