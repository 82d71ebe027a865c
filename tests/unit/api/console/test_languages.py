"""English and Simplified Chinese: every text of the templates is in the catalogue, and the reader chooses."""

import json
import re
import time
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from api.console import home, parked, render
from api.console.render import LANGUAGES, MENU, say
from api.console.transactions import _TABS
from api.web.problems import PROBLEMS
from bridge.core.explanation import _BLOCKED, _BY, _PARKED, _SILENT
from checker.call import Failure
from tests.support.shown_texts import read_shown_texts
from tests.support.whole_bridge import WholeBridge
from tests.unit.core.test_explanation import CASES

FOLDER = Path(render.__file__).parent
CHINESE = json.loads((FOLDER / "zh.json").read_text(encoding="utf-8"))


def texts_of_templates() -> set[str]:
    found = {section.name for section in MENU} | {label for label, *_ in _TABS} | {*home.TEXTS, *parked.TEXTS}
    for path in (FOLDER / "templates").glob("*.html"):
        for call in Environment(autoescape=True).parse(path.read_text(encoding="utf-8")).find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "_" and isinstance(call.args[0], nodes.Const):
                found.add(call.args[0].value)
    return found


def test_catalogue_has_every_text_of_the_templates_and_no_other() -> None:
    """One that is missing would be an error of the page."""
    assert texts_of_templates() == CHINESE.keys()


@pytest.mark.parametrize(
    ("wanted", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de,fr;q=0.9,zh;q=0.1", "zh-Hans"),
        ("zh;q=0,en;q=0.1", "en"),
        ("zh;q=x", "en"),
        ("de", "en"),
        ("," * 10_000, "en"),
    ],
)
def test_browser_says_which_language_is_wanted(bridge: WholeBridge, wanted: str, language: str) -> None:
    """The first of what there is; English for all others."""
    page = bridge.call("GET", "/console/groups", headers={"accept-language": wanted}).body.decode()
    assert f'<html lang="{language}">' in page
    assert ("生产者组" in page) is (language == "zh-Hans")


def test_reader_chooses_and_comes_back(bridge: WholeBridge) -> None:
    """The choice is kept in a cookie, counts more than what the browser asks for, and leads nowhere else."""
    form = {"language": "zh", "next": "search?state=PARKED"}
    chosen = bridge.submit("/console/language", form)
    assert (chosen.status, chosen.headers["location"]) == (303, "./search?state=PARKED")
    cookie, _, flags = chosen.headers["set-cookie"].partition(";")
    assert {"HttpOnly", "SameSite=Lax"} <= {flag.strip() for flag in flags.split(";")}
    page = bridge.call("GET", "/console/search?state=PARKED", headers={"cookie": cookie, "accept-language": "en"})
    assert '<html lang="zh-Hans">' in page.body.decode()
    assert 'name="next" value="search?state=PARKED"' in page.body.decode()
    assert "Sign out" not in page.body.decode()
    for place in ("//evil.example", "https://evil.example", "javascript:x", "../../v1"):
        answer = bridge.submit("/console/language", form | {"next": place})
        assert answer.headers["location"] == "./"
    assert bridge.submit("/console/language", form | {"language": "xx"}).status == 422
    assert bridge.submit("/console/language", form, {"origin": "https://evil.example"}).status == 403


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_there_in_every_language(bridge: WholeBridge, language: str) -> None:
    """Whatever it shows."""
    bridge.call("PUT", "/v1/producer-groups/shop", {})
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": {"n": 1}}]}
    one = bridge.call("POST", "/v1/transactions", body).document["transaction_id"]
    bridge.pass_ms(60_000)
    paths = (
        "",
        "search",
        "search?q=shop",
        "search?q=nothing",
        f"transactions/{one}",
        "parked",
        "groups",
        "groups/shop",
    )
    for path in (*paths, "topics", "topics/orders", "reports", "audit", "settings"):
        reply = bridge.call("GET", f"/console/{path}", headers={"cookie": f"outbox-bridge-language={language}"})
        assert reply.status in {200, 303}, path


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_for_what_happened_and_what_is_next_are_translated_too(bridge: WholeBridge, language: str) -> None:
    """In lists and in timelines."""
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": {"n": 1}}]}
    one = bridge.call("POST", "/v1/transactions", body).document["transaction_id"]
    headers = {"cookie": f"outbox-bridge-language={language}"}
    page = bridge.call("GET", f"/console/transactions/{one}", headers=headers).body.decode()
    words = {"en": ("prepared", "check"), "zh": ("已准备", "检查")}
    for chosen, found in words.items():
        assert all((f"<strong>{word}</strong>" in page) is (chosen == language) for word in found), chosen


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_needs_a_person_is_said_in_the_readers_language(bridge: WholeBridge, language: str) -> None:
    """And why a form has done nothing: names and reasons in it stay as they are."""
    bridge.call("PUT", "/v1/producer-groups/mail", {"check": {"max_lifetime_seconds": 30}})
    bridge.call("POST", "/v1/transactions", {"producer_group": "mail", "messages": [{"topic": "orders"}]})
    bridge.call("POST", "/v1/transactions", {"producer_group": "shop", "messages": [{"topic": "orders"}]})
    bridge.pass_ms(120_000)
    headers = {"cookie": f"outbox-bridge-language={language}"}
    page = bridge.call("GET", "/console/", headers=headers).body.decode()
    job = {"action": "resume", "phrase": "resume 1", "typed": "resume 1", "reason": "back", "rate": "0"}
    forms = [
        bridge.submit(path, fields, headers).body.decode()
        for path, fields in (
            ("/console/redrive", job),
            ("/console/redrive", {**job, "typed": "x"}),
            ("/console/groups/mail/pause", {"what": "checks"}),
        )
    ]
    assert ("1 parked transaction of mail" in page, "they wait for a decision" in page) == (language == "en",) * 2
    assert ("mail 有 1 个搁置的事务" in page) is (language == "zh")
    assert ("Nobody answers the checks of shop" in page) is (language == "en")
    for form, told in zip(forms, ("1000", "", ""), strict=True):
        (alert,) = re.findall(r'role="alert">([^<]*)<', form)
        assert (alert.startswith("Nothing was done"), told in alert) == (language == "en", True)


# commands, settings, codes and terms of the field are the same in Chinese
KEPT = re.compile(r"`[^`]*`|\([\w-]+\)|\bop\b|[\w/.-]*[./_=-][\w/.-]*")


def english_of(chinese: str) -> list[str]:
    return re.findall(r"\b[a-z]{2,}", KEPT.sub("", chinese))


QUOTED = ("gone", "Local: Unknown partition", "https://shop/checks")


@pytest.mark.parametrize("text", [said.text for _, __, said in CASES.values()])
def test_explanations_are_told_in_chinese(text: str) -> None:
    """Whole, with every number and time of the English ones; what others have said is quoted as it is."""
    chinese = say("zh", text)
    assert say("en", text) == text
    assert chinese.endswith("\u3002")
    assert sorted(re.findall(r"\d[\dTZ-]*", text)) == sorted(re.findall(r"\d[\dTZ-]*", chinese))
    for quoted in QUOTED:
        chinese = chinese.replace(quoted, "")
    assert english_of(chinese) == []


@pytest.mark.parametrize("word", [*_SILENT.values(), *_BLOCKED.values(), *_PARKED.values(), *_BY.values()])
def test_each_part_of_an_explanation_has_its_chinese(word: str) -> None:
    """Also with a status and an address behind it."""
    assert re.findall(r"\b[a-z]{2,}", say("zh", word)) == []
    assert re.findall(r"\b[a-z]{2,}", say("zh", f"{word} (404) (10.0.0.1)")) == []


def test_unknown_sentences_stay_as_they_are() -> None:
    """No page fails for one."""
    assert say("zh", "Something else {0}") == "Something else {0}"


def test_everything_that_is_wrong_has_its_chinese() -> None:
    """Titles, details and remedies of problems, findings, and details of checks, as the code makes them."""
    texts = {**read_shown_texts()}
    for row in PROBLEMS.values():
        texts |= dict.fromkeys((row.title, row.remedy), row.slug)
    flaws = {}
    for text, place in texts.items():
        chinese = say("zh", text.replace("{}", "7"))
        is_chinese = re.search("[\u4e00-\u9fff]", chinese) is not None
        if not is_chinese or english_of(chinese) or chinese.count("7") < text.count("{}"):
            flaws[text] = (place, chinese)
    assert flaws == {}
    assert len(texts) > 350


@pytest.mark.parametrize("code", [*_SILENT, *_BLOCKED, *_PARKED, *Failure])
def test_codes_of_reasons_have_their_chinese(code: str) -> None:
    """With the code behind it, by which logs and the interface are searched."""
    chinese = say("zh", code)
    assert (re.search("[\u4e00-\u9fff]", chinese) is not None, f"({code})" in chinese) == (True, True)


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("producer group parked does not exist: `outbox-bridge group put` makes it", "生产者组 parked 不存在："),
        ("no answer: status 404: gone", "没有回答：状态码 404：gone"),
        (
            "https://a/b: no answer: refused; 2 wait for their end",
            "https://a/b：没有回答：连接被拒绝 (refused)；2 个等待结束",
        ),
        ("Local: broker (7) is down; see its log.", "Local: broker (7) is down; see its log."),
        ("this caller was not granted `admin` for producer group ok", "此调用者对生产者组 ok没有 `admin` 权限"),
    ],
)
def test_what_others_have_said_stays_as_it_is(text: str, chinese: str) -> None:
    """Names, and texts of Kafka and of endpoints, even where the bridge has the same words."""
    assert say("zh", text).startswith(chinese)


def test_same_is_said_of_two_things_in_two_sentences() -> None:
    """The second one's words are no part of the first one's name."""
    board = "no process has the role {}: {}"
    settler = board.format("settler", "nothing is published, rolled back or checked")
    projector = board.format("projector", "search stands still, and repeats with an idempotency key are refused")
    assert say("zh", f"{settler}; {projector}") == f"{say('zh', settler)}；{say('zh', projector)}"


def test_hostile_text_takes_no_time() -> None:
    """However often it begins like a sentence."""
    begun = time.perf_counter()
    for piece in (" (", ") (", "; ", ": ", " is  in , and  in ", " of ", ", which begins at "):
        assert say("zh", "x" + piece * (990 // len(piece)))
    assert time.perf_counter() - begun < 10


def test_text_may_end_with_many_dots() -> None:
    """Each was a call within a call, and the page an error."""
    assert say("zh", f"x{'.' * 598}") == f"x{'.' * 598}"
    assert say("zh", f"refused{'.' * 30}").startswith("连接被拒绝 (refused)")


def test_problems_and_reasons_are_told_in_chinese(bridge: WholeBridge) -> None:
    """On pages of problems, after an act that is refused, in lists, and of endpoints."""
    zh = {"accept-language": "zh"}
    bridge.call("PUT", "/v1/producer-groups/shop", {"endpoints": [{"url": "https://shop/"}]})
    bridge.call("PUT", "/v1/producer-groups/mail", {"check": {"max_lifetime_seconds": 30}})
    for group in ("shop", "mail"):
        body = {"producer_group": group, "messages": [{"topic": "orders"}]}
        one = bridge.call("POST", "/v1/transactions", body).document["transaction_id"]
    bridge.pass_ms(120_000)

    def page(path: str) -> str:
        return bridge.call("GET", f"/console/{path}", headers=zh).body.decode()

    refused = bridge.submit(f"/console/transactions/{one}/abandon", {"reason": "back"}, zh).body.decode()
    assert ("提交没有受阻。" in refused, "没有改变任何内容" in refused, "Commit is not" in refused) == (
        True,
        True,
        False,
    )
    unknown = page("search?state=X")
    assert ("请求不符合约定的格式" in unknown, "须为其中之一：" in unknown) == (True, True)
    assert "没有端点 (NO_ENDPOINT)" in page("parked")
    assert "连接被拒绝 (refused)" in page("groups/shop")
    found = bridge.submit("/console/settings", {}, zh).body.decode()
    assert ("没有回答：连接被拒绝 (refused)" in found, "请启动生产者，或更正主机和端口" in found) == (True, True)


def test_transaction_is_explained_in_the_language_of_its_page(bridge: WholeBridge) -> None:
    """The sentence at the top of it."""
    body = {"producer_group": "shop", "messages": [{"topic": "orders", "value": {"n": 1}}]}
    one = bridge.call("POST", "/v1/transactions", body).document["transaction_id"]
    page = bridge.call("GET", f"/console/transactions/{one}", headers={"accept-language": "zh"}).body.decode()
    assert "其生产者尚未结束它" in page
    assert "its producer has not ended it" not in page
