"""Who is let in: by the name that is called, the page that calls, and what only a program can send."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from api.web.app import create_app
from api.web.guard import MARK, Doorkeeper, RefusedProofs
from api.web.problems import Problem
from api.web.server import ServeConfig
from tests.support.api_fakes import FakeTransactions, make_services
from tests.support.bad_requests import UNKNOWN_ID
from tests.support.live_server import LiveServer, serve
from tests.support.problems import check_problem

PORT = 8780
JSON = (b"content-type", b"application/json")


@pytest_asyncio.fixture
async def live() -> AsyncIterator[LiveServer]:
    """A server on loopback."""
    async with serve(make_services(FakeTransactions())) as server:
        yield server


def keeper(host: str = "127.0.0.1", *allowed: str, port: int = PORT) -> Doorkeeper:
    """One that listens there."""
    made = Doorkeeper()
    made.listen(host, port, allowed)
    return made


def code(problem: Problem | None) -> str | None:
    """Why not, in a word."""
    return None if problem is None else problem.type.slug


def told(keeper: Doorkeeper, host: str, origin: str | None = None, path: str = "/v1/stats") -> str | None:
    """What a GET from there is told."""
    origins = [] if origin is None else [(b"origin", origin.encode())]
    return code(keeper.refuse("GET", path, [(b"host", host.encode()), *origins]))


@pytest.mark.parametrize("host", ["127.0.0.1:8780", "localhost:8780", "LocalHost:8780", "[::1]:8780"])
def test_loopback_is_called_by_its_names(host: str) -> None:
    """With the port it listens on."""
    assert told(keeper(), host) is None


@pytest.mark.parametrize(
    "host",
    ["rebound.example:8780", "localhost:8781", "localhost", "127.0.0.1", "10.0.0.1:8780", "0.0.0.0:8780", "", ":8780",
     "localhost.:8780", "localhost:8780.rebound.example", "127.0.0.1.rebound.example:8780", "user@localhost:8780",
     "127.0.0.1:8780, rebound.example", "\xff:8780"],
)  # fmt: skip
def test_loopback_has_no_other_name(host: str) -> None:
    """Whatever it is made to look like; also for health, which nobody else asks there."""
    assert told(keeper(), host) == told(keeper(), host, path="/metrics") == "forbidden"


def test_usual_ports_are_left_out_by_browsers() -> None:
    """And by nobody else's."""
    assert told(keeper(port=80), "localhost") is None
    assert told(keeper(port=443), "localhost") is None
    assert told(keeper(port=8443), "localhost") == "forbidden"


@pytest.mark.parametrize("host", ["10.0.0.7:8780", "10.0.0.7", "[fd00::7]:30080", "localhost:9000", "127.0.0.1"])
def test_beyond_loopback_any_address_is_its_own(host: str) -> None:
    """Forwarded ports included: a name can be pointed here by a stranger, an address cannot."""
    assert told(keeper("0.0.0.0"), host) is None


@pytest.mark.parametrize("host", ["rebound.example:8780", "localhost.rebound.example", "10.0.0.7.rebound.example:8780"])
def test_beyond_loopback_names_are_refused_unless_listed(host: str) -> None:
    """With a port only with this one, without a port with any."""
    assert told(keeper("0.0.0.0"), host) == "forbidden"
    name = host.partition(":")[0]
    assert told(keeper("0.0.0.0", name.upper()), host) is None
    assert told(keeper("0.0.0.0", f"{name}:1"), host) == "forbidden"
    assert told(keeper("127.0.0.1", name), host) is None


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_beyond_loopback_name_what_they_like(path: str) -> None:
    """A load balancer's or an old one's without any name; that is no way to anything else."""
    assert told(keeper("0.0.0.0"), "rebound.example", path=path) is None
    assert keeper("0.0.0.0").refuse("GET", path, []) is None
    assert told(keeper("0.0.0.0"), "rebound.example", path=f"{path}/../v1/stats") == "forbidden"


@pytest.mark.parametrize("hosts", [[], ["localhost:8780", "localhost:8780"], ["localhost:8780", "rebound.example"]])
def test_one_host_is_needed(hosts: list[str]) -> None:
    """Source: RFC 9112 section 3.2."""
    headers = [(b"host", host.encode()) for host in hosts]
    assert code(keeper().refuse("GET", "/v1/stats", headers)) == "malformed-request"


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://localhost:8780", True),
        ("http://127.0.0.1:8780", True),
        ("https://localhost:8780", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("http://rebound.example:8780", False),
        ("chrome-extension://localhost:8780", False),
        ("null", False),
        ("", False),
        ("localhost:8780", False),
    ],
)
def test_pages_of_others_are_refused(origin: str, is_ours: bool) -> None:
    """Another port of this machine is another site."""
    assert told(keeper(), "localhost:8780", origin) == (None if is_ours else "forbidden")


def test_page_that_was_shown_under_another_name_is_refused() -> None:
    """An address of somebody else is no page of ours, although calls to any address are let in."""
    open_one = keeper("0.0.0.0", "bridge.example")
    assert told(open_one, "10.0.0.7:8780", "http://10.0.0.7:8780") is None
    assert told(open_one, "10.0.0.7:8780", "http://10.6.6.6:8780") == "forbidden"
    assert told(open_one, "10.0.0.7:8780", "https://bridge.example") is None


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "",
                                  "text/plain; application/json", "text/plain, application/json", None])  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_change_without_a_sign_of_a_program_is_refused(method: str, kind: str | None) -> None:
    """What a browser sends to others without asking them first."""
    kinds = [] if kind is None else [(b"content-type", kind.encode())]
    headers = [(b"host", b"localhost:8780"), *kinds]
    assert code(keeper().refuse(method, "/v1/any", headers)) == "unsupported-media-type"
    assert keeper().refuse(method, "/v1/any", [*headers, (MARK.lower().encode(), b"")]) is None


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON ; charset=utf-8", "application/x-ndjson"])
def test_json_is_a_sign_of_a_program(kind: str) -> None:
    """With or without a body."""
    headers = [(b"host", b"localhost:8780"), (b"content-type", kind.encode())]
    assert keeper().refuse("POST", "/v1/any", headers) is None


async def test_remedies_are_told(live: LiveServer) -> None:
    """Which setting, which header; and a call without a body passes with either header."""
    del live.client.headers[MARK]
    path = f"/v1/transactions/{UNKNOWN_ID}/commit"
    named = check_problem(await live.client.get("/v1/stats", headers={"Host": "rebound.example"}), 403, "forbidden")
    assert "http.allowed_hosts" in named["detail"]
    bare = check_problem(await live.client.post(path), 415, "unsupported-media-type")
    assert f"{MARK}: 1" in bare["detail"]
    assert "Content-Type: application/json" in bare["detail"]
    for header in ({"Content-Type": "application/json"}, {MARK: "1"}):
        check_problem(await live.client.post(path, headers=header), 404, "unknown-transaction")


async def test_every_change_asks_for_a_sign(live: LiveServer) -> None:
    """None of the documented ones has its own way, whichever way it is served."""
    del live.client.headers[MARK]
    document = create_app(make_services(FakeTransactions())).openapi()
    changes = [(m, path) for path, item in document["paths"].items() for m in item if m != "get"]
    assert len(changes) > 15
    for method, path in changes:
        answer = await live.client.request(method, path.format_map(_Names()))
        check_problem(answer, 415, "unsupported-media-type")


async def test_host_is_looked_at_on_both_ways(live: LiveServer) -> None:
    """The short way of the server, and the framework's, which serves a body that comes in pieces."""
    head = b"POST /v1/transactions HTTP/1.1\r\nHost: rebound.example\r\nContent-Type: application/json\r\n"
    whole = await live.send_raw(head + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert whole.startswith(b"HTTP/1.1 403 ")
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(head + b"Connection: close\r\nContent-Length: 2\r\n\r\n{")
    assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    writer.close()


async def test_names_of_the_setting_reach_the_server() -> None:
    """Given where the address is."""
    config = ServeConfig(port=0, allowed_hosts=("bridge.example",))
    async with serve(make_services(FakeTransactions()), config) as live:
        assert (await live.client.get("/v1/stats", headers={"Host": "bridge.example"})).status_code == 200


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return UNKNOWN_ID


def test_refused_credentials_are_told_of_every_ten_seconds() -> None:
    """With the address and the reason of the last, and how many there were."""
    now_ms = [0]
    proofs = RefusedProofs(lambda: now_ms[0])
    with capture_logs() as told:
        for at_ms in (0, 100, 9_999, 10_000):
            now_ms[0] = at_ms
            proofs.note("10.0.0.7", "not known")
    assert [(line["event"], line["address"], line["count"]) for line in told] == [
        ("credentials_refused", "10.0.0.7", 1),
        ("credentials_refused", "10.0.0.7", 3),
    ]


@pytest.mark.parametrize(
    ("path", "origin", "status"),
    [
        ("/console/sign-in", b"http://localhost:8780", None),
        ("/console/sign-in", b"http://localhost:3000", 415),  # another program's page, though it has an allowed name
        ("/console/sign-in", None, 415),
        ("/v1/transactions", b"http://localhost:8780", 415),
    ],
)
def test_forms_are_taken_from_pages_of_the_bridge_alone(path: str, origin: bytes | None, status: int | None) -> None:
    """A browser sends a session with the forms of any port of this machine."""
    doorkeeper = Doorkeeper()
    doorkeeper.listen("127.0.0.1", 8780, ["localhost"])
    headers = [(b"host", b"localhost:8780"), (b"content-type", b"application/x-www-form-urlencoded")]
    problem = doorkeeper.refuse("POST", path, [*headers, *([] if origin is None else [(b"origin", origin)])])
    assert (None if problem is None else problem.type.status) == status
