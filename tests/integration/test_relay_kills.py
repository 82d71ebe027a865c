"""Relays as processes, killed with SIGKILL while their requests are under way, at a bridge over HTTP."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.source_tree import ROOT
from tests.support.user_database import UserDatabase

pytest_plugins = ["tests.support.postgres", "tests.support.user_databases"]

KILLS, KEYS, ROWS = 3, 4, 10


class Bridge:
    """Publishes each idempotency key once, as the real one does. `hold`: keeps its answers back after that."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []
        self.holding, self.is_asked, self.let_go = False, threading.Event(), threading.Event()
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    def publish(self, body: bytes) -> bytes:
        document = json.loads(body)
        transactions = document.get("transactions", [document])
        with self._lock:
            for transaction in transactions:
                if transaction["idempotency_key"] not in self._keys:
                    self._keys.add(transaction["idempotency_key"])
                    (message,) = transaction["messages"]
                    self.published.append((message["key"], message["value"]))
        if self.holding:
            self.is_asked.set()
            self.let_go.wait(30)
        results = [{"status": 200, "transaction_id": "t", "state": "COMMITTED"} for _ in transactions]
        return json.dumps({"results": results} if "transactions" in document else results[0]).encode()


@contextmanager
def serving(bridge: Bridge) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = bridge.publish(body)
            try:
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                pass  # whoever asked is dead

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def start(world: OutboxWorld, url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.support.relay_process", world.database.url, url], cwd=ROOT)


@pytest.mark.parametrize("user_database", ["postgresql"], indirect=True)
def test_killed_relays_lose_double_and_reorder_nothing(user_database: UserDatabase) -> None:
    """Each dies when the bridge has published what it sent and has not answered; the next one takes over."""
    world, bridge = OutboxWorld(user_database), Bridge()
    for number in range(ROWS):
        world.enqueue(*[Sent("orders", b"%d" % key, b"%d" % number) for key in range(KEYS)])
    with serving(bridge) as url:
        for _ in range(KILLS):
            bridge.holding, bridge.is_asked, bridge.let_go = True, threading.Event(), threading.Event()
            relay = start(world, url)
            assert bridge.is_asked.wait(60)
            relay.kill()
            relay.wait(30)
            bridge.holding = False
            bridge.let_go.set()
        survivor = start(world, url)
        for _ in range(2_000):
            if world.count() == (0, 0):
                break
            threading.Event().wait(0.03)
        survivor.kill()
        survivor.wait(30)
    assert world.count() == (0, 0)
    for key in range(KEYS):
        values = [value for one, value in bridge.published if one == str(key)]
        assert values == [str(number) for number in range(ROWS)]
    world.engine.dispose()
