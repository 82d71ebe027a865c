"""`outbox_bridge_kafka`: the same tests of a user on a real Kafka."""

from pathlib import Path

from tests.support.plugin_runs import UserProject

TESTS = """
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from outbox import Bridge, Message
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord


@pytest.fixture
def engine(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata = sa.MetaData()
    make_record_table(metadata)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def place(bridge, engine, key):
    with Session(engine) as session, bridge.transaction(session) as transaction:
        transaction.send("orders.created", key=key)


def test_dead_producers_message_is_rescued(outbox_bridge_kafka, engine):
    outbox_bridge_kafka.create_topic("orders.created", partitions=2)
    outbox_bridge_kafka.answer_checks("shop", TransactionRecord().answers(engine))
    with Bridge(outbox_bridge_kafka.url, "shop") as bridge:
        place(bridge, engine, "1")
        with outbox_bridge_kafka.kill_before_commit():
            place(bridge, engine, "2")
        assert [message.key for message in outbox_bridge_kafka.published("orders.created")] == [b"1"]
        (view,) = outbox_bridge_kafka.run_checks()
        assert view.resolved_by == "check"
        found = {message.key for message in outbox_bridge_kafka.published("orders.created", at_least=2)}
        assert found == {b"1", b"2"}
        bridge.prepare(Message("orders.created"), check_immunity_seconds=3600)
        assert len(outbox_bridge_kafka.pending()) == 1


def test_another_tests_messages_are_not_seen(outbox_bridge_kafka, engine):
    outbox_bridge_kafka.create_topic("orders.created", partitions=2)
    assert outbox_bridge_kafka.published("orders.created") == []
    assert outbox_bridge_kafka.pending() == []
    with Bridge(outbox_bridge_kafka.url, "shop") as bridge:
        place(bridge, engine, "3")
    (message,) = outbox_bridge_kafka.published("orders.created")
    assert message.key == b"3"
"""


def test_service_is_tested_on_a_real_kafka(tmp_path: Path) -> None:
    """One broker for the run; commits, a dead producer, and what is left of a test for the next one: nothing."""
    project = UserProject(tmp_path)
    project.write("test_shop.py", TESTS)
    run = project.run()
    assert "2 passed" in run.stdout, run.stdout[-4000:] + run.stderr[-2000:]
