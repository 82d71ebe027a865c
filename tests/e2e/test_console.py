"""The console in Chromium, on a bridge with real traffic and three things wrong: looked at, walked through, used."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.bridge_process import Bridge, wait_until
from tests.support.browser import find_chromium
from tests.support.console_scene import DEAD, GONE, HOSTILE, Scene, console_scene
from tests.support.source_tree import ROOT

AXE = (ROOT / "tests" / "support" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FLAWS = """async (rules) => {
    const found = await axe.run(document, {runOnly: rules});
    return found.violations.map(one => one.id + ": " + one.nodes.map(node => node.html).join(" | ").slice(0, 600));
}"""
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
EMPTY = """[...document.querySelectorAll("th, td, dt, dd, h1, h2, h3, p, li, caption")]
    .filter(one => !one.textContent.trim() && !one.querySelector("svg, input, progress")).map(one => one.outerHTML)"""
# texts upon one another, that nothing is seen of, or that a box hides which does not scroll; what is folded up aside
LAID = """() => {
    const flaws = [], lines = [];
    const parents = function* (one) { for (one = one.parentElement; one; one = one.parentElement) yield one; };
    const isFolded = one => one.parentElement?.matches("details:not([open])") && one.tagName !== "SUMMARY";
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        const about = [...parents(text)], said = text.data.trim().slice(0, 40);
        if (!said || about.some(isFolded)) continue;
        if (about[0].closest(".hidden, [hidden], .skip, thead, script, noscript, option")) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        const clips = about.filter(one => getComputedStyle(one).overflowY === "auto");
        const seen = [...range.getClientRects()].map(({left, right, top, bottom}) => {
            for (const clip of clips.map(one => one.getBoundingClientRect()))
                [left, right, top, bottom] = [Math.max(left, clip.left), Math.min(right, clip.right),
                    Math.max(top, clip.top), Math.min(bottom, clip.bottom)];
            return {left, right, top, bottom, said};
        }).filter(box => box.right - box.left > 1 && box.bottom - box.top > 1);
        if (!seen.length) flaws.push(`nothing is seen of "${said}"`);
        lines.push(...seen);
    }
    lines.sort((a, b) => a.top - b.top);
    lines.forEach((line, n) => {
        for (let m = n + 1; m < lines.length && lines[m].top < line.bottom - 3; m++) {
            const other = lines[m];
            const wide = Math.min(line.right, other.right) - Math.max(line.left, other.left);
            const high = Math.min(line.bottom, other.bottom) - Math.max(line.top, other.top);
            if (wide > 2 && high > 3) flaws.push(`"${line.said}" lies upon "${other.said}"`);
        }
    });
    const drawn = ".hidden, .hidden *, thead, thead *, svg, .uplot, .uplot *";
    for (const one of document.querySelectorAll(`body *:not(${drawn})`))
        if (/hidden|clip/.test(getComputedStyle(one).overflowX)
            && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1))
            flaws.push(`cut off: ${one.outerHTML.slice(0, 80)}`);
    return [...new Set(flaws)].slice(0, 20);
}"""
VIEWS = [(360, "dark"), (1440, "light")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One bridge for all pages."""
    with console_scene(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """As on a train: no name resolves."""
    flags = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        yield opened
        opened.close()


@contextmanager
def tab(browser: Browser, scene: Scene, **options: Any) -> Iterator[Page]:
    """A page in a browser of its own. Whatever it complains of, or asks of another host, fails the test."""
    context = browser.new_context(base_url=scene.url, **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(scene.bridge.url) else None
    )
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


def places(scene: Scene) -> dict[str, str]:
    """Every page there is, by a name."""
    return {
        "home": "",
        "search": "search",
        "search-filtered": "search?state=PREPARED&producer_group=shop",
        "nothing": "search?q=nothing-is-called-so",
        "pending": f"transactions/{scene.dead[0]}",
        "blocked": f"transactions/{scene.blocked}",
        "parked-one": f"transactions/{scene.parked[0]}",
        "hostile": f"transactions/{scene.hostile}",
        "large": f"transactions/{scene.committed}",
        "parked": "parked",
        "preview": "redrive?action=resume&producer_group=mail",
        "groups": "groups",
        "group": "groups/shop",
        "topics": "topics",
        "topic": "topics/orders",
        "topic-gone": f"topics/{GONE}",
        "reports": "reports",
        "report": "reports/000001",
        "audit": "audit",
        "settings": "settings",
    }


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_pages_are_whole_and_can_be_used_by_everybody(browser: Browser, scene: Scene, width: int, scheme: Any) -> None:
    """No violation of WCAG 2.2 AA that axe knows, nothing wider than the screen, empty, cut off or upon another.

    At each width and in each scheme once.
    """
    flaws: dict[str, Any] = {}
    with tab(browser, scene, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        for name, place in places(scene).items():
            page.goto(place)
            page.evaluate(AXE)
            found = page.evaluate(EMPTY) + page.evaluate(LAID) + page.evaluate(FLAWS, RULES)
            wide = page.evaluate(WIDE)
            if found or wide:
                flaws[name] = (wide, found)
    assert flaws == {}, json.dumps(flaws, indent=1)


def test_pages_are_whole_in_chinese(browser: Browser, scene: Scene) -> None:
    """As the browser asks for it, and until the reader chooses English."""
    flaws: dict[str, Any] = {}
    with tab(browser, scene, viewport={"width": 360, "height": 900}, locale="zh-CN") as page:
        for name, place in places(scene).items():
            page.goto(place)
            found, wide = page.evaluate(EMPTY) + page.evaluate(LAID), page.evaluate(WIDE)
            if found or wide or page.evaluate("document.documentElement.lang") != "zh-Hans":
                flaws[name] = (wide, found)
        page.goto("groups/shop")
        page.evaluate(AXE)
        assert (flaws, page.evaluate(FLAWS, RULES)) == ({}, [])
        page.get_by_role("button", name="English").click()
        page.get_by_role("heading", name="Who answers its checks").wait_for()
        assert page.url.endswith("/groups/shop")


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_examination_finds_the_dead_endpoint(browser: Browser, scene: Scene, locale: str) -> None:
    """Without scripts too; the page is as whole as the others."""
    with tab(browser, scene, viewport={"width": 360, "height": 900}, locale=locale) as page:
        page.goto("settings")
        page.locator('form[action$="settings"] button').click()
        page.get_by_text(DEAD).first.wait_for()
        page.evaluate(AXE)
        found = page.evaluate(EMPTY) + page.evaluate(LAID) + page.evaluate(FLAWS, RULES)
        assert (page.evaluate(WIDE), found) == (0, [])
    with tab(browser, scene, java_script_enabled=False) as page:
        page.goto("settings")
        page.get_by_role("button", name="Examine now").click()
        page.get_by_text(f"{DEAD}: no answer: refused").wait_for()


def test_times_are_shown_in_utc_or_in_the_readers_own(browser: Browser, scene: Scene) -> None:
    """Kept from page to page, and told of parts that come anew."""
    with tab(browser, scene, timezone_id="Asia/Shanghai") as page:
        page.goto("groups/shop")
        first = page.locator("time").first
        assert (first.inner_text()[-1], "GMT+8" in (first.get_attribute("title") or "")) == ("Z", True)
        page.get_by_role("button", name="Show local times").click()
        assert "GMT+8" in first.inner_text()
        page.goto("groups/stock")
        assert "GMT+8" in page.locator("time").first.inner_text()
        new = '<p><time datetime="2026-01-31T20:00:00Z">x</time></p>'
        page.evaluate("html => document.getElementById('content').insertAdjacentHTML('beforeend', html)", new)
        page.get_by_text("Feb 1, 2026").wait_for()
        page.get_by_role("button", name="Show UTC").click()
        assert page.locator("time").first.inner_text()[-1] == "Z"


def test_pages_can_be_read_without_scripts(browser: Browser, scene: Scene) -> None:
    """They say the same."""
    with tab(browser, scene) as with_scripts, tab(browser, scene, java_script_enabled=False) as without:
        for place in places(scene).values():
            texts = []
            for page in (with_scripts, without):
                page.goto(place)
                texts.append([page.locator("h1").inner_text(), page.locator("h2").all_inner_texts()])
            assert texts[0] == texts[1]


def test_hostile_content_is_text(browser: Browser, scene: Scene) -> None:
    """In the page of the transaction and in lists; nothing of it runs."""
    with tab(browser, scene) as page:
        for place in (f"transactions/{scene.hostile}", "search?producer_group=stock"):
            page.goto(place)
            shown = page.locator("main").inner_text()
            assert HOSTILE[:30] in shown
            assert "\\u202e" in shown
            assert page.evaluate("window.pwned") is None
            assert page.locator("b[onmouseover], main script").count() == 0
        page.goto(f"transactions/{scene.hostile}")
        assert "12345678901234567890123" in page.locator(".tree").inner_text()


def test_keyboard_is_enough(browser: Browser, scene: Scene) -> None:
    """From the first page to a transaction, and to its commit."""
    transaction_id = scene.pending[0]
    with tab(browser, scene) as page:
        page.goto("")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("/")
        page.keyboard.type(transaction_id)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/transactions/{transaction_id}")
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.name") == "reason":
                break
        page.keyboard.type("paid, says the shop")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Commit"
        page.keyboard.press("Enter")
        page.wait_for_url("**?done=commit")
        assert "COMMITTED" in page.locator(".headline").inner_text()
    assert scene.bridge.get_json(f"/v1/transactions/{transaction_id}")["state"] == "COMMITTED"


def test_checks_are_paused_and_go_on_from_the_page_of_their_group(browser: Browser, scene: Scene) -> None:
    """The reason is asked for by the form."""
    with tab(browser, scene) as page:
        page.goto("groups/stock")
        for act, paused in (("Pause checks", True), ("Resume checks", False)):
            page.get_by_label("Reason, for the audit").fill("the stock is counted")
            page.get_by_role("button", name=act).click()
            page.wait_for_url("**/groups/stock")
            assert ("Its checks are paused" in page.locator("main").inner_text()) is paused


def test_endpoints_are_tested_from_the_page_of_their_group(browser: Browser, scene: Scene) -> None:
    """What is wrong with each, and what to do about it."""
    with tab(browser, scene, viewport={"width": 360, "height": 900}) as page:
        page.goto("groups/shop")
        page.get_by_role("button", name="Test").click()
        page.get_by_text("One signed call to each endpoint").wait_for()
        assert "bad" in page.locator("main").inner_text()
        page.evaluate(AXE)
        assert (page.evaluate(FLAWS, RULES), page.evaluate(WIDE), page.evaluate(EMPTY)) == ([], 0, [])


Cause = tuple[str, list[Callable[[Page], Any]], str]
CAUSES: list[Cause] = [
    (
        "an endpoint that is dead",
        [lambda page: page.get_by_role("link", name="Nobody answers the checks of shop").click()],
        "refused",
    ),
    (
        "a topic that is gone",
        [
            lambda page: page.get_by_role("link", name="1 commit of billing cannot be published").click(),
            lambda page: page.locator("a.id").first.click(),
        ],
        "a topic, or the partition asked for, does not exist",
    ),
    (
        "nobody to ask",
        [
            lambda page: page.get_by_role("link", name="40 parked transactions of mail").click(),
            lambda page: page.locator("a.id").first.click(),
        ],
        "there was nobody to ask",
    ),
]


@pytest.mark.parametrize(("cause", "clicks", "said"), CAUSES, ids=[name for name, *_ in CAUSES])
def test_cause_is_found_in_thirty_seconds(
    browser: Browser, scene: Scene, cause: str, clicks: list[Callable[[Page], Any]], said: str
) -> None:
    """By somebody who has never seen the console: from the first page, in at most three clicks."""
    assert len(clicks) <= 3, cause
    with tab(browser, scene) as page:
        page.goto("")
        for click in clicks:
            click(page)
        page.wait_for_load_state()
        assert said in page.locator("main").inner_text()


def test_bulk_act_shows_how_far_it_is(browser: Browser, scene: Scene) -> None:
    """Counted, confirmed, done; the page follows by itself."""
    with tab(browser, scene) as page:
        page.goto("parked?producer_group=mail")
        page.get_by_label("Act").select_option("rollback")
        page.get_by_role("button", name="Count them first").click()
        page.get_by_label("Reason, for the audit").fill("the mails are of yesterday")
        page.get_by_label("Type").fill("rollback 40")
        page.get_by_role("button", name="Begin").click()
        page.get_by_text("40 of 40 done").wait_for(timeout=20_000)
        page.locator("#progress .state.done").wait_for(timeout=20_000)


def test_list_is_where_it_was_after_going_back(browser: Browser, scene: Scene) -> None:
    """The second page of a list stays the second page."""
    with tab(browser, scene) as page:
        page.goto("search?producer_group=shop&limit=3")
        page.get_by_role("link", name="Older").click()
        second = page.locator("a.id").all_inner_texts()
        page.locator("a.id").first.click()
        page.go_back()
        assert page.locator("a.id").all_inner_texts() == second


DRAWN = """
    window.drawn = [];
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
        if (String(text).includes(":")) window.drawn.push(text);
        return fillText.call(this, text, ...place);
    };
"""
HIDE = """isHidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_first_page_rests_while_its_tab_is_hidden(browser: Browser, scene: Scene) -> None:
    """Its stream is closed, and the bridge has nobody to count for; it goes on once it is seen."""

    def count_streams() -> float:
        metrics = httpx2.get(f"{scene.bridge.url}/metrics").text
        (line,) = [line for line in metrics.splitlines() if line.startswith("outbox_bridge_http_streams ")]
        return float(line.split()[1])

    with tab(browser, scene) as page:
        page.goto("")
        for is_hidden, wanted in ((False, 1), (True, 0), (False, 1)):
            page.evaluate(HIDE, is_hidden)
            wait_until(lambda wanted=wanted: count_streams() == wanted, name=f"{wanted} streams")


def test_first_page_is_live_while_it_is_seen(browser: Browser, scene: Scene) -> None:
    """What has come since is shown, and drawn, by itself."""
    with tab(browser, scene) as page:
        page.goto("")
        page.locator("#chart canvas").wait_for(timeout=20_000)
        transaction_id = scene.prepare("newcomer")
        page.get_by_role("link", name="newcomer").wait_for(timeout=20_000)
        assert "a second" in page.locator("#rates-now").inner_text()
        scene.end(transaction_id, "rollback")


def test_first_page_says_when_it_is_not_live_any_more(browser: Browser, scene: Scene) -> None:
    """Else it says "nothing needs a person" all night, over counts from before the database went away."""
    with tab(browser, scene) as page:
        page.clock.install()
        page.goto("")
        old = page.get_by_role("alert").filter(has_text="nothing new")
        silence = ": nothing can be read now\n\n"  # as the bridge tells while it reads nothing
        page.route("**/console/live", lambda route: route.fulfill(content_type="text/event-stream", body=silence))
        for is_silent in (True, False):
            for is_hidden in (True, False):  # it asks anew
                page.evaluate(HIDE, is_hidden)
            page.clock.run_for(20_000)
            old.wait_for(state="visible" if is_silent else "hidden", timeout=20_000)
            page.unroute("**/console/live")


def test_chart_has_the_times_of_the_page(browser: Browser, scene: Scene) -> None:
    """UTC, or the reader's own, as everything else on it."""
    with tab(browser, scene, timezone_id="Asia/Kolkata") as page:
        page.add_init_script(DRAWN)
        page.goto("")
        for button, is_local in ((None, False), ("Show local times", True), ("Show UTC", False)):
            if button is not None:
                page.get_by_role("button", name=button).click()
            page.evaluate("window.drawn = []")
            wait_until(lambda: page.evaluate("window.drawn.length"), name="times of the chart")
            now = datetime.now(UTC) + timedelta(hours=5.5 if is_local else 0)
            shown = {datetime.strptime(text, "%H:%M:%S").replace(tzinfo=UTC) for text in page.evaluate("window.drawn")}
            far = [abs((now - one).seconds) for one in shown]
            assert all(min(seconds, 86_400 - seconds) < 600 for seconds in far), page.evaluate("window.drawn")


def test_pages_are_as_the_setting_has_them(kafka: str, tmp_path: Path) -> None:
    """Of a real process: whole, without acts, or not at all."""
    bridge = Bridge.create(kafka, tmp_path)
    act = f"/console/transactions/00{'7' * 25}0/commit"
    answers = {}
    with bridge.serve("settler,projector"):
        for console in ("on", "read-only", "off"):
            with bridge.serve("api", OUTBOX_BRIDGE_HTTP__CONSOLE=console) as api:
                own = {"origin": str(api.http.base_url).rstrip("/")}
                acted = api.http.post(act, data={"reason": "by phone"}, headers=own)
                answers[console] = (api.get("/console/").status_code, acted.status_code)
    assert answers == {"on": (200, 404), "read-only": (200, 403), "off": (404, 404)}
