"""A process with one check endpoint for each producer group, which answers from the group's own database.

python -m tests.chaos.endpoint RUN_FILE NAME NUMBER
"""

import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.chaos.operations import ref_of
from tests.chaos.orders import MOODY, WAITING, RunFile
from tests.chaos.recorded_calls import now_ms
from tests.chaos.shop import Shop
from tests.support.history.evidence import CheckCall
from tests.support.history.lines import LineWriter

_HANG_S = 3.0  # longer than the moody group's time for a call
_MOODS = ("hang", "status", "html", "nonce", "word", "member", "cut")

Json = dict[str, Any]


class Endpoint:
    """Of one group. `answer` may be called by many threads."""

    def __init__(self, run: RunFile, group: str, log: LineWriter, choice: random.Random) -> None:
        self.group = group
        self._run = run
        self._log = log
        self._choice = choice
        self._of_thread = threading.local()

    def answer(self, call: Json) -> tuple[int, bytes]:
        """Status and body. The log is written before: who reads it knows at least what the bridge may have heard."""
        mood = self._choice.choice(_MOODS) if self.group == MOODY and self._choice.random() < 0.5 else None
        checks = call["checks"]
        known = {} if mood or self.group == WAITING else self._shop().ask(ref_of(check["messages"]) for check in checks)
        resolutions = [
            {
                "transaction_id": c["transaction_id"],
                "nonce": c["nonce"],
                "resolution": known.get(ref_of(c["messages"]), "UNKNOWN"),
            }
            for c in checks
        ]
        for check, told in zip(checks, resolutions, strict=True):
            said = None if mood else told["resolution"]
            where = (check["transaction_id"], check["check_number"], check["nonce"])
            self._log.write(CheckCall(now_ms(), *where, self.group, said))
        return _speak(mood, resolutions)

    def _shop(self) -> Shop:
        """One connection for each thread."""
        if not hasattr(self._of_thread, "shop"):
            self._of_thread.shop = Shop(self._run.database(self.group))
        shop: Shop = self._of_thread.shop
        return shop


def _speak(mood: str | None, resolutions: list[Json]) -> tuple[int, bytes]:
    """The truth, or something that is no answer. Status 0: none at all."""
    if mood == "hang":
        time.sleep(_HANG_S)
    if mood in {"hang", "cut"}:
        return 0, b""
    if mood == "status":
        return 500, b"{}"
    if mood == "html":
        return 200, b"<html>COMMIT</html>"
    changed: dict[str, Json] = {
        "nonce": {"nonce": "1-AAAAAAAAAAAAAAAAAAAAA"},
        "word": {"resolution": "Commit"},
        "member": {"comment": "COMMIT"},
    }
    told = [{**each, **changed.get(mood or "", {})} for each in resolutions]
    return 200, json.dumps({"resolutions": told}).encode()


def make_handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    """For `_Server`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = endpoint.answer(json.loads(self._read_body()))
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _read_body(self) -> bytes:
            """Raises ConnectionError where the caller was killed in the middle."""
            wanted = int(self.headers.get("Content-Length", -1))
            body = self.rfile.read(max(wanted, 0))
            if len(body) != wanted:
                raise ConnectionAbortedError("the call ends in the middle")
            return body

        def log_message(self, *_: object) -> None:
            return None

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a caller that was killed, or has given up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def open_server(run: RunFile, group: str, port: int, name: str, log: LineWriter) -> ThreadingHTTPServer:
    """The group's endpoint of the process with this name; it does not serve yet."""
    endpoint = Endpoint(run, group, log, random.Random(f"{run.seed} {name} {group}"))
    return _Server(("127.0.0.1", port), make_handler(endpoint))


def main() -> None:
    """Serves until it is killed."""
    run, name, number = RunFile.read(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    log = LineWriter(run.folder / f"{name}.checks.jsonl")
    servers = [open_server(run, group, ports[number], name, log) for group, ports in run.endpoint_ports.items()]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
