"""Wounds: what a real bridge has done rightly, spoilt afterwards by raw writes; each with what must be found of it."""

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bridge.core.message import StoredMessage
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from tests.chaos.dump import read_topic
from tests.support.history.raw_records import split_id
from tests.traffic.ink import Ink, Json, queue_of

_FAR = 1_000_000_000


@dataclass(slots=True)
class Victim:
    """A transaction as it lies in Kafka. `op`: its last op message; `records`: topic, partition, record."""

    transaction_id: str
    op: Json
    records: list[tuple[str, int, StoredMessage]] = field(default_factory=list)


def wound(ink: Ink, rng: random.Random, rounds: int, spared: Collection[str] = ()) -> None:
    """Every wound so often, each on another transaction. Raises AssertionError where there are not enough."""
    states = [victim for victim in _read_states(ink) if victim.transaction_id not in spared]
    chosen: dict[str, list[Victim]] = {}
    for state, wounds in _WOUNDS.items():
        candidates = [victim for victim in states if _is_of(victim, state)]
        count = rounds * len(wounds)
        assert len(candidates) >= count, f"{len(candidates)} transactions are {state}, {count} wanted"
        chosen[state] = rng.sample(candidates, count)
    _read_records(ink, {victim.transaction_id: victim for victims in chosen.values() for victim in victims})
    models = chosen["COMMITTED"]
    for state, victims in chosen.items():
        for number, victim in enumerate(victims):
            act = _WOUNDS[state][number % len(_WOUNDS[state])]
            ink.must_find(victim.transaction_id, *act(ink, victim, rng.choice(models)))
    for number in range(rounds):
        _write_orphans(ink, rng.choice(models), number)


def remove_oldest(ink: Ink, topic: str, before: int) -> set[str]:
    """What retention does to the records of a topic's only partition before an offset; the ids that it leaves bare."""
    removed = [record for _, record in read_topic(ink.bridge.kafka, topic) if record.queue_offset < before]
    ids = {transaction_id for record in removed if (transaction_id := split_id(record.headers)[1]) is not None}
    place = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": ink.bridge.kafka})  # without a name it ends before it is answered
    admin.delete_records([place])[place].result(30)
    for transaction_id in ids:
        ink.must_find(transaction_id, "UNPROVABLE")
    return ids


def _read_states(ink: Ink) -> list[Victim]:
    last: dict[str, bytes] = {}
    for _, message in read_topic(ink.bridge.kafka, ink.bridge.op_topic):
        if message.key not in {None, b"~", b"?"} and message.value is not None:
            last[(message.key or b"").decode()] = message.value
    return [Victim(transaction_id, json.loads(value)) for transaction_id, value in last.items()]


def _is_of(victim: Victim, state: str) -> bool:
    return bool(victim.op["state"] == state and not victim.op.get("blocked"))


def _read_records(ink: Ink, victims: Mapping[str, Victim]) -> None:
    for topic in ink.topics:
        for partition, record in read_topic(ink.bridge.kafka, topic):
            victim = victims.get(split_id(record.headers)[1] or "")
            if victim is not None:
                victim.records.append((topic, partition, record))


# --- the wounds, each with the kinds that it means


def _double(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    ink.write_copy(*victim.records[-1])
    return ["DUPLICATE"]


def _double_elsewhere(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    topic, partition, record = victim.records[0]
    ink.write_copy(topic, (partition + 1) % ink.topics[topic], record)
    return ["DUPLICATE"]


def _add_another(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    topic, partition, record = victim.records[0]
    ink.write_copy(topic, partition, record, value=b"%b " % (record.value or b""))
    return ["CORRUPT"]


def _turn(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    members = {name: value for name, value in victim.op.items() if name != "receipts"}
    ink.write_op(victim.transaction_id, {**members, "state": "ROLLED_BACK"})
    return ["CONTRADICTION"]


def _reopen(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    ink.write_op(victim.transaction_id, {**victim.op, "state": "PREPARED"})
    return ["CONTRADICTION"]


def _tell_elsewhere(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    receipts = [[topic, partition, _FAR] for topic, partition, _ in victim.op["receipts"]]
    ink.write_op(victim.transaction_id, {**victim.op, "receipts": receipts})
    return ["CONTRADICTION", "WRONG_RECEIPT"]


def _show(ink: Ink, victim: Victim, model: Victim) -> Iterable[str]:
    ink.write_copy(*model.records[0], transaction_id=victim.transaction_id)
    return ["PHANTOM"]


def _commit_later(ink: Ink, victim: Victim, model: Victim) -> Iterable[str]:
    told = {"state": "COMMITTED", "receipts": model.op["receipts"]}
    ink.write_op(victim.transaction_id, {**victim.op, **told})
    return ["CONTRADICTION"]


def _park_elsewhere(ink: Ink, victim: Victim, _: Victim) -> Iterable[str]:
    parked = victim.op["parked"]  # what lies behind the topic's end might come yet
    ink.write_op(victim.transaction_id, {**victim.op, "parked": parked - 1 if parked else 1})
    return ["BAD_PARK"]


def _write_orphans(ink: Ink, model: Victim, number: int) -> None:
    """A record, an op message, and an end of transactions that never were."""
    born_ms = model.op["appended_ms"]
    queue = queue_of(model.transaction_id)  # the model's offsets are this queue's: another's may not reach so far yet
    shown, told, ended = (make_transaction_id(queue, make_uuid7_bits(born_ms, 3 * number + i)) for i in range(3))
    ink.write_copy(*model.records[0], transaction_id=shown)
    ink.write_op(told, model.op)
    end = encode_end(EndRecord(ended, Resolution.COMMIT, Source.PRODUCER, born_ms), "", 0)
    ink.write(ink.bridge.half_topic, queue_of(ended), end.key, end.value, list(end.headers))
    for transaction_id in (shown, told, ended):
        ink.must_find(transaction_id, "ORPHAN")


_Wound = Callable[[Ink, Victim, Victim], Iterable[str]]

_WOUNDS: dict[str, tuple[_Wound, ...]] = {
    "COMMITTED": (_double, _double_elsewhere, _add_another, _turn, _reopen, _tell_elsewhere),
    "ROLLED_BACK": (_show, _commit_later),
    "PARKED": (_show, _park_elsewhere),
}
