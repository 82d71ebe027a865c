"""Plants anomalies and look-alikes in topics of its own, runs the job on them, and compares: all, and nothing else.

Everything is written in the bridge's formats through real Kafka transactions, with aborted ones between them. The
topics take the times they are given, so that a transaction can be a day old.
"""

import argparse
import json
import secrets
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Message as Delivered
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bridge.core.message import Message, Receipt
from bridge.core.op_message import POSITION_KEY, Position, encode_position
from bridge.core.topics import choose_half_queue, murmur2
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from spark.errors import Indeterminate
from spark.judge.findings import FINDINGS_FILE
from spark.judge.rules import FindingKind
from spark.options import Options, add_job, parse_groups, read_jars, read_kafka_options
from spark.read.table_list import RECORD_TABLE, JdbcDatabase, parse_tables
from spark.reconcile import RunOutcome, Tell, reconcile, run_command
from spark.selftest.seeded import (
    BANK,
    EXPIRED,
    ORDERS,
    QUEUES,
    REAL,
    SHOP,
    Planted,
    RecordBuilder,
    Scenario,
    ScenarioStep,
    SeededTopics,
    due_steps,
    journal_steps,
    make_tales,
)
from spark.session import BRIEF_OFFSETS, running_session

_BATCH = 10_000
_TOLD = 100_000  # transactions between two lines of progress
_OFFSETS_EACH = 5  # of a transaction, nearly
_TIMEOUT_S = 30.0


class Injector:
    """Writes tales to a stage: in one go by `plant`, or bit by bit by `write`, and then `finish`."""

    def __init__(self, kafka: Mapping[str, Any], stage: SeededTopics, now_ms: int) -> None:
        self._kafka = dict(kafka)
        self._admin = AdminClient(self._kafka)
        self._stage = stage
        self._scribe = RecordBuilder(stage)
        self._now_ms = now_ms
        self._number = 0
        self._late: list[Planted] = []
        self.rows: list[tuple[str, str, str, int]] = []  # of transaction records: id, group, state, time
        options = {"transactional.id": f"{self._stage.prefix}selftest", "linger.ms": 20}
        writer = Producer({**self._kafka, **options})
        writer.init_transactions(_TIMEOUT_S)
        self._writer = writer
        self._plain = Producer({**self._kafka, "enable.idempotence": True, "linger.ms": 20})

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

    def plant(self, tales: Iterable[Scenario]) -> list[tuple[str, str]]:
        """Writes them all; what must be found, as sorted pairs of id and kind."""
        truth = self.write(tales)
        return sorted(truth + self.finish())

    def write(self, tales: Iterable[Scenario]) -> list[tuple[str, str]]:
        """Some of them, after what was late of those before; a batch is held at a time, and whatever is late.

        The young ones come last, so that they still are when all is written.
        """
        self._write_late()
        truth: list[tuple[str, str]] = []
        young: list[Scenario] = []
        older = _put_aside(tales, young)
        while batch := [self._name(tale) for tale in islice(older, _BATCH)]:
            truth += self._write_batch(batch)
        self._now_ms = max(self._now_ms, time.time_ns() // 1_000_000)
        return truth + self._write_batch([self._name(tale) for tale in young])

    def finish(self) -> list[tuple[str, str]]:
        """What is still late, other producers' records, what nobody can read, and retention; what must be found."""
        self._write_late()
        self._write_noise()
        self._expire()
        return self._write_unreadable()

    def _write_batch(self, batch: Sequence[Planted]) -> list[tuple[str, str]]:
        self._write_journal(batch)
        self._settle([planted for planted in batch if not planted.tale.is_late], is_late=False)
        self._late += [p for p in batch if p.tale.is_late or any(step.is_late for step in p.tale.steps)]
        self.rows += [(p.tx, p.tale.group, p.tale.row, p.born_ms) for p in batch if p.tale.row is not None]
        return [(planted.tx, kind.value) for planted in batch for kind in planted.tale.kinds]

    def _write_late(self) -> None:
        for planted in self._late:
            for step in journal_steps(planted, is_late=True):
                _produce(self._plain, self._scribe.journal_record(planted, step))
        self._plain.flush(_TIMEOUT_S)
        self._settle(self._late, is_late=True)
        self._late = []

    def _name(self, tale: Scenario) -> Planted:
        self._number += 1
        born_ms = self._now_ms - tale.age_ms
        key = tale.messages[0].key if tale.messages else None
        queue = choose_half_queue(self._number if key is None else murmur2(key), QUEUES)
        return Planted(tale, make_transaction_id(queue, make_uuid7_bits(born_ms, self._number)), born_ms)

    def _write_journal(self, batch: Sequence[Planted]) -> None:
        for planted in batch:
            steps = journal_steps(planted)
            planted.places = [-1] * len(steps)
            for index, step in enumerate(steps):
                _produce(self._plain, self._scribe.journal_record(planted, step), _note(planted.places, index))
        self._plain.flush(_TIMEOUT_S)

    def _settle(self, batch: Sequence[Planted], *, is_late: bool) -> None:
        """One Kafka transaction, after one that is aborted."""
        self._abort(batch[:1])
        writer = self._writer
        writer.begin_transaction()
        due = [(planted, due_steps(planted, is_late=is_late)) for planted in batch]
        for planted, steps in due:
            for step in steps:
                self._publish(planted, step)
        writer.flush(_TIMEOUT_S)
        for planted, steps in due:
            for step in steps:
                if step.name == "op":
                    _produce(writer, self._scribe.op_record(planted, step))
        for queue in range(QUEUES):
            value = encode_position(Position(0, 0, 0, "selftest"))
            _produce(writer, Message(self._stage.internal.op, POSITION_KEY, value, (), queue, self._now_ms))
        writer.commit_transaction(_TIMEOUT_S)

    def _abort(self, batch: Sequence[Planted]) -> None:
        """What no committed reader ever sees: the same records once more."""
        self._writer.begin_transaction()
        for planted in batch:
            for message in self._scribe.named(planted):
                _produce(self._writer, self._scribe.visible(planted, message, {}))
        self._writer.flush(_TIMEOUT_S)
        self._writer.abort_transaction(_TIMEOUT_S)

    def _publish(self, planted: Planted, step: ScenarioStep) -> None:
        given = step.options
        if step.name == "show":
            message = given.get("message") or planted.tale.messages[given["index"]]
            record = self._scribe.visible(planted, self._scribe.at_topic(message), given)
            told = planted.shown if given.get("is_told", True) else []
            told.append(Receipt(record.topic, record.queue_id, None))
            _produce(self._writer, record, _note_receipt(told, len(told) - 1))
        elif step.name == "park":
            _produce(self._writer, self._scribe.parked_copy(planted, given), _note_parked(planted))

    def _write_noise(self) -> None:
        """Other producers' records in the same topics."""
        for number in range(100):
            _produce(
                self._plain, Message(self._stage.real(ORDERS), b"%d" % number, b"not ours", [("x", b"1")], number % 3)
            )
        self._plain.flush(_TIMEOUT_S)

    def _write_unreadable(self) -> list[tuple[str, str]]:
        """Named by their places; the transaction that some of them name is nobody's."""
        records = list(self._scribe.unreadable(make_transaction_id(0, make_uuid7_bits(self._now_ms, 0))))
        places = [-1] * len(records)
        for index, record in enumerate(records):
            _produce(self._plain, replace(record, queue_id=0), _note(places, index))
        self._plain.flush(_TIMEOUT_S)
        named = zip(records, places, strict=True)
        return [(f"{record.topic}-0@{offset}", FindingKind.UNREADABLE.value) for record, offset in named]

    def _expire(self) -> None:
        """Retention, done by hand."""
        place = TopicPartition(self._stage.real(EXPIRED), 0, -1)
        for answer in self._admin.delete_records([place]).values():
            answer.result(_TIMEOUT_S)


def _put_aside(tales: Iterable[Scenario], young: list[Scenario]) -> Iterator[Scenario]:
    """All but those that were prepared just now, which go there."""
    for tale in tales:
        if tale.age_ms:
            yield tale
        else:
            young.append(tale)


def groups_document() -> dict[str, Any]:
    """The settings of the tales' groups, as the API returns them."""
    check = {"transaction_timeout_seconds": 6, "max_checks": 3, "max_lifetime_seconds": 86_400}
    return {"producer_groups": [{"name": name, "check": check} for name in (SHOP, BANK)]}


def write_records(path: Path, rows: Iterable[tuple[str, str, str, int]]) -> list[JdbcDatabase]:
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
    found = {(one["transaction_id"], one["kind"]) for one in map(json.loads, findings.split("\n")[:-1])}
    planted = set(truth)
    return planted - found, found - planted


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
    outcome: RunOutcome


def check_job(
    spark: SparkSession, kafka: Mapping[str, Any], tales: Iterable[Scenario], folder: Path, tell: Tell
) -> Checked:
    """Plants the tales in topics of their own, reconciles them, deletes the topics. Raises ReconcileError."""
    stage = SeededTopics(f"selftest-{secrets.token_hex(4)}.")
    injector = Injector(kafka, stage, time.time_ns() // 1_000_000)
    injector.create_topics()
    try:
        truth = injector.plant(_counted(tales, tell))
        folder.mkdir(parents=True, exist_ok=True)
        databases = write_records(folder / "records.db", injector.rows)
        tell(f"{len(truth):,} findings planted in topics {stage.prefix}*")
        real = [stage.real(topic) for topic in REAL]
        groups = parse_groups(groups_document())
        options = Options(folder, stage.internal, kafka, topics=real, groups=groups, databases=databases)
        outcome = reconcile(spark, options, tell)
    finally:
        injector.delete_topics()
    unseen, invented = compare_truth(truth, (outcome.folder / FINDINGS_FILE).read_text(encoding="utf-8"))
    return Checked(len(truth), unseen, invented, outcome)


def _counted(tales: Iterable[Scenario], tell: Tell) -> Iterator[Scenario]:
    """The same, with progress."""
    for count, tale in enumerate(tales, start=1):
        yield tale
        if count % _TOLD == 0:
            tell(f"{count:,} transactions written")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all found and nothing else, 1 not so, 2 usage, 3 indeterminate."""
    parser = argparse.ArgumentParser(prog="selftest", description=__doc__)
    add_job(parser)
    parser.add_argument("--transactions", type=int, default=10_000, help="ordinary ones beside the planted")
    parser.add_argument("--rounds", type=int, default=10, help="how often each anomaly is planted")
    given = parser.parse_args(arguments)
    return run_command(lambda tell: _check(given, tell))


def _check(given: argparse.Namespace, tell: Tell) -> int:
    kafka, is_brief = read_kafka_options(given), given.transactions * _OFFSETS_EACH <= BRIEF_OFFSETS
    with running_session(read_jars(given), cores=given.cores, memory_mb=given.memory_mb, is_brief=is_brief) as spark:
        checked = check_job(spark, kafka, make_tales(given.transactions, given.rounds), given.out, tell)
    told = {"planted": checked.planted, "not_found": sorted(checked.unseen), "false": sorted(checked.invented)}
    (checked.outcome.folder / "selftest.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
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
