"""The pytest plugin in the hands of a user: runs of pytest in processes of their own."""

from pathlib import Path

import pytest

from tests.support.plugin_runs import UserProject

SHOP = """
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from outbox import Bridge
from outbox.asgi import CheckApp
from outbox.check_handler import CheckHandler
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


make_record_table(Base.metadata)


def make_app(bridge_url, secret, engine):
    bridge = Bridge(bridge_url, "shop")

    @asynccontextmanager
    async def lifespan(app):
        with bridge:
            yield

    app = FastAPI(lifespan=lifespan)
    record = TransactionRecord()
    app.mount("/outbox-checks", CheckApp(CheckHandler([secret], record.answers(engine))))

    @app.post("/orders/{number}")
    def place(number: int, fails: bool = False):
        with Session(engine) as session, bridge.transaction(session) as transaction:
            session.add(Order(id=number))
            transaction.send("orders.created", key=str(number), value={"order": number})
            if fails:
                raise RuntimeError("no card")

    return app
"""

TESTS = """
import httpx2
import pytest
import sqlalchemy as sa
from shop import Base, Order, make_app


@pytest.fixture
def engine(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def shop(outbox_bridge, engine):
    outbox_bridge.create_topic("orders.created", partitions=3)
    secret = outbox_bridge.create_group("shop", max_checks=1)
    url = outbox_bridge.serve(make_app(outbox_bridge.url, secret, engine))
    outbox_bridge.set_endpoint("shop", url + "/outbox-checks/")
    with httpx2.Client(base_url=url) as client:
        yield client


def test_order_is_announced(shop, outbox_bridge):
    assert shop.post("/orders/1").status_code == 200
    (message,) = outbox_bridge.published("orders.created")
    assert (message.key, message.json()) == (b"1", {"order": 1})
    assert outbox_bridge.pending() == []


def test_refused_order_is_not_announced(shop, outbox_bridge):
    assert shop.post("/orders/1", params={"fails": True}).status_code == 500
    assert outbox_bridge.published("orders.created") == []
    assert outbox_bridge.pending() == []


def test_back_check_finds_what_a_dead_producer_committed(shop, outbox_bridge):
    with outbox_bridge.kill_before_commit() as left:
        shop.post("/orders/1")
    assert outbox_bridge.published("orders.created") == []
    assert [view.transaction_id for view in outbox_bridge.pending("shop")] == left
    (view,) = outbox_bridge.run_checks()
    assert (view.state, view.resolved_by) == ("COMMITTED", "check")
    assert len(outbox_bridge.published("orders.created")) == 1


def test_unanswered_checks_are_told(shop, outbox_bridge):
    with outbox_bridge.kill_before_commit():
        shop.post("/orders/1")
    outbox_bridge.set_endpoint("shop", "http://127.0.0.1:1/nobody")
    with pytest.raises(AssertionError, match="refused"):
        outbox_bridge.run_checks()


def test_group_that_nobody_answers_for_is_told(outbox_bridge):
    from outbox import Bridge, Message

    outbox_bridge.create_topic("orders.created")
    with Bridge(outbox_bridge.url, "lone") as bridge:
        bridge.prepare(Message("orders.created"))
    with pytest.raises(AssertionError, match="answer_checks"):
        outbox_bridge.run_checks()


def test_used_up_checks_park(outbox_bridge):
    from outbox import Bridge, Message, Resolution

    async def nobody_knows(checks, tell):
        for check in checks:
            tell(check, Resolution.UNKNOWN)

    outbox_bridge.create_topic("orders.created")
    outbox_bridge.answer_checks("shop", nobody_knows)
    with Bridge(outbox_bridge.url, "shop") as bridge:
        prepared = bridge.prepare(Message("orders.created", value="x"), max_checks=1)
    outbox_bridge.run_checks()
    outbox_bridge.let_time_pass(60)
    assert [view.transaction_id for view in outbox_bridge.parked()] == [prepared.transaction_id]


def test_settings_of_a_group_stay_when_its_checks_are_answered(outbox_bridge):
    from outbox import Bridge, Message, Resolution
    from outbox.check_handler import from_callable

    outbox_bridge.create_topic("orders.created")
    outbox_bridge.create_group("shop", max_checks=2)
    outbox_bridge.answer_checks("shop", from_callable(lambda checks: [Resolution.UNKNOWN for _ in checks]))
    with Bridge(outbox_bridge.url, "shop") as bridge:
        bridge.prepare(Message("orders.created", value="x"))
    outbox_bridge.let_time_pass(100)
    assert [view.check_times for view in outbox_bridge.parked()] == [2]


def test_what_is_due_is_answered_when_time_has_passed(outbox_bridge):
    import time
    from outbox import Bridge, Message, Resolution
    from outbox.check_handler import from_callable

    def answer(checks):
        time.sleep(0.2)
        return [Resolution.COMMIT for _ in checks]

    outbox_bridge.create_topic("orders.created")
    outbox_bridge.answer_checks("shop", from_callable(answer))
    with Bridge(outbox_bridge.url, "shop") as bridge:
        bridge.prepare(Message("orders.created", value="x"))
    outbox_bridge.let_time_pass(7)
    assert len(outbox_bridge.published("orders.created")) == 1


def test_block_without_an_end_is_a_mistake_of_the_test(outbox_bridge):
    with pytest.raises(AssertionError, match="no producer"):
        with outbox_bridge.kill_before_commit():
            pass


def test_missing_message_is_told(outbox_bridge):
    outbox_bridge.create_topic("orders.created")
    with pytest.raises(AssertionError, match="0 of 1 messages in orders.created"):
        outbox_bridge.published("orders.created", at_least=1, wait_seconds=0.05)
    with pytest.raises(AssertionError, match="create_topic"):
        outbox_bridge.published("orders.creatde")


def test_missing_message_is_told_where_time_stands_still(outbox_bridge, monkeypatch):
    import time

    outbox_bridge.create_topic("orders.created")
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # as freezegun does
    with pytest.raises(AssertionError, match="0 of 1 messages in orders.created"):
        outbox_bridge.published("orders.created", at_least=1, wait_seconds=0.05)


def test_nothing_is_printed(outbox_bridge, capfd):
    outbox_bridge.create_topic("orders.created")
    assert outbox_bridge.published("orders.created") == []
    assert capfd.readouterr() == ("", "")
"""


@pytest.fixture
def project(tmp_path: Path) -> UserProject:
    return UserProject(tmp_path)


def test_fastapi_service_is_tested_against_a_whole_bridge(project: UserProject) -> None:
    """Commits, rollbacks and dead producers of an application with SQLAlchemy; what went wrong is told in words."""
    project.write("shop.py", SHOP)
    project.write("test_shop.py", TESTS)
    run = project.run()
    assert "12 passed" in run.stdout, run.stdout[-4000:] + run.stderr[-2000:]


def test_other_runs_of_pytest_do_not_notice(project: UserProject) -> None:
    """Nothing of ours is imported before a fixture is used, whatever else a project tests."""
    project.write(
        "test_else.py",
        """
import sys

def test_nothing_was_imported():
    ours = {name.partition(".")[0] for name in sys.modules} & {"api", "bridge", "checker", "outbox", "fastapi"}
    loaded = [name for name in sys.modules if name.startswith("outbox")]
    assert (ours, sorted(loaded)) == ({"outbox"}, ["outbox", "outbox.pytest_plugin"])
""",
    )
    run = project.run()
    assert run.returncode == 0, run.stdout[-2000:]


def test_package_imported_before_pytest_is_no_warning(project: UserProject) -> None:
    """As by a program that runs its own tests; with warnings as errors it would not even begin."""
    project.write("test_else.py", "import outbox\n\ndef test_it():\n    assert outbox.Bridge\n")
    run = project.run(before="import outbox")
    assert (run.returncode, "warning" in run.stdout + run.stderr) == (0, False), run.stdout + run.stderr


def test_plugin_can_be_switched_off(project: UserProject) -> None:
    """A project that has a fixture of this name elsewhere, or wants none."""
    project.write("test_else.py", "def test_it(outbox_bridge):\n    pass\n")
    run = project.run("-p", "no:outbox_bridge")
    assert "fixture 'outbox_bridge' not found" in run.stdout


def test_missing_server_parts_are_named_in_a_line(project: UserProject) -> None:
    """The producer's side is installed alone: what to install, and no traceback."""
    project.hide("fastapi")
    project.write("test_else.py", "def test_it(outbox_bridge):\n    pass\n")
    run = project.run()
    assert "these fixtures run a bridge: pip install 'outbox-bridge[server]'" in run.stdout
    assert "Traceback" not in run.stdout
    assert "1 error" in run.stdout


BROKEN = """
import httpx2
from outbox import Bridge, Message


def look_up(checks, tell):
    raise LookupError("the table of orders is gone")


async def app(scope, receive, send):
    raise LookupError("there is no such page")


def test_check_that_fails(outbox_bridge):
    outbox_bridge.create_topic("orders")
    outbox_bridge.answer_checks("shop", look_up)
    with Bridge(outbox_bridge.url, "shop") as bridge:
        bridge.prepare(Message("orders", value="v"))
    outbox_bridge.run_checks()


def test_request_that_fails(outbox_bridge):
    assert httpx2.get(outbox_bridge.serve(app)).status_code == 200
"""


def test_exception_of_the_application_is_shown_with_its_trace(project: UserProject) -> None:
    """A test that fails of it tells why; in a service only its class is logged, for drivers quote values."""
    project.write("test_broken.py", BROKEN)
    shown = project.run("test_broken.py")
    assert "2 failed" in shown.stdout, shown.stdout + shown.stderr
    told = ("in look_up", "LookupError: the table of orders is gone", "LookupError: there is no such page")
    for line in (*told, ": status 503, from http://127.0.0.1:"):
        assert line in shown.stdout
