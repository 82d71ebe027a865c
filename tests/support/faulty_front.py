"""Stands before a bridge and spoils what goes through: answers lost, cut, late, or from somebody else.

with faulty_front(bridge.url) as front:
    front.spoil(lose_answer, reply(503, b"...", {"Retry-After": "1"}))
    ... front.url, front.asked
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

from tests.support.canned_http import Asked

_HOP_HEADERS = {"connection", "content-length", "date", "host", "keep-alive", "transfer-encoding"}
PROBLEMS = "https://outbox-bridge.dev/problems/"


class Exchange:
    """One request that waits for what becomes of it."""

    def __init__(
        self, handler: BaseHTTPRequestHandler, asked: Asked, client: httpx2.Client, gone: threading.Event
    ) -> None:
        self.asked = asked
        self.gone = gone
        self._handler = handler
        self._client = client

    def forward(self) -> httpx2.Response:
        """The bridge's own answer."""
        headers = {name: value for name, value in self.asked.headers.items() if name.lower() not in _HOP_HEADERS}
        target = self._handler.path
        return self._client.request(self.asked.method, target, content=self.asked.body, headers=headers)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], length: int | None = None) -> None:
        """Writes an answer; `length`: one that it does not have."""
        self._handler.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_HEADERS:
                self._handler.send_header(name, value)
        self._handler.send_header("Content-Length", str(len(body) if length is None else length))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def write_slowly(self, raw: bytes, pause_s: float) -> None:
        """A byte at a time, until the test is over."""
        for byte in raw:
            if self.gone.wait(pause_s):
                return
            self._handler.wfile.write(bytes([byte]))

    def cut(self) -> None:
        """Closes the connection."""
        self._handler.close_connection = True
        self._handler.connection.shutdown(socket.SHUT_RDWR)


Fault = Callable[[Exchange], None]


def let_through(exchange: Exchange) -> None:
    """No fault."""
    answer = exchange.forward()
    exchange.answer(answer.status_code, answer.content, answer.headers)


def lose_answer(exchange: Exchange) -> None:
    """The bridge does it, and its answer is lost."""
    exchange.forward()
    exchange.cut()


def lose_request(exchange: Exchange) -> None:
    """The bridge never sees it."""
    exchange.cut()


def truncate_answer(exchange: Exchange) -> None:
    """The connection breaks in the middle of the answer."""
    answer = exchange.forward()
    exchange.answer(answer.status_code, answer.content[:-7], answer.headers, len(answer.content))
    exchange.cut()


def shorten_answer(exchange: Exchange) -> None:
    """The answer is cut off, and its length says nothing of it."""
    answer = exchange.forward()
    exchange.answer(answer.status_code, answer.content[:-7], answer.headers)


def hold_answer(exchange: Exchange) -> None:
    """The bridge does it, and its answer never comes."""
    exchange.forward()
    exchange.gone.wait()
    exchange.cut()


def trickle_answer(exchange: Exchange) -> None:
    """Bytes come, but far too slowly."""
    exchange.forward()
    exchange.write_slowly(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 1_000, 0.05)
    exchange.cut()


def reply(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Fault:
    """Somebody else answers; the bridge never sees it."""
    return lambda exchange: exchange.answer(status, body, headers or {})


def reply_problem(status: int, code: str, outcome: str | None = None, **members: object) -> Fault:
    """The bridge answers with a problem. `retry_after` becomes a header too."""
    problem = {"type": PROBLEMS + code, "title": code, "status": status, "detail": code, "instance": "r-1", **members}
    if outcome is not None:
        problem["outcome"] = outcome
    headers = {"Content-Type": "application/problem+json"}
    if "retry_after" in members:
        headers["Retry-After"] = str(members["retry_after"])
    return reply(status, httpx2.Response(200, json=problem).content, headers)


@dataclass
class Front:
    """`asked`: every request, whatever became of it. `fault`: what happens to those for which none was planned."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    fault: Fault = let_through
    _planned: "deque[Fault]" = field(default_factory=deque)

    def spoil(self, *faults: Fault) -> None:
        """What becomes of the next requests, one each."""
        self._planned.extend(faults)

    def paths(self) -> list[str]:
        """Of all requests so far."""
        return [asked.path for asked in self.asked]

    def take(self) -> Fault:
        """For the next request."""
        try:
            return self._planned.popleft()
        except IndexError:
            return self.fault


@contextmanager
def faulty_front(bridge_url: str) -> Iterator[Front]:
    """A front on a free port of loopback."""
    front, gone = Front(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path, _, query = self.path.partition("?")
            asked = Asked(self.command, path, {"": query}, dict(self.headers.items()), body, self.client_address[1])
            front.asked.append(asked)
            try:
                front.take()(Exchange(self, asked, client, gone))
            except OSError:  # the client has gone
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - names of the standard library

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, block_on_close = True, False
        request_queue_size = 128  # of the standard library's five, a thread more has to try again after a second

    with (
        httpx2.Client(base_url=bridge_url, timeout=30, verify=False) as client,
        Server(("127.0.0.1", 0), Handler) as server,
    ):
        front.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield front
        finally:
            gone.set()
            server.shutdown()
            thread.join()
