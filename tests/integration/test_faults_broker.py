"""A broker killed under load."""

from pathlib import Path

from bridge.store.kafka.options import TRANSACTION_TIMEOUT_MS
from tests.support.bridge_process import Bridge, create_topics, read_committed, wait_until
from tests.support.broker import BrokerFactory
from tests.support.cluster_acts import set_default_quota
from tests.support.fault_load import Load

SEED = 4_711


def test_killed_broker_loses_nothing_that_was_acknowledged(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """kill -9 of Kafka under load, and its start: meanwhile 503 or unknown, afterwards the truth (L, P, D, A, T)."""
    broker = broker_factory()
    topics = ["orders", "credits"]
    create_topics(broker.bootstrap, dict.fromkeys(topics, 2))
    bridge = Bridge.create(broker.bootstrap, tmp_path, queues=2)
    with bridge.serve() as process, Load([process.url], topics, seed=SEED) as load:
        load.wait_ended(200)
        broker.kill()
        wait_until(lambda: process.get("/readyz").status_code == 503, name="not ready")
        assert process.get("/livez").status_code == 200
        refused = process.post("/v1/transactions?wait_seconds=1", prepare_of(topics[0]))
        assert refused.status_code in {503, 504}, refused.text
        assert refused.json()["outcome"] in {"unknown", "not_applied"}
        wait_until(lambda: load.ledger.repeats > 0, 30, "a call that noticed")
        broker.start()
        load.wait_ended(200)
        process.wait_ready()
    assert load.broken_promises(read_committed(broker.bootstrap, topics)) == []


def test_broker_that_lets_no_kafka_transaction_last_as_long_as_the_bridges_is_told(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    """Its setting is named, by its name: neither is Kafka away, nor is a right missing."""
    kafka = broker_factory({"transaction.max.timeout.ms": "5000"}).bootstrap
    bridge = Bridge(kafka, tmp_path, "short.", f"sqlite:///{tmp_path / 'bridge.db'}")
    remedy = f"Set transaction.max.timeout.ms on the brokers to {TRANSACTION_TIMEOUT_MS} or more"
    assert remedy in bridge.run_refused("migrate")
    told = " ".join(bridge.run_refused("doctor").split())
    assert remedy in told
    assert "Allow Write and Describe on transactional ids" not in told


def test_broker_that_gives_an_address_nobody_can_reach_is_told(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """As one in a container does: it answers, then names its address, its setting that says so, and no right."""
    kafka = broker_factory({"advertised.listeners": "P://127.0.0.1:9"}).bootstrap
    bridge = Bridge(kafka, tmp_path, "away.", f"sqlite:///{tmp_path / 'bridge.db'}")
    for told in (bridge.run_refused("migrate"), " ".join(bridge.run_refused("doctor").split())):
        assert "127.0.0.1:9 " in told.replace("127.0.0.1:9/1", "127.0.0.1:9 ")
        assert "advertised.listeners" in told
        assert "transactional ids" not in told


def test_quota_of_kafka_is_told(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """A throttled bridge looks like a slow one: its readiness and its log say what holds it up, and it stays ready."""
    kafka = broker_factory().bootstrap
    create_topics(kafka, {"orders": 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:

        def is_told() -> bool:
            process.post("/v1/transactions", prepare_of("orders"))
            (check,) = (one for one in process.get("/readyz?verbose").json()["checks"] if one["name"] == "kafka")
            assert check["ok"] or check["degraded"], check
            return "quota" in check["detail"]

        assert not is_told()
        set_default_quota(kafka, "producer_byte_rate", 500)
        wait_until(is_told, name="the quota in readiness")
        assert "kafka_quota_reached" in process.log.read_text()


def prepare_of(topic: str) -> dict[str, object]:
    return {"producer_group": "other", "messages": [{"topic": topic, "value": "?"}]}
