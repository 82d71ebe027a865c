"""A producer's check endpoint as it should be, and with one defect at a time."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


@dataclass
class TrialEndpoint:
    """`defect`: a word of `_TrialHandler`; `states`: what it knows, kept as a database would."""

    port: int
    defect: str
    states: dict[str, str] = field(default_factory=dict)
    secret: str = SECRET
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}/check?token=hidden"

    def restart(self) -> None:
        """Its memory is lost, unless it was in a database."""
        if self.defect == "forgets":
            self.states = dict.fromkeys(self.states, "COMMIT")

    def resolve(self, transaction_id: str) -> str:
        """Bars what it does not know; open local transactions are told by their state."""
        with self.lock:
            known = self.states.get(transaction_id)
            if self.defect == "commits" and known is None:
                return "COMMIT"
            if self.defect == "fickle" and known == "ROLLBACK":
                return "UNKNOWN"
            if known == "OPEN":
                return "COMMIT" if self.defect == "eager" else "UNKNOWN"
            return self.states.setdefault(transaction_id, "ROLLBACK")

    def is_signed(self, raw: bytes, headers: dict[str, str]) -> bool:
        """As Standard Webhooks says."""
        webhook = Webhook(self.secret)
        try:
            if self.defect == "timeless":
                at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
                return webhook.sign(headers["webhook-id"], at, raw.decode()) == headers["webhook-signature"]
            webhook.verify(raw, headers)
        except ValueError:
            return True  # it reads the body too, once the signature is good
        except (WebhookVerificationError, KeyError):
            return self.defect == "credulous"
        return True


def answer(endpoint: TrialEndpoint, raw: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body."""
    if not endpoint.is_signed(raw, headers):
        return 401, b""
    try:
        checks = json.loads(raw)["checks"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return (500 if endpoint.defect == "brittle" else 400), b""
    if endpoint.defect == "single":
        checks = checks[:1]
    entries: list[dict[str, Any]] = [
        {
            "transaction_id": c["transaction_id"],
            "nonce": c["nonce"],
            "resolution": endpoint.resolve(c["transaction_id"]),
        }
        for c in checks
    ]
    return 200, json.dumps({"resolutions": entries}).encode()


@contextmanager
def trial_endpoint(defect: str = "") -> Iterator[TrialEndpoint]:
    """A running endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            if size > (512 * 1024 if endpoint.defect == "small" else 8 * 1024 * 1024):
                self.close_connection = True
                self.send_error(413)
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = answer(endpoint, self.rfile.read(size), headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = TrialEndpoint(server.server_address[1], defect)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
