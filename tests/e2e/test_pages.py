"""The pages for people, in a browser that reaches no other host."""

import re
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.browser import Tab, open_tab
from tests.support.socket_bridge import SocketBridge, socket_bridge

_PAGE_S = 60.0


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBridge]:
    with socket_bridge(tmp_path_factory.mktemp("bridge"), {}) as running:
        yield running


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """As on a train: no name resolves."""
    with open_tab("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as opened:
        yield opened


def text_of(tab: Tab, wanted: str) -> str:
    """What the page shows once it shows `wanted`."""
    deadline = time.monotonic() + _PAGE_S
    while wanted not in (text := str(tab.ask("document.body.innerText"))):
        assert time.monotonic() < deadline, text[-2000:]
        time.sleep(0.1)
    return text


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("/", "transactional messages"), ("/docs", "/v1/transactions/batch"), ("/redoc", "Prepare and end transactions")],
)
def test_page_is_whole_without_internet(bridge: SocketBridge, tab: Tab, path: str, wanted: str) -> None:
    """Scripts and styles come from the bridge itself."""
    tab.requested.clear()
    tab.visit(bridge.url + path)
    assert text_of(tab, wanted)
    hosts = {url.split("/")[2] for url in tab.requested if url.startswith("http")}
    assert hosts == {bridge.url.split("/")[2]}


def test_every_way_from_the_first_page_leads_somewhere(bridge: SocketBridge, tab: Tab) -> None:
    """Its links are answered, with an answer that is meant for them."""
    tab.visit(bridge.url + "/")
    links = tab.ask("[...document.links].map(link => link.href)")
    assert len(links) >= 7
    assert {link: httpx2.get(link).status_code for link in links if httpx2.get(link).status_code != 200} == {}


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc"])
def test_addresses_of_a_page_are_relative(bridge: SocketBridge, path: str) -> None:
    """So a proxy may put a path before them."""
    page = httpx2.get(bridge.url + path).text
    addresses = re.findall(r"""(?:href|src|url|spec-url)(?:=|: )['"]([^'"]+)""", page)
    assert addresses
    assert [address for address in addresses if address.startswith("/") or ":" in address] == []


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_monitors_that_only_want_the_head_get_it(bridge: SocketBridge, path: str) -> None:
    """As many do, unless told otherwise."""
    answer = httpx2.head(bridge.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_unknown_asset_is_a_problem(bridge: SocketBridge) -> None:
    """No file but those of the pages is given out."""
    for name in ("nothing.js", "..%2f__init__.py", "../consts.py"):
        answer = httpx2.get(f"{bridge.url}/docs/assets/{name}")
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (404, "not-found"), name


def test_pages_are_read_only(bridge: SocketBridge) -> None:
    """And say so."""
    answer = httpx2.post(f"{bridge.url}/", json={})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
