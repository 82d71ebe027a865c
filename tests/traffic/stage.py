"""The self-test's tales among a real bridge's transactions, in the same topics."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from spark.selftest.run import Injector
from spark.selftest.seeded import BANK, CREDITS, EXPIRED, ORDERS, Scenario, SeededTopics, make_tales
from tests.support.bridge_process import create_topics
from tests.traffic.ink import Ink

_TIMEOUT_S = 30.0
_HASTY = "decided now"  # right for a minute only, and there are several reports


@dataclass(frozen=True, kw_only=True)
class SharedStage(SeededTopics):
    """`real_prefix`: of the real topics; `parts`: their partitions."""

    real_prefix: str
    parts: Mapping[str, int]

    def real(self, topic: str) -> str:
        """The bridge's own."""
        return self.real_prefix + topic

    @property
    def topics(self) -> dict[str, int]:
        """Those of the bridge, and one that loses everything."""
        internal = self.internal
        queues = {internal.half: internal.queues, internal.op: internal.queues, internal.parked: 1}
        return {**queues, **self.parts, self.real(EXPIRED): 1}


def plant_tales(ink: Ink, real_prefix: str, ordinary: int, rounds: int) -> None:
    """Only for a bridge without settlers: the internal topics take the times they are told from now on."""
    stage = SharedStage(prefix=ink.bridge.prefix, real_prefix=real_prefix, parts=ink.topics)
    assert {stage.real(ORDERS), stage.real(CREDITS)} <= ink.topics.keys()
    create_topics(ink.bridge.kafka, {stage.real(EXPIRED): 1}, {"retention.ms": "-1"})
    resources = [_timed_by_writers(name) for name in (stage.internal.half, stage.internal.op, stage.internal.parked)]
    admin = AdminClient({"bootstrap.servers": ink.bridge.kafka})
    for answer in admin.incremental_alter_configs(resources).values():
        answer.result(_TIMEOUT_S)
    injector = Injector({"bootstrap.servers": ink.bridge.kafka}, stage, time.time_ns() // 1_000_000)
    ink.truth |= set(injector.plant(_lasting(ordinary, rounds)))


def _lasting(ordinary: int, rounds: int) -> Iterator[Scenario]:
    """Those of the bank are left out: it has a table, which no bridge writes."""
    return (tale for tale in make_tales(ordinary, rounds) if tale.name != _HASTY and tale.group != BANK)


def _timed_by_writers(topic: str) -> ConfigResource:
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
