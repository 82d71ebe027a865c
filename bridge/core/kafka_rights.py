"""The least that each role must be allowed in Kafka."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bridge.core.topics import InternalTopics

RIGHTS_REMEDY = "`outbox-bridge acl` prints what each role needs; give it that"


class Resource(StrEnum):
    """What Kafka guards."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class KafkaOperation(StrEnum):
    """What Kafka lets somebody do with it. The right to read, write or delete is one to describe too."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True, order=True)
class KafkaRight:
    """One row: an operation on a resource, or on all whose names begin so."""

    resource: Resource
    name: str
    operation: KafkaOperation
    is_prefix: bool = False

    def __str__(self) -> str:
        return f"Kafka gives no right to {self.operation} {self.resource} {self.name}{'*' if self.is_prefix else ''}"


class Role(StrEnum):
    """Whoever has a principal of its own."""

    API = "api"
    SETTLER = "settler"
    PROJECTOR = "projector"
    MIGRATE = "migrate"
    REPORT = "report"


# Read and Write are rights to Describe too, so that has a row only where neither is given.
_R, _W, _C, _D, _DC = KafkaOperation


class _Needs(NamedTuple):
    """Of one role: operations on the internal topics, on the real ones, on group and transactional ids."""

    half: tuple[KafkaOperation, ...]
    op: tuple[KafkaOperation, ...]
    parked: tuple[KafkaOperation, ...]
    audit: tuple[KafkaOperation, ...] = ()
    real: tuple[KafkaOperation, ...] = ()
    group: tuple[KafkaOperation, ...] = ()
    transactions: tuple[KafkaOperation, ...] = ()


_NEEDS = {
    Role.API: _Needs(half=(_R, _W, _DC), op=(_R, _DC), parked=(_R, _DC), audit=(_R, _W, _DC), real=(_D, _DC)),
    Role.SETTLER: _Needs(
        half=(_R, _W, _DC),
        op=(_R, _W, _DC),
        parked=(_R, _W, _DC),
        audit=(_D, _DC),
        real=(_W, _DC),
        group=(_R,),
        transactions=(_W,),
    ),
    Role.PROJECTOR: _Needs(half=(_R, _DC), op=(_R, _DC), parked=(_D, _DC), audit=(_D, _DC)),
    Role.MIGRATE: _Needs(
        half=(_C, _R, _DC),
        op=(_C, _R, _W, _DC),
        parked=(_C, _D, _DC),
        audit=(_C, _D, _DC),
        group=(_D,),
        transactions=(_W,),
    ),
    Role.REPORT: _Needs(half=(_R, _DC), op=(_R, _DC), parked=(_R, _DC), real=(_R, _DC)),
}


def least_rights(role: Role, topics: InternalTopics, real: Iterable[str]) -> list[KafkaRight]:
    """All that a role needs and nothing else. `real`: topics that messages go to; one that ends in `*` stands for all
    that begin so."""
    needs = _NEEDS[role]
    rows = [
        (Resource.TOPIC, topics.half, needs.half),
        (Resource.TOPIC, topics.op, needs.op),
        (Resource.TOPIC, topics.parked, needs.parked),
        (Resource.TOPIC, topics.audit, needs.audit),
        *[(Resource.TOPIC, name, needs.real) for name in real],
        (Resource.GROUP, topics.group, needs.group),
        (Resource.TRANSACTIONAL_ID, f"{topics.transactional_prefix}-*", needs.transactions),
    ]
    return [
        KafkaRight(resource, name.removesuffix("*") or "*", operation, name.endswith("*") and name != "*")
        for resource, name, operations in rows
        for operation in operations
    ]
