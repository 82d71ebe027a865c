"""What a process sees of the package: what it imports, its forks, its end. Each in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.canned_http import CannedServer, canned_server
from tests.support.source_tree import ROOT

FORBIDDEN = ["bridge", "api", "checker", "sqlalchemy", "confluent_kafka", "fastapi", "pydantic", "msgspec", "aiohttp"]
PUBLISHED = {"transaction_id": "0206k8e9s5ta7vo3q1m4c8b2h6dg", "state": "COMMITTED"}


@pytest.fixture
def bridge() -> Iterator[CannedServer]:
    """Publishes and prepares whatever comes."""
    with canned_server(keeps_connections=True) as server:
        server.answer("POST", "/v1/transactions", 201, {**PUBLISHED, "state": "PREPARED"})
        server.answer("POST", "/v1/messages", 200, PUBLISHED)
        yield server


def run(script: str, *arguments: str, **environment: str) -> str:
    """What a script prints; it must end well, and in silence on its error stream."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_import_takes_nothing_of_the_server_along() -> None:
    """A producer's service must not need a Kafka client, a web framework or SQLAlchemy for it."""
    loaded = run("import outbox, sys; print(*sys.modules)").split()
    assert [name for name in FORBIDDEN if name in loaded] == []


def test_records_outbox_and_relay_need_no_greenlet() -> None:
    """SQLAlchemy brings it along with its extra `asyncio` only; who has no async engine has not asked for that."""
    modules = "transaction_record, outbox.enqueue, outbox.relay, outbox.sources, outbox.check_handler, outbox.wsgi"
    script = f"import sys; sys.modules['greenlet'] = None; import outbox.{modules}; print('imported')"
    assert run(script) == "imported\n"


def test_every_public_name_exists() -> None:
    """`__all__` is what users get."""
    assert run("import outbox; print(all(hasattr(outbox, n) for n in outbox.__all__))") == "True\n"


def test_proxy_of_the_environment_does_not_come_between(bridge: CannedServer) -> None:
    """Unless it is asked for: the bridge is a service beside this one."""
    script = """
import sys, outbox
with outbox.Bridge(sys.argv[1], "shop") as face:
    print(face.publish(outbox.Message("orders")).state.value)
"""
    proxy = "http://127.0.0.1:9"
    assert run(script, bridge.url, HTTP_PROXY=proxy, http_proxy=proxy, ALL_PROXY=proxy) == "COMMITTED\n"


def test_forgotten_face_does_not_keep_the_process(bridge: CannedServer) -> None:
    """Nobody closes it: the process ends all the same."""
    script = """
import sys, outbox
face = outbox.Bridge(sys.argv[1], "shop")
print(face.publish(outbox.Message("orders")).state.value)
"""
    assert run(script, bridge.url) == "COMMITTED\n"


def test_face_that_is_dropped_ends_its_thread(bridge: CannedServer) -> None:
    """One made for each request would otherwise fill the process with threads."""
    script = """
import gc, sys, threading, outbox
outbox.Bridge(sys.argv[1], "shop").publish(outbox.Message("orders"))
gc.collect()
print([thread.name for thread in threading.enumerate()])
"""
    assert run(script, bridge.url) == "['MainThread']\n"


def test_child_of_a_fork_has_connections_of_its_own(bridge: CannedServer) -> None:
    """A server that forks its workers after the face was used: both go on."""
    script = """
import os, sys, warnings, outbox
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of every fork with threads
face = outbox.Bridge(sys.argv[1], "shop")
face.publish(outbox.Message("orders", value="parent"))
child = os.fork()
if child == 0:
    code = 3
    try:
        face.publish(outbox.Message("orders", value="child"))
        face.close()
        code = 0
    finally:
        os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
face.publish(outbox.Message("orders", value="parent again"))
face.close()
print(status)
"""
    assert run(script, bridge.url) == "0\n"
    assert [asked.document["messages"][0]["value"] for asked in bridge.asked] == ["parent", "child", "parent again"]


FORKED_IN_C = """
import ctypes, os, sys, warnings, outbox
warnings.simplefilter("ignore")
fork, end = ctypes.PyDLL(None).fork, os._exit
"""


def test_child_of_a_server_that_forks_in_c_has_connections_of_its_own(bridge: CannedServer) -> None:
    """uWSGI calls no hook of Python's: on the connection of both, each may get what the other asked for."""
    script = """
face = outbox.Bridge(sys.argv[1], "shop")
face.publish(outbox.Message("orders", value="parent"))
child = fork()
if child == 0:
    face.publish(outbox.Message("orders", value="child"))
    end(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
face.publish(outbox.Message("orders", value="parent again"))
face.close()
"""
    assert run(FORKED_IN_C + script, bridge.url) == "0\n"
    first, child, again = bridge.asked
    assert first.port == again.port != child.port


def test_hand_over_of_a_child_has_connections_of_its_own(bridge: CannedServer) -> None:
    """A relay that takes its parent's answers for its own would delete rows that nobody has published."""
    script = """
from outbox.hand_over import HttpHandOver, OutboxRow
def publish(name):
    return hand_over.publish([OutboxRow(1, name, name, "orders")])[0].fate.value
hand_over = HttpHandOver(sys.argv[1], "shop")
print(publish("parent"), flush=True)
child = fork()
if child == 0:
    print(publish("child"), flush=True)
    hand_over.close()
    end(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), publish("parent again"))
hand_over.close()
"""
    assert run(FORKED_IN_C + script, bridge.url) == "published\npublished\n0 published\n"
    first, child, again = (asked.port for asked in bridge.asked)
    assert first == again != child


def test_block_is_not_ended_by_a_child(bridge: CannedServer) -> None:
    """An error that ends the child would take the parent's messages back; without one they would be sent twice."""
    script = """
import os, sys, warnings, outbox
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of every fork with threads
class Session:
    def commit(self): print("commits", flush=True)
    def rollback(self): print("rolls back", flush=True)
    def write(self, *_): pass
def leave(is_child_in_error):
    child = None
    with face.transaction(Session()) as transaction:
        transaction.send("orders")
        transaction.prepare_early()
        child = os.fork()
        if child == 0 and is_child_in_error:
            raise ValueError
    return child
face = outbox.Bridge(sys.argv[1], "shop", record=Session())
for is_child_in_error in (False, True):
    try:
        child = leave(is_child_in_error)
    except outbox.Misuse:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
face.close()
"""
    bridge.answer("POST", "/v1/resolutions", 200, {"results": [{"status": 200, **PUBLISHED}]})
    assert run(script, bridge.url) == "commits\n7\n" * 2
    assert [asked.path.rpartition("/")[2] for asked in bridge.asked] == ["transactions", "resolutions"] * 2


def test_child_leaves_the_endpoint_to_its_parent(bridge: CannedServer) -> None:
    """A worker that a server replaces closes what it inherited: the others still answer at that address."""
    script = """
import os, sys, warnings, outbox
warnings.simplefilter("ignore", DeprecationWarning)
face = outbox.Bridge(sys.argv[1], "shop")
lease = face.endpoint_lease("http://127.0.0.1:8000/checks").start()
child = os.fork()
if child == 0:
    face.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
face.close()
"""
    for method in ("POST", "DELETE"):
        bridge.answer(method, "/v1/producer-groups/shop/endpoints", 200, {})
    assert run(script, bridge.url) == "0\n"
    assert [asked.method for asked in bridge.asked] == ["POST", "DELETE"]


def test_name_is_looked_up_where_threads_were_replaced_later(bridge: CannedServer) -> None:
    """As gevent does in a server's worker, when the application has been loaded already: its threads wake none but its
    own queues."""
    script = """
import queue, sys
from outbox import Bridge, Message
class Queue(queue.SimpleQueue):
    def get(self, **options):
        print("of the worker", end=" ")
        return super().get(**options)
queue.SimpleQueue = Queue
with Bridge(sys.argv[1].replace("127.0.0.1", "localhost"), "shop") as face:
    print(face.publish(Message("orders")).state.value)
"""
    assert run(script, bridge.url) == "of the worker COMMITTED\n"


def test_child_of_a_fork_answers_checks_on_threads_of_its_own() -> None:
    """A server may have answered some before it forks its workers; in them nobody would be left to do it."""
    script = """
import json, os, warnings
from standardwebhooks import Webhook
from datetime import datetime, UTC
from outbox import Resolution
from outbox.check_handler import CheckHandler, from_callable
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of every fork with threads
secret = "whsec_" + "A" * 43 + "="
check = {"transaction_id": "0206k8e9s5ta7vo3q1m4c8b2h6dg", "check_number": 1, "nonce": "n",
         "born_time": "2026-01-31T12:00:00.000Z", "idempotency_key": None, "messages": []}
body = json.dumps({"type": "transaction.check", "producer_group": "shop", "checks": [check]})
handler = CheckHandler([secret], from_callable(lambda checks: [Resolution.COMMIT] * len(checks)))
def ask():
    at = datetime.now(UTC)
    signature = Webhook(secret).sign("m1", at, body)
    headers = {"webhook-id": "m1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    return handler.respond("POST", {**headers, "content-type": "application/json"}, body.encode()).status
first = ask()
child = os.fork()
if child == 0:
    code = 3
    try:
        code = 0 if ask() == 200 else 4
        handler.close()
    finally:
        os._exit(code)
print(first, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask())
handler.close()
"""
    assert run(script) == "200 0 200\n"


def test_child_of_a_fork_does_not_wait_for_its_parents_calls(bridge: CannedServer) -> None:
    """Threads of the parent are not there; `close` in the child must not wait for what they had under way."""
    script = """
import os, sys, threading, warnings, outbox
warnings.simplefilter("ignore", DeprecationWarning)
class Session:
    def commit(self): committing.set(); forked.wait()
    def rollback(self): pass
    def write(self, *_): pass
face = outbox.Bridge(sys.argv[1], "shop", config=outbox.BridgeConfig(close_timeout_s=1e6), record=Session())
committing, forked = threading.Event(), threading.Event()
def send():
    with face.transaction(Session()) as transaction:
        transaction.send("orders")
thread = threading.Thread(target=send, daemon=True)
thread.start()
committing.wait()
child = os.fork()
if child == 0:
    face.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(script, bridge.url) == "0\n"


def test_interrupt_ends_a_call_at_once() -> None:
    """Ctrl-C while the bridge does not answer; calls of other threads go on, and the next request can be theirs."""
    script = """
import os, signal, socket, threading, outbox
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background has it ignored
hanging = socket.create_server(("127.0.0.1", 0))
config = outbox.BridgeConfig(call_timeout_s=1e6, close_timeout_s=0.01, max_in_flight=1)
face = outbox.Bridge(f"http://127.0.0.1:{hanging.getsockname()[1]}", "shop", config=config)
def interrupt():
    connection, _ = hanging.accept()
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGINT)
    connections.append(connection)
connections, threads = [], [threading.Thread(target=interrupt) for _ in range(2)]
for thread in threads:
    thread.start()
    try:
        face.publish(outbox.Message("orders"))
    except KeyboardInterrupt:
        print("interrupted")
    thread.join()
    connections.pop().close()
face.close()
hanging.close()
"""
    assert run(script) == "interrupted\ninterrupted\n"


AFTER_MAIN = """
import sys, threading, time
def after_main(work):
    def run():
        while threading.main_thread().is_alive():
            time.sleep(0.01)
        work()
    threading.Thread(target=run).start()
"""


def test_relay_goes_on_after_the_main_thread(tmp_path: Path) -> None:
    """As the documents start it, with nothing behind that: pools of threads take nothing any more then."""
    script = """
import sqlalchemy as sa
from outbox import Message
from outbox.enqueue import enqueue
from outbox.hand_over import MemoryHandOver
from outbox.relay import Relay
from outbox.sources import OwnSource
from outbox.tables import make_lease_table, make_outbox_table
metadata, hand_over, stop = sa.MetaData(), MemoryHandOver(), threading.Event()
table, leases = make_outbox_table(metadata), make_lease_table(metadata)
engine = sa.create_engine(f"sqlite:///{sys.argv[1]}", poolclass=sa.NullPool)
metadata.create_all(engine)
with engine.begin() as conn:
    enqueue(conn, Message("orders"))
def relay():
    note = lambda counts: (print(counts.published), stop.set())
    Relay(engine, hand_over, OwnSource(table), leases).run_forever(stop, note)
after_main(relay)
"""
    assert run(AFTER_MAIN + script, str(tmp_path / "shop.db")) == "1\n"


def test_checks_are_answered_after_the_main_thread(bridge: CannedServer) -> None:
    """By whoever fetches them, also of a listener, and at the endpoint."""
    check = {"transaction_id": PUBLISHED["transaction_id"], "check_number": 1, "nonce": "n",
             "born_time": "2026-01-31T12:00:00.000Z", "idempotency_key": None, "messages": []}  # fmt: skip
    claimed = {"type": "transaction.check", "producer_group": "shop", "checks": [check]}
    bridge.answer("POST", "/v1/producer-groups/shop/checks/claim", 200, claimed)
    path = f"/v1/transactions/{PUBLISHED['transaction_id']}/resolution"
    bridge.answer("POST", path, 200, PUBLISHED)
    bridge.answer("POST", "/v1/resolutions", 200, {"results": [{"status": 200, **PUBLISHED}]})
    script = """
import outbox
class Listener(outbox.TransactionListener):
    def execute_local_transaction(self, half, arg): ...
    def check_local_transaction(self, half):
        return outbox.LocalTransactionState.COMMIT_MESSAGE
producer = outbox.TransactionProducer("shop", Listener(), sys.argv[1].replace("127.0.0.1", "localhost"))
after_main(lambda: print(producer.pull_worker(producer.answer).run_once()))
"""
    assert run(AFTER_MAIN + script, bridge.url) == "PullCounts(claimed=1, answered=1, late=0, failed=0)\n"


def test_daemon_that_fetches_checks_does_not_keep_the_process(bridge: CannedServer) -> None:
    """A daemon thread is meant to end with the process."""
    claimed = {"type": "transaction.check", "producer_group": "shop", "checks": []}
    bridge.answer("POST", "/v1/producer-groups/shop/checks/claim", 200, claimed)
    script = """
import sys, threading, time, outbox
worker = outbox.Bridge(sys.argv[1], "shop").pull_worker(lambda checks, tell: None)
threading.Thread(target=worker.run_forever, args=(threading.Event(),), daemon=True).start()
time.sleep(0.5)
print("ends")
"""
    assert run(script, bridge.url) == "ends\n"
