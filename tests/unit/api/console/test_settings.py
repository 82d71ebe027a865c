"""The page of settings: what is wrong with a running bridge, as `doctor` says it."""

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from api.console import site
from api.web.health import judge_check, judge_groups, judge_stats
from api.web.request import CheckResult, Services
from checker.call import EndpointCall
from tests.support.check_fakes import Response
from tests.support.whole_bridge import WholeBridge

DEAD, ALIVE = "https://dead.example/check?token=secret", "https://alive.example/check"


async def answer(call: EndpointCall) -> Response:
    """Sends a challenge back, and knows of no end, as endpoints do."""
    asked = json.loads(call.body)
    ids = [{name: check[name] for name in ("transaction_id", "nonce")} for check in asked["checks"]]
    said = {"resolutions": [{**one, "resolution": "UNKNOWN"} for one in ids]}
    return Response(200, json.dumps(said | {name: asked[name] for name in ("challenge",) if name in asked}).encode())


def break_things(bridge: WholeBridge) -> None:
    """A group nobody answers for, one whose transaction is parked, and one that answers."""
    bridge.endpoints[ALIVE] = answer
    for name, urls in {"dead": [DEAD], "mail": [], "alive": [ALIVE]}.items():
        check = {"max_lifetime_seconds": 30 if name == "mail" else 3_600}
        bridge.call("PUT", f"/v1/producer-groups/{name}", {"endpoints": [{"url": u} for u in urls], "check": check})
        bridge.call("POST", "/v1/transactions", {"producer_group": name, "messages": [{"topic": "orders"}]})
    bridge.pass_ms(120_000)


def examine(bridge: WholeBridge, headers: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """What was examined, its state, what was found and the remedy: of each row."""
    page = bridge.submit("/console/settings", {}, headers)
    assert (page.status, b"token=" in page.body, b"secret" in page.body) == (200, False, False)
    table = page.body.decode().partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")[1:]]
    return [tuple(html.unescape(re.sub(r"<[^>]*>", "", text)) for text in row) for row in cells]


def test_page_finds_what_doctor_finds(bridge: WholeBridge) -> None:
    """Endpoints that are dead and transactions that are parked: with the state, the words and the remedy."""
    break_things(bridge)
    page = bridge.call("GET", "/console/settings").body.decode()
    assert ("Examine now" in page, "dead.example" in page) == (True, False)
    found = examine(bridge)
    groups = bridge.call("GET", "/v1/producer-groups").document["producer_groups"]
    paths = [f"/v1/producer-groups/{group['name']}/test" for group in groups]
    probes = [bridge.call("POST", path, {"probe": True}).document["findings"] for path in paths]
    told = [judge_check(check) for check in bridge.call("GET", "/readyz?verbose=true").document["checks"]]
    told += judge_stats(bridge.call("GET", "/v1/stats").document)
    told += judge_groups(zip(groups, probes, strict=True))
    assert found == [(what, verdict, text, remedy or "nothing") for verdict, what, text, remedy in told]
    by_group = {what: (verdict, text) for what, verdict, text, _ in found}
    assert by_group["group alive"] == ("ok", f"{ALIVE} answers a signed call")
    assert by_group["group dead"] == ("broken", "https://dead.example/check: no answer: refused; 1 wait for their end")
    assert by_group["parked"] == ("broken", "1 wait for a decision by hand")


def test_examination_leaves_nothing_behind(bridge: WholeBridge) -> None:
    """No check is used up, no round is noted and nothing is audited."""
    break_things(bridge)
    paths = ("/v1/producer-groups/dead", "/v1/stats", "/v1/audit", "/v1/transactions?producer_group=dead")
    before = [bridge.call("GET", path).document for path in paths]
    examine(bridge)
    assert [bridge.call("GET", path).document for path in paths] == before


def test_probes_end_in_time_and_the_page_says_so(bridge: WholeBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups have endpoints that do not answer; last checks count for them."""
    break_things(bridge)
    monkeypatch.setattr(site, "_PROBES_S", 0)
    found = examine(bridge)
    assert found[-1][:2] == ("groups", "skipped")
    assert found[-1][2].startswith("2 of 3 were not called")
    assert ("group dead", "broken") in [row[:2] for row in found]
    assert "group alive" not in [row[0] for row in found]
    monkeypatch.setattr(site, "_GROUPS", 2)
    assert examine(bridge)[-1][2] == "those after the first 2 were not looked at"


def test_read_only_page_examines_without_a_call(tmp_path: Path) -> None:
    """Counts and last checks change nothing."""
    with WholeBridge(tmp_path, {"orders": 1}, adapt=lambda usual: replace(usual, is_read_only=True)) as bridge:
        break_things(bridge)
        found = [row[:2] for row in examine(bridge)]
        assert {("group dead", "broken"), ("parked", "broken"), ("groups", "skipped")} <= set(found)
        assert "group alive" not in [what for what, _ in found]


def test_settings_that_differ_between_processes_are_broken(tmp_path: Path) -> None:
    """As `doctor` says it, though readiness calls that degraded."""

    async def differ() -> CheckResult:
        return CheckResult(is_ok=False, is_degraded=True, detail="the clock of a is 9.0 s ahead of that of b")

    def adapt(usual: Services) -> Services:
        return replace(usual, readiness={"processes": differ})

    with WholeBridge(tmp_path, {"orders": 1}, adapt=adapt) as bridge:
        assert examine(bridge)[0] == (
            "bridge processes",
            "broken",
            "the clock of a is 9.0 s ahead of that of b",
            "nothing",
        )
        assert "a 的时钟比 b 的快 9.0 秒" in [row[2] for row in examine(bridge, {"accept-language": "zh"})]
