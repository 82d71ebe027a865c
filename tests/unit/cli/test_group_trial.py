"""`group test`: what it needs, what it prints, how it ends."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checker.call import EndpointCall
from tests.support.check_fakes import Response
from tests.support.socket_bridge import SocketBridge, socket_bridge
from tests.support.trial_endpoint import TrialEndpoint, answer
from tests.unit.cli.conftest import Cli, Ended

URL = "http://shop/check?token=hidden"
TOO_LARGE = 8 * 1024 * 1024
Put = Callable[..., TrialEndpoint]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBridge]:
    """A bridge that is asked over HTTP alone."""
    with socket_bridge(tmp_path_factory.mktemp("bridge"), {"orders": 1}) as running:
        yield running


@pytest.fixture
def put(whole: SocketBridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Put]:
    """Puts the group `orders`, answered by an endpoint of this test; the command runs in a folder of nobody's."""
    monkeypatch.setenv("OUTBOX_BRIDGE_URL", whole.url)
    monkeypatch.chdir(tmp_path)
    path = "/v1/producer-groups/orders"

    def put_group(*urls: str, defect: str = "", **members: Any) -> TrialEndpoint:
        body = {"endpoints": [{"url": url} for url in urls], "check": {"call_timeout_seconds": 30, **members}}
        whole.put_json(path, body)
        endpoint = TrialEndpoint(0, defect, secret=whole.post_json(f"{path}/rotate-secret", {})["secret"])

        async def reply(call: EndpointCall) -> Response:
            if len(call.body) > TOO_LARGE:
                return Response(413)
            return Response(*answer(endpoint, call.body, dict(call.headers)))

        whole.endpoints[URL] = reply
        return endpoint

    yield put_group
    whole.put_json(path, {})


def documents(ended: Ended) -> list[Any]:
    """What the command printed, without what the bridge in this process logs."""
    return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]


def test_good_endpoint_ends_well_after_a_restart(cli: Cli, put: Put, tmp_path: Path) -> None:
    """The command of the user is run once, its output is none of the result; what was not given is told."""
    mark = tmp_path / "restarted"
    script = f"print('starting'); open({str(mark)!r}, 'x').close()"
    put(URL).states["0" * 28] = "COMMIT"
    command = f'{sys.executable} -c "{script}"'
    ended = cli("group", "test", "orders", "--committed", "0" * 28, "--restart-command", command, "-o", "jsonl")
    assert ended.code == 0, ended
    assert mark.exists()
    verdicts = {finding["trial"]: finding["verdict"] for finding in documents(ended)}
    assert (verdicts["committed transaction"], verdicts["after a restart"]) == ("good", "good")
    assert [trial for trial, verdict in verdicts.items() if verdict == "skipped"] == [
        "open local transaction",
        "after it has ended",
    ]


def test_bad_endpoint_is_a_failure_with_remedies(cli: Cli, put: Put) -> None:
    """A table for people, exit code 1."""
    put(URL, defect="credulous")
    ended = cli("group", "test", "orders")
    assert ended.code == 1
    assert "Verify the signature before anything else" in ended.out
    assert "hidden" not in ended.out


def test_what_cannot_be_tried_says_why(cli: Cli, put: Put, whole: SocketBridge) -> None:
    """Nobody of that name 3, no endpoint 1, one that fetches 2, no terminal to ask at 2."""
    assert cli("group", "test", "nobody").code == 3
    put()
    assert cli("group", "test", "orders").code == 1
    put(mode="pull")
    fetching = cli("group", "test", "orders")
    assert (fetching.code, "fetches its checks" in fetching.err) == (2, True)
    put("http://nobody/check")
    assert cli("group", "test", "orders", "--interactive").code == 2
    assert cli("group", "test", "orders", "--committed", "x", "--url", whole.url).code == 2


@pytest.mark.parametrize(("command", "code"), [("false", 1), ("no-such-command-at-all", 2), ("'", 2), ("", 2)])
def test_restart_that_fails_ends_the_trial(cli: Cli, put: Put, command: str, code: int) -> None:
    """What would be found afterwards would mean nothing."""
    put(URL)
    ended = cli("group", "test", "orders", "--restart-command", command)
    assert (ended.code, "--restart-command" in ended.err) == (code, True)


def test_test_leaves_nothing_behind(cli: Cli, put: Put, whole: SocketBridge) -> None:
    """No transaction, no round, no entry in the audit; each call about a transaction says that it is a trial."""
    put(URL)
    before = whole.get_json("/v1/audit")["entries"]
    asked: list[Any] = []
    of_endpoint = whole.endpoints[URL]

    async def note(call: EndpointCall) -> Response:
        asked.append(call.body)
        return await of_endpoint(call)

    whole.endpoints[URL] = note
    assert cli("group", "test", "orders").code == 0
    assert whole.get_json("/v1/audit")["entries"] == before
    assert whole.get_json("/v1/transactions?producer_group=orders")["transactions"] == []
    shown = whole.get_json("/v1/producer-groups/orders")["endpoints"][0]
    assert (shown["answered"], shown["unanswered"]) == (0, 0)
    signed = [body for body in asked if b'"messages"' in body]
    assert len(signed) > 100
    assert all(body.endswith(b',"trial":true}') for body in signed)


def test_doctor_in_a_folder_of_nobodys_says_what_it_does_not_see(cli: Cli, put: Put) -> None:
    """Kafka and SQL are elsewhere: skipped. The endpoint's answer to a signed call is known, and decides the exit."""
    endpoint = put(URL)
    ended = cli("doctor", "-o", "jsonl")
    found = {one["what"]: one for one in documents(ended)}
    assert (found["Kafka"]["verdict"], found["SQL"]["verdict"]) == ("skipped", "skipped")
    assert "--config" in found["SQL"]["remedy"]
    assert (ended.code, found["group orders"]["verdict"]) == (0, "ok"), ended
    endpoint.secret = f"whsec_{'b' * 44}"
    ended = cli("doctor", "-o", "jsonl")
    (of_group,) = [one for one in documents(ended) if one["what"] == "group orders"]
    assert (ended.code, of_group["verdict"], of_group["found"]) == (
        1,
        "broken",
        "http://shop/check: no answer: status 401",
    )
