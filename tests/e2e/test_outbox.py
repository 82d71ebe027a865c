"""Transaction records, check handler and relay with a real bridge on a real Kafka, over sockets."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from outbox.client.errors import LocalTransactionBarred
from outbox.hand_over import HttpHandOver, OutboxRow, PublishStatus
from outbox.relay import RelayConfig
from outbox.tables import make_record_table
from outbox.transaction_record import TransactionRecord
from tests.support.bridge_process import read_committed
from tests.support.check_app import serving_checks
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.running_service import RunningService
from tests.support.user_database import UserDatabase


def sqlite_database(folder: Path) -> UserDatabase:
    return UserDatabase("sqlite", f"sqlite:///{folder / 'shop.db'}", f"sqlite+aiosqlite:///{folder / 'shop.db'}")


def test_bridge_learns_the_truth_from_the_record(service: RunningService, tmp_path: Path) -> None:
    """No end ever comes. Committed locally: published. Lost: rolled back, and its late commit is barred."""
    record = TransactionRecord(make_record_table(sa.MetaData()))
    engine = sqlite_database(tmp_path).engine()
    record.table.metadata.create_all(engine)
    group, secret = service.new_group("recorded"), list[str]()
    with serving_checks(secret, record.answers(engine)) as url:
        made = service.put_known_group(group, [url], transaction_timeout_seconds=1, interval_seconds=1)
        secret.append(str(made))
        kept, lost = [service.prepare(group, service.message(key="k", value=name)) for name in ("kept", "lost")]
        with orm.Session(engine) as session:
            record.write(session, kept, group)
            session.commit()
        service.wait_state(kept, "COMMITTED")
        service.wait_state(lost, "ROLLED_BACK")
    with orm.Session(engine) as session, pytest.raises(LocalTransactionBarred):
        record.write(session, lost, group)
    assert [entry.value for entry in service.read([kept, lost])] == [b"kept"]
    engine.dispose()


def test_relay_publishes_through_the_bridge(service: RunningService, tmp_path: Path) -> None:
    """Bytes, headers and order arrive; what the bridge refuses is parked with its words; a repeat doubles nothing."""
    world = OutboxWorld(sqlite_database(tmp_path))
    topic, group = service.topics.line, service.new_group("relayed")
    service.put_known_group(group)
    world.enqueue(*[Sent(topic, b"\xffkey", b"%d" % n, [("h", b"\x00"), ("h", None)]) for n in range(5)])
    (bad,) = world.enqueue(Sent("no.such.topic", b"other"))
    hand_over = HttpHandOver(service.api.url, group)
    relay = world.relay(hand_over, RelayConfig(min_delay_ms=1))
    while world.count()[0] > 1:
        relay.run_once()
    assert [(row_id, reason[:17]) for row_id, reason in relay.read_parked()] == [(bad, "422 unknown-topic")]
    row = OutboxRow("1", "1", "the same key", topic, b"\xffkey", b"5")
    for _ in range(2):
        assert [handed.fate for handed in hand_over.publish([row])] == [PublishStatus.PUBLISHED]
    hand_over.close()
    records = [record for record in read_committed(service.bridge.kafka, [topic]) if record.key == b"\xffkey"]
    assert [record.value for record in records] == [b"%d" % n for n in range(6)]
    assert [pair for pair in records[0].headers if pair[0] == "h"] == [("h", b"\x00"), ("h", None)]
