"""Topics that the bridge may not write to for a while, on a Kafka with an authorizer."""

from pathlib import Path

from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.broker import BrokerFactory
from tests.support.cluster_acts import AUTHORIZED, allow_writes, deny_writes

REAL, OTHER = "denied.orders", "denied.credits"


def prepare(process: BridgeProcess, topic: str, value: str) -> tuple[int, dict[str, str]]:
    body = {"producer_group": "shop", "messages": [{"topic": topic, "key": value, "value": value}]}
    made = process.post("/v1/transactions", body)
    return made.status_code, made.json()


def prepared(process: BridgeProcess, topic: str, value: str) -> str:
    status, answer = prepare(process, topic, value)
    assert status == 201, answer
    return answer["transaction_id"]


def commit(process: BridgeProcess, transaction_id: str) -> tuple[int, dict[str, object]]:
    answer = process.post(f"/v1/transactions/{transaction_id}/commit")
    return answer.status_code, answer.json()


def is_published(process: BridgeProcess, transaction_id: str) -> bool:
    status, answer = commit(process, transaction_id)
    return status == 200 and bool(answer["receipts"])


def test_denied_topics_lose_and_double_nothing(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    """A real topic blocks its own commits, the journal refuses as not applied, the op topic leaves ends unknown;
    allowed again, everybody hears the truth (L, P, D, A, 58, 59)."""
    kafka = broker_factory(AUTHORIZED).bootstrap
    create_topics(kafka, {REAL: 1, OTHER: 1})
    bridge = Bridge.create(kafka, tmp_path, queues=1)
    with bridge.serve() as process:
        held = {name: prepared(process, REAL, name) for name in ("real", "journal", "op")}

        deny_writes(kafka, REAL)
        status, answer = commit(process, held["real"])
        assert (status, answer["state"], answer["blocked"]) == (202, "COMMITTED", True), answer
        assert is_published(process, prepared(process, OTHER, "bystander"))
        wait_until(lambda: prepare(process, REAL, "new")[0] == 403, name="a prepare is forbidden")
        allow_writes(kafka, REAL)
        wait_until(lambda: is_published(process, held["real"]), 90, "the blocked one is published")

        deny_writes(kafka, bridge.half_topic)
        status, answer = prepare(process, OTHER, "refused")
        assert (status, answer["outcome"]) == (503, "not_applied"), answer
        status, answer = commit(process, held["journal"])
        assert (status, answer["outcome"]) == (503, "not_applied"), answer
        allow_writes(kafka, bridge.half_topic)
        wait_until(lambda: is_published(process, held["journal"]), name="published when the journal takes it")

        deny_writes(kafka, bridge.op_topic)
        late = prepared(process, OTHER, "late")
        status, answer = commit(process, held["op"])
        assert (status, answer["outcome"]) in {(504, "unknown"), (503, "unknown")}, answer
        allow_writes(kafka, bridge.op_topic)
        wait_until(lambda: is_published(process, held["op"]), 90, "published when the op topic takes it")
        assert is_published(process, late)
    seen = sorted((r.value or b"").decode() for r in read_committed(kafka, [REAL, OTHER]))
    assert seen == sorted(["real", "journal", "op", "bystander", "late"])
