"""What a relay tells of itself over HTTP: /livez, /readyz and /metrics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

from api.cli.output import CommandFailed, Exit

if TYPE_CHECKING:
    from outbox.relay import RelayBacklog

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class RelayProbes:
    """What is asked. `read_sums`: published, parked and delayed rows so far. `count`: None if the database is away."""

    is_alive: Callable[[], bool]
    read_sums: Callable[[], tuple[int, int, int]]
    count: "Callable[[], RelayBacklog | None]"

    def answer(self, path: str) -> tuple[int, str, str]:
        """Status, content type and text."""
        match path:
            case "/livez":
                is_alive = self.is_alive()
                return (200 if is_alive else 503), _TEXT, "ok\n" if is_alive else "the relay has ended\n"
            case "/readyz":
                if self.count() is None:
                    return 503, _TEXT, "the database cannot be used now\n"
                return 200, _TEXT, "ok\n"
            case "/metrics":
                return 200, _METRICS, self._render()
            case _:
                return 404, _TEXT, "there are /livez, /readyz and /metrics\n"

    def _render(self) -> str:
        published, parked, delayed = self.read_sums()
        families = [
            ("outbox_relay_published_rows_total", "counter", "Rows published by this process.", published),
            ("outbox_relay_refused_rows_total", "counter", "Rows that the bridge refused.", parked),
            ("outbox_relay_delayed_rows_total", "counter", "Tries that were put off.", delayed),
        ]
        counted = self.count()
        if counted is not None:
            families += [
                ("outbox_relay_waiting_rows", "gauge", "Rows to be published, 100000 at most.", counted.waiting),
                ("outbox_relay_parked_rows", "gauge", "Rows that wait for an operator.", counted.parked),
            ]
        families.append(
            ("outbox_relay_database_up", "gauge", "Whether the database answers.", int(counted is not None))
        )
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n" for name, kind, text, value in families
        )


@contextmanager
def serving_health(address: str | None, probes: RelayProbes) -> Iterator[None]:
    """Answers at HOST:PORT, or at a port of loopback, while the block runs. Raises CommandFailed."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _make_handler(probes))
    except (OSError, ValueError, OverflowError) as error:
        raise CommandFailed(Exit.USAGE, f"--health {address} cannot be used: {error}", "Say [HOST:]PORT.") from error
    thread = Thread(target=server.serve_forever, name="outbox-relay-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_handler(probes: RelayProbes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a caller that says nothing

        def answer(self) -> None:
            """Called by the server."""
            status, kind, text = probes.answer(self.path.partition("?")[0])
            raw = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = answer  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            """No line for each."""

    return Handler
