"""Plants anomalies and look-alikes in topics of its own, runs the job on them, and compares: all, and nothing else.

Everything is written in the bridge's formats through real Kafka transactions, with aborted ones between them. The
topics take the times they are told, so that a transaction can be a day old.
"""

import argparse
import json
import secrets
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Message as Delivered
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bridge.core.message import Message, Receipt, StoredMessage
from bridge.core.op_message import POSITION_KEY, OpMessage, Position, encode_op, encode_position
from bridge.core.queue_choice import choose_real_queue
from bridge.core.record import Act, ActRecord, EndRecord, HalfMessage, Resolution, Source
from bridge.core.record_codec import encode_act, encode_end, encode_half, encode_parked, encode_published
from bridge.core.topics import InternalTopics, with_prefix
from bridge.core.transaction import Transaction, TransactionState
from bridge.core.transaction_id import make_transaction_id, make_uuid7_bits
from spark.anomalies import BANK, CREDITS, EXPIRED, ORDERS, SHOP, Step, Tale, anomalies, look_alikes, ordinary
from spark.columns import OpState
from spark.errors import BadUsage, Indeterminate
from spark.json_file import read_json
from spark.options import Options, parse_groups
from spark.reconcile import Outcome, Tell, reconcile, run_command
from spark.report import FINDINGS
from spark.session import start_session
from spark.table_list import RECORD_TABLE, Database, parse_tables

_REAL = {ORDERS: 3, CREDITS: 1, EXPIRED: 1}
_QUEUES = 2
_BATCH = 2_000
_TIMEOUT_S = 30.0
_JOURNAL = frozenset({"half", "end", "act"})
_STATES = {
    OpState.PREPARED: TransactionState.PREPARED,
    OpState.PARKED: TransactionState.PARKED,
    OpState.COMMITTED: TransactionState.COMMITTED,
    OpState.ROLLED_BACK: TransactionState.ROLLED_BACK,
    OpState.BLOCKED: TransactionState.COMMITTED,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """Topics of one self-test; the real ones have the prefix too. `has_id_header`: records name their transactions."""

    prefix: str
    has_id_header: bool = True

    @property
    def internal(self) -> InternalTopics:
        """Journal, op and parked topic."""
        return with_prefix(self.prefix, _QUEUES)

    def real(self, topic: str) -> str:
        """The name of a real topic."""
        return self.prefix + topic

    @property
    def topics(self) -> dict[str, int]:
        """Every topic with its partitions."""
        internal = self.internal
        real = {self.real(topic): count for topic, count in _REAL.items()}
        return {internal.half: _QUEUES, internal.op: _QUEUES, internal.parked: 1, **real}


@dataclass(slots=True)
class Planted:
    """A tale with the id it got. `places`: where its journal records lie, `shown`: its records that are told."""

    tale: Tale
    tx: str
    born_ms: int
    places: list[int] = field(default_factory=list)
    shown: list[Receipt] = field(default_factory=list)
    parked: int | None = None

    @property
    def queue(self) -> int:
        """Its journal queue."""
        return int(self.tx[:2], 32)


def make_tales(transactions: int, rounds: int) -> Iterator[Tale]:
    """So many ordinary ones, and between them so many rounds of everything else."""
    every = max(1, transactions // max(1, rounds))
    for number in range(transactions):
        yield ordinary(number)
        if number % every == 0 and number // every < rounds:
            yield from look_alikes(f"{number}")
            yield from anomalies(f"{number}")


class Injector:
    """Writes tales to a stage."""

    def __init__(self, kafka: Mapping[str, Any], stage: Stage, now_ms: int) -> None:
        self._kafka = dict(kafka)
        self._admin = AdminClient(self._kafka)
        self._stage = stage
        self._now_ms = now_ms
        self._number = 0
        self.rows: list[tuple[str, str, str, int]] = []  # of transaction records: id, group, state, time

    def create_topics(self) -> None:
        """Empty topics whose records keep the times they are given."""
        config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        made = self._admin.create_topics(
            [NewTopic(name, parts, 1, config=config) for name, parts in self._stage.topics.items()]
        )
        for answer in made.values():
            answer.result(_TIMEOUT_S)

    def delete_topics(self) -> None:
        """Leaves nothing behind."""
        for answer in self._admin.delete_topics(list(self._stage.topics)).values():
            answer.result(_TIMEOUT_S)

    def plant(self, tales: Iterable[Tale]) -> list[tuple[str, str]]:
        """Writes them all; what must be found, as sorted pairs of id and kind."""
        truth: list[tuple[str, str]] = []
        late: list[Planted] = []
        writer = self._make_writer()
        journal = Producer({**self._kafka, "enable.idempotence": True, "linger.ms": 20})
        remaining = iter(tales)
        while batch := [self._name(tale) for tale in islice(remaining, _BATCH)]:
            truth += [(planted.tx, kind.value) for planted in batch for kind in planted.tale.kinds]
            self.rows += [(p.tx, p.tale.group, p.tale.row, p.born_ms) for p in batch if p.tale.row is not None]
            self._write_journal(journal, batch)
            self._settle(writer, [planted for planted in batch if not planted.tale.is_late], is_late=False)
            late += [p for p in batch if p.tale.is_late or any(step.is_late for step in p.tale.steps)]
        self._settle(writer, late, is_late=True)
        self._write_noise(journal)
        self._expire()
        return sorted(truth)

    def _make_writer(self) -> Producer:
        options = {"transactional.id": f"{self._stage.prefix}selftest", "linger.ms": 20}
        writer = Producer({**self._kafka, **options})
        writer.init_transactions(_TIMEOUT_S)
        return writer

    def _name(self, tale: Tale) -> Planted:
        self._number += 1
        born_ms = self._now_ms - tale.age_ms
        queue = 0 if tale.messages and tale.messages[0].key else self._number % _QUEUES
        return Planted(tale, make_transaction_id(queue, make_uuid7_bits(born_ms, self._number)), born_ms)

    def _write_journal(self, journal: Producer, batch: Sequence[Planted]) -> None:
        for planted in batch:
            steps = [step for step in planted.tale.steps if step.name in _JOURNAL]
            planted.places = [-1] * len(steps)
            for index, step in enumerate(steps):
                _produce(journal, self._journal_record(planted, step), _note(planted.places, index))
        journal.flush(_TIMEOUT_S)

    def _journal_record(self, planted: Planted, step: Step) -> Message:
        topic, given = self._stage.internal.half, step.options
        stored_ms = planted.born_ms + (0 if step.name == "half" else given.get("after_ms", 1_000))
        if step.name == "half":
            record = encode_half(_half_of(planted, given, self._stage), self._named(planted), topic, planted.queue)
        elif step.name == "end":
            is_check = given.get("src") == "C"
            source = Source.CHECK if is_check else Source.PRODUCER
            end = EndRecord(
                planted.tx, Resolution(given["code"]), source, stored_ms, given.get("grp"),
                check_number=given.get("num", 0), endpoint="e" if is_check else None, status=200, latency_ms=20,
            )  # fmt: skip
            record = encode_end(end, topic, planted.queue)
        else:
            record = encode_act(ActRecord(planted.tx, Act.RESUME, "me", "why", stored_ms), topic, planted.queue)
        return _at(record, stored_ms)

    def _named(self, planted: Planted) -> list[Message]:
        """The prepared messages with the stage's names of topics."""
        return [_to(message, self._stage.real(message.topic)) for message in planted.tale.messages]

    def _settle(self, writer: Producer, batch: Sequence[Planted], *, is_late: bool) -> None:
        """One Kafka transaction, after one that is aborted."""
        self._abort(writer, batch[:1])
        writer.begin_transaction()
        for planted in batch:
            for step in _due(planted, is_late=is_late):
                self._publish(writer, planted, step)
        writer.flush(_TIMEOUT_S)
        for planted in batch:
            for step in _due(planted, is_late=is_late):
                if step.name == "op":
                    _produce(writer, self._op_record(planted, step))
        for queue in range(_QUEUES):
            value = encode_position(Position(0, 0, 0, "selftest"))
            _produce(writer, Message(self._stage.internal.op, POSITION_KEY, value, (), queue, self._now_ms))
        writer.commit_transaction(_TIMEOUT_S)

    def _abort(self, writer: Producer, batch: Sequence[Planted]) -> None:
        """What no committed reader ever sees: the same records once more."""
        writer.begin_transaction()
        for planted in batch:
            for message in self._named(planted):
                _produce(writer, self._visible(planted, message, {}))
        writer.flush(_TIMEOUT_S)
        writer.abort_transaction(_TIMEOUT_S)

    def _publish(self, writer: Producer, planted: Planted, step: Step) -> None:
        given = step.options
        if step.name == "show":
            message = given.get("message") or planted.tale.messages[given["index"]]
            record = self._visible(planted, _to(message, self._stage.real(message.topic)), given)
            told = planted.shown if given.get("is_told", True) else []
            told.append(Receipt(record.topic, record.queue_id, None))
            _produce(writer, record, _note_receipt(told, len(told) - 1))
        elif step.name == "park":
            _produce(writer, self._parked_copy(planted, given), _note_parked(planted))

    def _visible(self, planted: Planted, message: Message, given: Mapping[str, Any]) -> Message:
        asked = given.get("part", message.queue_id)
        parts = self._stage.topics[message.topic]
        part = asked if asked >= 0 else choose_real_queue(message.key, planted.tx, parts)
        shown_ms = message.timestamp_ms or planted.born_ms + 1_000
        return encode_published(message, planted.tx, part, shown_ms, self._stage.has_id_header)

    def _parked_copy(self, planted: Planted, given: Mapping[str, Any]) -> Message:
        changed = given.get("message")
        messages = self._named(planted) if changed is None else [_to(changed, self._stage.real(changed.topic))]
        internal = self._stage.internal
        half = encode_half(_half_of(planted, {}, self._stage, messages), messages, internal.half, planted.queue)
        stored = StoredMessage(0, half.key, half.value, tuple(half.headers), planted.born_ms)
        return _at(encode_parked(stored, 3, "MAX_CHECKS", internal.parked, 0), planted.born_ms + 2_000)

    def _op_record(self, planted: Planted, step: Step) -> Message:
        given, places = step.options, planted.places
        state: OpState = given["state"]
        receipts = [Receipt(self._stage.real(topic), part, off) for topic, part, off in given.get("receipts", ())]
        if not receipts and state is OpState.COMMITTED:
            lost = given.get("lost")
            receipts = planted.shown + ([Receipt(self._stage.real(lost[0]), *lost[1:])] if lost else [])
        half_index = next((i for i, s in enumerate(_journal_steps(planted)) if _is_half(s)), None)
        transaction = Transaction(
            planted.tx,
            planted.tale.group,
            0 if half_index is None else places[half_index],
            planted.born_ms,
            0,
            _STATES[state],
            _cause(planted, given),
            since_ms=planted.born_ms,
            by="producer",
            ended_ms=planted.born_ms + 1_000,
            blocked=state is OpState.BLOCKED,
            parked=given.get("parked", planted.parked),
        )
        value = encode_op(OpMessage(transaction, receipts))
        return Message(self._stage.internal.op, planted.tx.encode(), value, (), planted.queue, planted.born_ms + 1_050)

    def _write_noise(self, plain: Producer) -> None:
        """Other producers' records in the same topics."""
        for number in range(100):
            _produce(plain, Message(self._stage.real(ORDERS), b"%d" % number, b"not ours", [("x", b"1")], number % 3))
        plain.flush(_TIMEOUT_S)

    def _expire(self) -> None:
        """Retention, done by hand."""
        place = TopicPartition(self._stage.real(EXPIRED), 0, -1)
        for answer in self._admin.delete_records([place]).values():
            answer.result(_TIMEOUT_S)


def groups_document() -> dict[str, Any]:
    """The settings of the tales' groups, as the API tells them."""
    check = {"transaction_timeout_seconds": 6, "max_checks": 3, "max_lifetime_seconds": 86_400}
    return {"producer_groups": [{"name": name, "check": check} for name in (SHOP, BANK)]}


def write_records(path: Path, rows: Iterable[tuple[str, str, str, int]]) -> list[Database]:
    """The producers' side: transaction records in an SQLite file, and how they are read."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        members = "transaction_id TEXT PRIMARY KEY, producer_group TEXT, state TEXT, at_ms INTEGER"
        connection.execute(f"CREATE TABLE {RECORD_TABLE} ({members})")
        connection.executemany(f"INSERT INTO {RECORD_TABLE} VALUES (?, ?, ?, ?)", rows)
    database = {"name": "bank", "url": f"jdbc:sqlite:{path}", "records": [{"groups": [BANK]}]}
    return parse_tables({"databases": [database]})


def compare_truth(truth: Iterable[tuple[str, str]], findings: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """What was planted and not found; what was found and not planted."""
    found = {(one["transaction_id"], one["kind"]) for one in map(json.loads, findings.splitlines())}
    planted = set(truth)
    return planted - found, found - planted


def _half_of(
    planted: Planted, given: Mapping[str, Any], stage: Stage, messages: Sequence[Message] | None = None
) -> HalfMessage:
    named = [_to(m, stage.real(m.topic)) for m in planted.tale.messages] if messages is None else messages
    first = named[0]
    single: dict[str, Any] = {
        "real_topic": first.topic,
        "real_queue_id": first.queue_id,
        "timestamp_ms": first.timestamp_ms,
    }
    void: dict[str, Any] = {"idempotency_key": planted.tx, "seen_ms": 0} if given.get("is_void") else {}
    return HalfMessage(
        planted.tx,
        planted.tale.group,
        len(named),
        planted.born_ms,
        **(single if len(named) == 1 else {}),
        **void,
        **planted.tale.half,
        is_published=given.get("is_published", False),
    )


def _journal_steps(planted: Planted) -> list[Step]:
    return [step for step in planted.tale.steps if step.name in _JOURNAL]


def _is_half(step: Step) -> bool:
    return step.name == "half" and not step.options.get("is_void")


def _cause(planted: Planted, given: Mapping[str, Any]) -> int:
    """The journal offset that an honest bridge would name: of the first end that decides."""
    if "cause" in given:
        return 0 if given["cause"] is None else planted.places[given["cause"]]
    for place, step in zip(planted.places, _journal_steps(planted), strict=True):
        if (step.name == "end" and step.options["code"]) or step.options.get("is_published"):
            return place
    return planted.places[0] if planted.places else 0


def _due(planted: Planted, *, is_late: bool) -> list[Step]:
    """Steps of this part of the story."""
    if planted.tale.is_late:
        return list(planted.tale.steps) if is_late else []
    return [step for step in planted.tale.steps if step.is_late is is_late]


def _to(message: Message, topic: str) -> Message:
    return Message(topic, message.key, message.value, message.headers, message.queue_id, message.timestamp_ms)


def _at(message: Message, stored_ms: int) -> Message:
    return Message(message.topic, message.key, message.value, message.headers, message.queue_id, stored_ms)


def _produce(producer: Producer, message: Message, note: Any = None) -> None:  # noqa: ANN401 - the client's callback
    while True:
        try:
            producer.produce(
                message.topic,
                key=message.key,
                value=message.value,
                partition=message.queue_id,
                headers=list(message.headers),
                timestamp=message.timestamp_ms or int(time.time() * 1_000),
                on_delivery=note,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _note(places: list[int], index: int) -> Any:  # noqa: ANN401
    def note(_: object, delivered: Delivered) -> None:
        places[index] = _offset_of(delivered)

    return note


def _note_receipt(receipts: list[Receipt], index: int) -> Any:  # noqa: ANN401
    def note(_: object, delivered: Delivered) -> None:
        receipts[index] = replace(receipts[index], queue_offset=_offset_of(delivered))

    return note


def _note_parked(planted: Planted) -> Any:  # noqa: ANN401
    def note(_: object, delivered: Delivered) -> None:
        planted.parked = _offset_of(delivered)

    return note


def _offset_of(delivered: Delivered) -> int:
    offset = delivered.offset()
    if delivered.error() is not None or offset is None:
        raise Indeterminate(f"a record of the self-test was not stored: {delivered.error()}")
    return offset


@dataclass(frozen=True, slots=True)
class Checked:
    """What a self-test came to."""

    planted: int
    unseen: set[tuple[str, str]]
    invented: set[tuple[str, str]]
    outcome: Outcome


def check_job(
    spark: SparkSession, kafka: Mapping[str, Any], tales: Iterable[Tale], folder: Path, tell: Tell
) -> Checked:
    """Plants the tales in topics of their own, reconciles them, deletes the topics. Raises ReconcileError."""
    stage = Stage(f"selftest-{secrets.token_hex(4)}.")
    injector = Injector(kafka, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    try:
        truth = injector.plant(tales)
        folder.mkdir(parents=True, exist_ok=True)
        databases = write_records(folder / "records.db", injector.rows)
        tell(f"{len(truth):,} findings planted in topics {stage.prefix}*")
        real = [stage.real(topic) for topic in _REAL]
        groups = parse_groups(groups_document())
        options = Options(folder, stage.internal, kafka, topics=real, groups=groups, databases=databases)
        outcome = reconcile(spark, options, tell)
    finally:
        injector.delete_topics()
    unseen, invented = compare_truth(truth, (outcome.folder / FINDINGS).read_text(encoding="utf-8"))
    return Checked(len(truth), unseen, invented, outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all found and nothing else, 1 not so, 2 usage, 3 indeterminate."""
    parser = argparse.ArgumentParser(prog="selftest", description=__doc__)
    parser.add_argument("--kafka", metavar="HOST:PORT", default="", help="bootstrap servers")
    parser.add_argument("--kafka-options", type=Path, metavar="FILE", help="JSON object with librdkafka's options")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--transactions", type=int, default=10_000, help="ordinary ones beside the planted")
    parser.add_argument("--rounds", type=int, default=10, help="how often each anomaly is planted")
    parser.add_argument("--jars", default="", metavar="A,B", help="the Kafka connector's jars")
    parser.add_argument("--cores", type=int, default=0, help="of this machine (default: all)")
    parser.add_argument("--memory-mb", type=int, default=1_024, help="Java heap on this machine")
    given = parser.parse_args(arguments)
    return run_command(lambda tell: _check(given, tell))


def _check(given: argparse.Namespace, tell: Tell) -> int:
    kafka = dict(read_json(given.kafka_options)) if given.kafka_options else {}
    if given.kafka:
        kafka["bootstrap.servers"] = given.kafka
    if not kafka.get("bootstrap.servers"):
        raise BadUsage("no Kafka named", "Give --kafka HOST:PORT or --kafka-options FILE.")
    jars = [Path(name) for name in given.jars.split(",") if name]
    spark = start_session(jars, cores=given.cores, memory_mb=given.memory_mb)
    try:
        checked = check_job(spark, kafka, make_tales(given.transactions, given.rounds), given.out, tell)
    finally:
        spark.stop()
    for title, pairs in (("not found", checked.unseen), ("not planted", checked.invented)):
        for tx, kind in sorted(pairs)[:20]:
            sys.stdout.write(f"{title}: {kind} {tx}\n")
    sys.stdout.write(
        f"{checked.planted:,} planted, {len(checked.unseen):,} not found, {len(checked.invented):,} false\n"
        f"{checked.outcome.folder / 'report.html'}\n"
    )
    return 1 if checked.unseen or checked.invented else 0


if __name__ == "__main__":
    sys.exit(main())
