"""An HTTP server that answers what a test tells it, and remembers what it was asked."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    port: int  # the caller's: one connection's requests have the same

    @property
    def document(self) -> object:
        return json.loads(self.body)


@dataclass
class CannedServer:
    """`answers`: status and body by method and path, each used once in order, the last one for ever."""

    url: str = ""
    answers: dict[tuple[str, str], list[tuple[int, bytes]]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, method: str, path: str, status: int, body: object) -> None:
        """`body`: bytes as they are, else JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.setdefault((method, path), []).append((status, raw))

    def refuse(self, method: str, path: str, status: int, slug: str, detail: str) -> None:
        problem = {
            "type": f"https://outbox-bridge.dev/problems/{slug}",
            "title": slug,
            "status": status,
            "detail": detail,
        }
        self.answer(method, path, status, problem)

    def take(self, method: str, path: str) -> tuple[int, bytes]:
        queued = self.answers.get((method, path), [(404, b"nothing here")])
        return queued.pop(0) if len(queued) > 1 else queued[0]


@contextmanager
def canned_server(*, keeps_connections: bool = False) -> Iterator[CannedServer]:
    """A server on a free port of loopback."""
    canned = CannedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keeps_connections else "HTTP/1.0"

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            canned.asked.append(
                Asked(
                    self.command,
                    parts.path,
                    dict(parse_qsl(parts.query)),
                    dict(self.headers.items()),
                    body,
                    self.client_address[1],
                )
            )
            status, raw = canned.take(self.command, parts.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - names of the standard library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        canned.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield canned
        finally:
            server.shutdown()
            thread.join()
