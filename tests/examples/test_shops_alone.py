"""Shops whose bridge is away, or says what a test wants: no stage is needed."""

import base64
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from bridge.broker.ports import choose_free_port
from checker.call import sign_call
from tests.support.canned_http import CannedServer, canned_server
from tests.support.example_process import ExampleProcess, copy_without_traces, run
from tests.support.source_tree import ROOT

_PLACED, _UNKNOWN = "0206k8e9s5ta7vo3q1m4c8b2h6dg", "0206k8e9s5ta7vo3q1m4c8b2h6d0"
_JSON = {"Content-Type": "application/json"}
_SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
# each process has the number 1, as in a container; with DIES it is killed where it takes the second name of a file away
_PRELOAD = """
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
const number = process.pid;
Object.defineProperty(process, "pid", { value: 1 });
if (process.env.DIES) fs.unlinkSync = () => process.kill(number, "SIGKILL");
syncBuiltinESMExports();
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ExampleProcess]:
    """Not started yet; its bridge is away."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    copy_without_traces("node-orders", tmp_path)
    (tmp_path / "preload.mjs").write_text(_PRELOAD)
    settings = {"BRIDGE_URL": f"http://127.0.0.1:{choose_free_port()}", "OUTBOX_SECRET": _SECRET}
    command = ["node", "--import", str(tmp_path / "preload.mjs"), "shop.mjs", "{port}"]
    process = ExampleProcess(command, tmp_path / "node-orders", settings, tmp_path / "log")
    yield process
    process.kill()


def place(shop: ExampleProcess, body: bytes = b'{"order_id": "42", "cents": 10}') -> int | None:
    """The status of the answer; None if it died."""
    try:
        return httpx2.post(f"{shop.url}/orders", content=body, headers=_JSON, timeout=30).status_code
    except httpx2.TransportError:
        return None


def ask(shop: ExampleProcess, transaction_id: str, path: str = "/outbox-checks") -> str:
    """What it answers to a check."""
    checks = [{"transaction_id": transaction_id, "nonce": "n", "idempotency_key": "42"}]
    body = json.dumps({"type": "transaction.check", "producer_group": "node-orders", "checks": checks})
    signed = sign_call([_SECRET], "msg", time.time_ns() // 1_000_000, body)
    answer = httpx2.post(f"{shop.url}{path}", content=body, headers=dict(signed or {}), timeout=30)
    (resolution,) = answer.raise_for_status().json()["resolutions"]
    return str(resolution["resolution"])


def test_order_while_the_bridge_is_away_is_no_fault_of_the_customer(shop: ExampleProcess) -> None:
    """503, try again: who hears 400 takes the order for one that can never be placed."""
    shop.start().wait_answering("/nothing")
    assert place(shop) == 503
    for odd in (b"no JSON", b"null", b"[]", b'{"order_id": 42}'):
        assert place(shop, odd) == 400


def test_order_is_kept_whose_process_was_killed_before_its_file_had_one_name(shop: ExampleProcess) -> None:
    """The next process writes a bar: not over what was left behind, which is the order under a second name."""
    with canned_server() as bridge:
        bridge.answer("POST", "/v1/transactions", 201, {"transaction_id": _PLACED})
        shop.settings = {**shop.settings, "BRIDGE_URL": bridge.url, "DIES": "1"}
        shop.start().wait_answering("/nothing")
        assert place(shop) is None
        shop.kill()
    shop.settings = {name: value for name, value in shop.settings.items() if name != "DIES"}
    shop.start().wait_answering("/nothing")
    assert ask(shop, _UNKNOWN) == "ROLLBACK"
    assert ask(shop, _PLACED) == "COMMIT"


@pytest.fixture
def bridge() -> Iterator[CannedServer]:
    """Each prepare is of one transaction, as with an idempotency key, and every end of it is taken."""
    with canned_server() as canned:
        canned.answer("POST", "/v1/transactions", 201, {"transaction_id": _PLACED, "state": "PREPARED"})
        for end in ("commit", "rollback"):
            canned.answer("POST", f"/v1/transactions/{_PLACED}/{end}", 200, {"state": "as told"})
        yield canned


@pytest.fixture
def demo_shop(tmp_path: Path, bridge: CannedServer) -> Iterator[ExampleProcess]:
    """That of the demo."""
    copy_without_traces("shop", tmp_path)
    (tmp_path / "secret").write_text(_SECRET)
    places = {"SHOP_DATABASE": str(tmp_path / "shop.db"), "SHOP_SECRET_FILE": str(tmp_path / "secret")}
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", "{port}"]
    process = ExampleProcess(command, tmp_path / "shop", {**places, "SHOP_BRIDGE": bridge.url}, tmp_path / "log")
    process.start().wait_answering("/health")
    yield process
    process.kill()


def ends(bridge: CannedServer) -> list[str]:
    """How transactions were ended, in order."""
    return [asked.path.rpartition("/")[2] for asked in bridge.asked if asked.path.startswith("/v1/transactions/")]


_ORDER = b'{"order_id": "42", "cents": 10}'


def test_order_that_is_placed_again_after_its_shop_died_is_committed(
    demo_shop: ExampleProcess, bridge: CannedServer
) -> None:
    """The repeated prepare names the transaction that the order was written in: a rollback would lose its message."""
    assert place(demo_shop, b'{"order_id": "42", "cents": 10, "die": "after-local-commit"}') is None
    demo_shop.kill()
    demo_shop.start().wait_answering("/health")
    assert place(demo_shop, _ORDER) == 201
    assert ends(bridge) == ["commit"]


def test_order_that_is_being_placed_is_not_placed_beside(demo_shop: ExampleProcess, bridge: CannedServer) -> None:
    """Two calls would have one transaction, and the failure of one would end that of the other."""
    is_prepared, may_go_on = threading.Event(), threading.Event()
    take = bridge.take

    def take_slowly(method: str, path: str) -> tuple[int, bytes]:
        if path == "/v1/transactions" and not is_prepared.is_set():
            is_prepared.set()
            may_go_on.wait(60)
        return take(method, path)

    # the first of two stands still in its prepare
    bridge.take = take_slowly  # type: ignore[method-assign]
    told: list[int | None] = []
    first = threading.Thread(target=lambda: told.append(place(demo_shop, _ORDER)))
    first.start()
    assert is_prepared.wait(60)
    declined = place(demo_shop, b'{"order_id": "42", "cents": 10, "card": "declined"}')
    assert ask(demo_shop, _PLACED, "/check") == "UNKNOWN"
    may_go_on.set()
    first.join()
    assert (declined, told, ends(bridge)) == (409, [201], ["commit"])


def test_order_is_not_written_once_a_check_was_answered_rollback(
    demo_shop: ExampleProcess, bridge: CannedServer
) -> None:
    """The answer may be on its way when the order is placed again: its prepare says PREPARED still."""
    assert ask(demo_shop, _PLACED, "/check") == "ROLLBACK"
    assert place(demo_shop, _ORDER) == 409
    assert ask(demo_shop, _PLACED, "/check") == "ROLLBACK"
    assert "commit" not in ends(bridge)


def test_first_shop_of_the_documents_writes_nothing_after_it_answered_rollback(
    tmp_path: Path, bridge: CannedServer
) -> None:
    """Its order may still be between prepare and commit in another process when the bridge asks."""
    found = re.search(r"<!-- file: shop\.py -->\n```python\n(.*?)```", (ROOT / "docs/start.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "shop.py").write_text(found[1])
    bridge.answer(
        "POST", "/v1/producer-groups/shop/checks/claim", 200, {"checks": [{"transaction_id": _PLACED, "nonce": "n"}]}
    )
    bridge.answer("POST", "/v1/resolutions", 200, {"results": []})

    def shop(*words: str) -> "tuple[int, str]":
        settings = {"OUTBOX_BRIDGE_URL": bridge.url}
        done = run([sys.executable, "shop.py", *words], cwd=tmp_path, settings=settings, is_checked=False)
        return done.returncode, done.stdout

    assert shop("answer") == (0, "ROLLBACK\n")
    assert shop("place", "1")[0] != 0
    assert (shop("answer"), ends(bridge)) == ((0, "ROLLBACK\n"), [])
    with sqlite3.connect(tmp_path / "shop.db") as database:
        assert database.execute("SELECT count(number) FROM orders").fetchone() == (0,)
    database.close()


def run_django(folder: Path, bridge: CannedServer, script: str) -> str:
    """What is printed by a script in the shop's folder, at its empty tables."""
    copy_without_traces("django-orders", folder)
    begin = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "store.settings"
from store import settings
"""
    settings = {"BRIDGE_URL": bridge.url, "CHECK_SECRETS": _SECRET, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", begin + script], cwd=folder / "django-orders", env=os.environ | settings,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_order_of_django_stays_committed_whose_hook_fails(tmp_path: Path, bridge: CannedServer) -> None:
    """What `on_commit` was told runs after the commit: a constraint that it violates takes no message back."""
    script = """
import django
django.setup()
from django.core.management import call_command
from django.db.transaction import on_commit
call_command("migrate", verbosity=0)
from outbox import LocalCommitUnknown
from store.bridging import AtomicSession, bridge
from store.models import Order
def place():
    Order.objects.create(order_id="42", cents=10)
try:
    with AtomicSession() as session, bridge.transaction(session) as transaction:
        place()
        on_commit(lambda: Order.objects.create(order_id="42", cents=11))
        transaction.send("orders.created", key="42")
except LocalCommitUnknown:
    print("unknown,", Order.objects.count(), "order")
"""
    assert run_django(tmp_path, bridge, script) == "unknown, 1 order\n"
    assert ends(bridge) == []


def test_block_of_django_is_in_the_database_that_the_router_names(tmp_path: Path, bridge: CannedServer) -> None:
    """Else orders and records would be committed one by one: a record then says so of an order that is not there."""
    script = """
settings.DATABASES["shop"] = settings.DATABASES["default"] | {"NAME": "shop.db"}
settings.DATABASE_ROUTERS = ["__main__.Router"]
class Router:
    def db_for_write(self, model, **hints): return "shop"
    db_for_read = db_for_write
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0, database="shop")
from outbox import LocalCommitUnknown
from store.bridging import AtomicSession, bridge
from store.models import Order, TransactionRecord
class Dies(AtomicSession):
    def commit(self): raise KeyError
try:
    with Dies() as session, bridge.transaction(session) as transaction:
        Order.objects.create(order_id="42", cents=10)
        transaction.send("orders.created", key="42")
except LocalCommitUnknown:
    print(Order.objects.count(), TransactionRecord.objects.count())
"""
    assert run_django(tmp_path, bridge, script) == "0 0\n"


def test_message_sent_in_a_savepoint_of_django_goes_with_it(tmp_path: Path, bridge: CannedServer) -> None:
    """`atomic` in the block is one: its order is rolled back, and its message would tell of nothing."""
    script = """
import django
django.setup()
from django.core.management import call_command
from django.db import IntegrityError
from django.db.transaction import atomic
call_command("migrate", verbosity=0)
from outbox import Misuse
from store.bridging import AtomicSession, bridge
from store.models import Order
def place(transaction, order_id):
    with atomic():
        with atomic():
            transaction.send("orders.created", key=order_id)
        Order.objects.create(order_id=order_id, cents=10)
def take_over(*order_ids):
    with AtomicSession() as session, bridge.transaction(session) as transaction:
        for order_id in order_ids:
            try:
                place(transaction, order_id)
            except IntegrityError:
                pass
try:
    take_over("1", "2", "2")
except Misuse:
    print(Order.objects.count())
with AtomicSession() as session, bridge.transaction(session) as transaction:
    place(transaction, "1")
    try:
        with atomic():
            Order.objects.create(order_id="1", cents=10)
    except IntegrityError:
        Order.objects.get_or_create(order_id="2", defaults={"cents": 10})
print(transaction.result.is_settled, Order.objects.count())
"""
    view = {"transaction_id": _PLACED, "producer_group": "django-orders", "state": "COMMITTED", "receipts": []}
    bridge.answer("POST", "/v1/resolutions", 200, {"results": [{"status": 200, **view}]})
    assert run_django(tmp_path, bridge, script) == "0\nTrue 2\n"
    assert [asked.path for asked in bridge.asked] == ["/v1/transactions", "/v1/resolutions"]


@pytest.mark.parametrize("end", ["session.rollback()", "session.commit()", "connection.cursor().execute('rollback;')"])
def test_message_of_a_block_of_django_that_was_ended_in_it_is_not_sent(
    tmp_path: Path, bridge: CannedServer, end: str
) -> None:
    """Its record would be committed by itself, and say of rows that are gone that they are there."""
    script = f"""
import django
django.setup()
from django.core.management import call_command
from django.db import connection
call_command("migrate", verbosity=0)
from outbox import Misuse
from store.bridging import AtomicSession, bridge
from store.models import Order, TransactionRecord
try:
    with AtomicSession() as session, bridge.transaction(session) as transaction:
        Order.objects.create(order_id="1", cents=10)
        transaction.send("orders.created", key="1")
        {end}
except Misuse:
    print(TransactionRecord.objects.count())
"""
    view = {"transaction_id": _PLACED, "producer_group": "django-orders", "state": "ROLLED_BACK", "receipts": []}
    bridge.answer("POST", "/v1/resolutions", 200, {"results": [{"status": 200, **view}]})
    assert run_django(tmp_path, bridge, script) == "0\n"
    assert [json.loads(asked.body).get("resolutions", []) for asked in bridge.asked][1][0]["resolution"] == "ROLLBACK"
