"""api.cli.connect: how refusals and silence of a bridge end a command."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from api.cli.connect import call, find_all
from api.cli.output import CommandFailed, Exit
from api.web.problems import NO_ROLE
from bridge.broker.ports import choose_free_port
from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli


@contextmanager
def bridge_that_dies(said: bytes = b"") -> Iterator[str]:
    """Its URL: takes each request whole, says so much, and resets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(said)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


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


def test_process_that_serves_nobody_is_no_answer_about_a_transaction(bridge: CannedServer) -> None:
    """--url names a settler: exit code 3 would tell a script that there is no such transaction."""
    bridge.refuse("GET", "/x", 404, "not-found", NO_ROLE)
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert caught.value.code is Exit.UNREACHABLE
    assert "--url" in caught.value.remedy


def test_stranger_is_told_from_a_bridge(bridge: CannedServer) -> None:
    """Another server's 404 is not "no such transaction"."""
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert caught.value.code is Exit.FAILED
    assert "--url" in caught.value.remedy


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_answer_that_is_lost_is_no_failure_of_the_act(method: str, said: bytes) -> None:
    """The bridge may have done it before it died: "no bridge answers" would tell that nothing was done."""
    with bridge_that_dies(said) as url, pytest.raises(CommandFailed) as caught:
        call(url, method, "/v1/transactions/x/commit", body={})
    assert caught.value.is_unknown
    assert caught.value.code is Exit.FAILED
    assert "not known" in caught.value.reason
    assert "Look before you repeat it" in caught.value.remedy


def test_read_whose_answer_is_lost_is_unreachable() -> None:
    """Nothing was to be changed by it."""
    with bridge_that_dies() as url, pytest.raises(CommandFailed) as caught:
        call(url, "GET", "/x")
    assert (caught.value.code, caught.value.is_unknown) == (Exit.UNREACHABLE, False)


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"", b"[]", b"null", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("command", [("tx", "list"), ("group", "list"), ("stats", "-o", "json"), ("openapi",)])
def test_success_of_a_stranger_is_no_traceback(
    cli: Cli, bridge: CannedServer, command: tuple[str, ...], body: bytes
) -> None:
    """A proxy's page for logging in is a 200, too."""
    for path in ("/v1/transactions", "/v1/producer-groups", "/v1/stats", "/openapi.json"):
        bridge.answer("GET", path, 200, body)
    ended = cli(*command, "--url", bridge.url)
    assert (ended.code, ended.out) == (1, "")
    assert "--url" in ended.err


@pytest.mark.parametrize(("status", "body"), [(502, b"<html>Bad Gateway</html>"), (504, b""), (200, b"<html></html>")])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_proxy_that_lost_the_bridge_is_no_failure_of_the_act(
    bridge: CannedServer, method: str, status: int, body: bytes
) -> None:
    """It may have handed the call on: what was asked may be done, and is not told as refused."""
    bridge.answer(method, "/v1/transactions/x/force", status, body)
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, method, "/v1/transactions/x/force", body={})
    assert (caught.value.code, caught.value.is_unknown) == (Exit.FAILED, True)
    assert "not known" in caught.value.reason
    assert "Look before you repeat it" in caught.value.remedy


@pytest.mark.parametrize("status", [502, 503, 504])
def test_proxy_without_a_bridge_is_unreachable(bridge: CannedServer, status: int) -> None:
    """As where nobody listens: a script that waits for the bridge goes on waiting."""
    bridge.answer("GET", "/x", status, b"<html>no upstream</html>")
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert (caught.value.code, caught.value.is_unknown) == (Exit.UNREACHABLE, False)


@pytest.mark.parametrize(
    ("command", "method", "path"),
    [
        (("tx", "list"), "GET", "/v1/transactions"),
        (("stats",), "GET", "/v1/stats"),
        (("parked", "jobs"), "GET", "/v1/parked/redrive"),
        (("parked", "redrive", "resume", "--reason", "x", "--yes"), "POST", "/v1/parked/redrive"),
        (("key", "list", "-o", "json"), "GET", "/v1/principals"),
    ],
)
def test_document_of_a_stranger_is_no_traceback(
    cli: Cli, bridge: CannedServer, command: tuple[str, ...], method: str, path: str
) -> None:
    """JSON, but not what a bridge answers."""
    bridge.answer(method, path, 200, {"status": "ok"})
    ended = cli(*command, "--url", bridge.url)
    assert (ended.code, ended.out) == (1, "")
    assert "--url" in ended.err


@pytest.mark.parametrize("errors", ["x", ["x"], [None]])
def test_problem_of_a_stranger_is_no_traceback(bridge: CannedServer, errors: object) -> None:
    """RFC 9457 leaves members of its own to everybody."""
    bridge.answer("GET", "/x", 409, {"type": "about:blank", "title": "no", "detail": "no", "errors": errors})
    with pytest.raises(CommandFailed) as caught:
        call(bridge.url, "GET", "/x")
    assert (caught.value.code, caught.value.remedy) == (Exit.FAILED, "Is this a bridge? Check --url.")


@pytest.mark.parametrize(
    "command",
    [
        ("tx", "list", "-g", "\udcff"),
        ("tx", "commit", "\udcff\udcfe"),
        ("tx", "force", "0206k8e9s5ta7vo3q1m4c8b2h6dg", "COMMIT", "--reason", "\udcff"),
        ("group", "get", "\udcff"),
        ("acl", "--topic", "\udcff"),
        ("config", "show", "-c", "\udcff"),
    ],
)
def test_argument_that_is_no_text_is_refused(cli: Cli, bridge: CannedServer, command: tuple[str, ...]) -> None:
    """Bytes of another encoding, as a terminal or a script may give them: usage, which one, and nothing is called."""
    ended = cli(*command, *(("--url", bridge.url) if command[0] in {"tx", "group"} else ()))
    assert (ended.code, bridge.asked) == (2, [])
    assert "is not UTF-8" in ended.err
    assert "\\udcff" in ended.err


@pytest.mark.parametrize("host", ["a" * 300, "."])
def test_host_that_cannot_be_is_unreachable(host: str) -> None:
    """No traceback of whatever encodes names of hosts."""
    with pytest.raises(CommandFailed) as caught:
        call(f"http://{host}:1", "POST", "/x", body={})
    assert (caught.value.code, caught.value.is_unknown) == (Exit.UNREACHABLE, False)


def test_pages_are_followed_up_to_the_limit(bridge: CannedServer) -> None:
    """Three pages, of which two are wanted; the cursor behind them is given back."""
    bridge.answer("GET", "/x", 200, {"items": [{"n": 1}, {"n": 2}], "next": "c1"})
    bridge.answer("GET", "/x", 200, {"items": [{"n": 3}], "next": "c2"})
    found, cursor = find_all(bridge.url, "/x", "items", {"state": "PARKED", "topic": None}, 3)
    assert [bytes(item) for item in found] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    assert cursor == "c2"
    assert bridge.asked[0].query == {"state": "PARKED", "limit": "3"}
    assert bridge.asked[1].query == {"state": "PARKED", "limit": "1", "cursor": "c1"}
