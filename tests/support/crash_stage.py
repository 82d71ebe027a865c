"""A stage for crash points: a process armed to die at one, its producers, a successor, and what must hold then.

with Stage.open(kafka, nursery, folder, "SETTLE_READ") as stage:
    victim = stage.start(FaultPoint.SETTLE_READ)
    stage.play(victim)                  # until it is dead
    stage.wait_dead(victim)
    successor = stage.serve()
    stage.repeat(successor)             # what nobody knows
    stage.verify(successor)
"""

import json
import secrets
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from confluent_kafka import Producer

from bridge.broker.ports import choose_free_port
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from bridge.core.transaction import queue_of
from bridge.fault_points import EXIT_KILLED, FaultPoint
from tests.support.bridge_process import Bridge, BridgeProcess, Record, create_topics, read_committed, wait_until
from tests.support.cluster_acts import read_positions, read_states
from tests.support.process_pool import Child, ProcessPool

GROUP = "shop"
PATIENCE_S = 60.0
_PAUSE_S = 0.1  # of a producer before it asks again
_ROUNDS = 12  # a point that none of them reaches counts as not reached
_SETTINGS = {
    "OUTBOX_BRIDGE_TOPICS__QUEUES": "1",
    "OUTBOX_BRIDGE_SETTLER__SESSION_MS": "1500",
    "OUTBOX_BRIDGE_SETTLER__PUT_BACK_RECORDS": "25",
}
_FINAL = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}
Json = dict[str, Any]
Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(slots=True)
class Operation:
    """One transaction as its producer knows it. `wish` None: it leaves the decision to checks, or to nobody.

    `state`: what somebody was told, and so what it must be for ever; None: PREPARED, or not known yet.
    """

    body: Json
    contents: list[Content]
    wish: str | None
    is_published: bool = False
    transaction_id: str | None = None
    state: str | None = None

    @property
    def is_keyed(self) -> bool:
        return "idempotency_key" in self.body


@dataclass(slots=True)
class Stage:
    """One bridge, its topics, and everything that was asked of it."""

    name: str
    bridge: Bridge
    nursery: ProcessPool
    deeds: list[Operation] = field(default_factory=list)
    _count: int = 0
    _processes: list[BridgeProcess] = field(default_factory=list)

    @classmethod
    @contextmanager
    def open(cls, kafka: str, nursery: ProcessPool, folder: Path, name: str) -> Iterator["Stage"]:
        """Topics of its own; nothing is migrated."""
        prefix = f"{name.lower()}.{secrets.token_hex(2)}."
        stage = cls(name, Bridge(kafka, folder, prefix, f"sqlite:///{folder / 'bridge.db'}", dict(_SETTINGS)), nursery)
        create_topics(kafka, {stage.orders: 2, stage.credits: 1})
        with ExitStack() as stack:
            stack.callback(stage._close)
            try:
                yield stage
            except AssertionError as failed:
                for process in stage._processes:
                    failed.add_note(f"{process.log}:\n{process.log.read_text()[-3000:]}")
                raise

    @property
    def kafka(self) -> str:
        return self.bridge.kafka

    @property
    def orders(self) -> str:
        return f"real.{self.bridge.prefix}orders"

    @property
    def credits(self) -> str:
        return f"real.{self.bridge.prefix}credits"

    # --- processes ---

    def start(self, point: FaultPoint | None = None, passing: int = 1) -> BridgeProcess:
        """All roles in one process, armed if a point is given; not waited for."""
        port = choose_free_port()
        log = self.bridge.directory / f"serve-{len(self._processes)}.log"
        child = self._spawn(["serve", "--port", str(port)], log, point, passing)
        process = BridgeProcess(child, port, log)
        self._processes.append(process)
        return process

    def serve(self) -> BridgeProcess:
        """All roles, unarmed, ready."""
        process = self.start()
        assert self.is_ready(process), f"died unarmed:\n{process.log.read_text()[-3000:]}"
        return process

    def start_ready(self, point: FaultPoint) -> BridgeProcess:
        """All roles, armed, ready: the point is not passed by starting."""
        process = self.start(point)
        assert self.is_ready(process), f"died too early:\n{process.log.read_text()[-3000:]}"
        return process

    def is_ready(self, process: BridgeProcess) -> bool:
        """Whether it got ready, and not dead. Reads its log: asking a hundred times costs more than its work."""

        def has_said() -> bool:
            return process.popen.poll() is not None or b"\nready: http" in process.log.read_bytes()

        wait_until(has_said, PATIENCE_S, "readiness")
        return process.popen.poll() is None

    def command(self, *arguments: str, point: FaultPoint | None = None, passing: int = 1) -> str:
        """One command to its end: success, or, armed, its death. Its output."""
        log = self.bridge.directory / f"{'-'.join(arguments)}-{secrets.token_hex(2)}.log"
        child = self._spawn(list(arguments), log, point, passing)
        code = child.wait(PATIENCE_S)
        assert code == (0 if point is None else EXIT_KILLED), f"{arguments} ended with {code}:\n{log.read_text()}"
        return log.read_text()

    def wait_dead(self, process: BridgeProcess) -> None:
        """It must die at its point, of nothing else."""
        try:
            code = process.popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} was not reached:\n{process.log.read_text()[-3000:]}") from None
        assert code == EXIT_KILLED, f"ended with {code}:\n{process.log.read_text()[-3000:]}"
        self._verify_position()

    def _spawn(self, arguments: Sequence[str], log: Path, point: FaultPoint | None, passing: int) -> Child:
        extra = {} if point is None else {"OUTBOX_BRIDGE_FAULT": f"{point.name}:{passing}"}
        flags = [] if point is None else ["--allow-faults"]
        environment = self.bridge.environment(**extra)
        return self.nursery.start(["api", *arguments, *flags], environment, self.bridge.directory, log)

    def _close(self) -> None:
        for process in self._processes:
            process.http.close()
            process.popen.kill()
            process.popen.wait(30)

    # --- producers ---

    def draft(self, wish: str | None, *topics: str, keyed: bool = True, published: bool = False) -> Operation:
        """A transaction with a message to each topic."""
        self._count += 1
        contents: list[Content] = [
            (topic, f"k{self._count}".encode(), f"{self._count}:{n}".encode(), (("n", b"\x00\xff"), ("n", None)))
            for n, topic in enumerate(topics or (self.orders,))
        ]
        messages = [
            {
                "topic": topic,
                "key": (key or b"").decode(),
                "value": (value or b"").decode(),
                "headers_base64": [["n", "AP8="], ["n", None]],
            }
            for topic, key, value, _ in contents
        ]
        body: Json = {"producer_group": GROUP, "messages": messages}
        if keyed:
            body["idempotency_key"] = f"key-{self._count}"
        deed = Operation(body, contents, wish, published)
        self.deeds.append(deed)
        return deed

    def undecided(self, count: int, process: BridgeProcess) -> list[Operation]:
        """Prepared at once, with nobody to end them."""
        deeds = [self.draft(None) for _ in range(count)]
        assert self.prepare(process, deeds), "the process died too early"
        return deeds

    def play(self, process: BridgeProcess) -> None:
        """Rounds of everything a producer does, until the process is dead or all rounds are played."""
        for _ in range(_ROUNDS):
            if not self.play_round(process):
                return

    def play_round(self, process: BridgeProcess) -> bool:
        """Commits, a rollback, several messages, one left undecided, one published; False once the process is dead."""
        several = (self.orders, self.credits, self.orders)
        deeds = [
            self.draft("COMMIT"),
            self.draft("COMMIT", *several),
            self.draft("COMMIT", keyed=False),
            self.draft("ROLLBACK", *several),
            self.draft(None),
        ]
        published = self.draft("COMMIT", self.credits, published=True)
        return self.prepare(process, deeds) and self.end(process, deeds) and self.publish(process, [published])

    def prepare(self, process: BridgeProcess, deeds: Sequence[Operation]) -> bool:
        """Until the id of each keyed one is known; False if the process died first."""

        def open_deeds(asked: Sequence[Operation], results: Sequence[Json]) -> list[Operation]:
            for deed, result in zip(asked, results, strict=True):
                if result["status"] in {200, 201}:
                    assert deed.transaction_id in {None, result["transaction_id"]}, (deed.transaction_id, result)
                    deed.transaction_id = result["transaction_id"]
            return [deed for deed in asked if deed.is_keyed and deed.transaction_id is None]

        return self._ask(process, "/v1/transactions/batch", "transactions", deeds, open_deeds)

    def learn_ids(self, successor: BridgeProcess) -> None:
        """On a busy machine a victim that dies by itself is dead before it has answered its prepares."""
        unknown = [deed for deed in self.deeds if deed.is_keyed and not deed.is_published]
        assert self.prepare(successor, [deed for deed in unknown if deed.transaction_id is None])

    def end(self, process: BridgeProcess, deeds: Sequence[Operation]) -> bool:
        """Until it is known of each that is prepared and has a wish; False if the process died first."""
        wished = [deed for deed in deeds if deed.wish is not None and deed.transaction_id is not None]
        return self._ask(process, "/v1/resolutions", "resolutions", wished, self._note)

    def publish(self, process: BridgeProcess, deeds: Sequence[Operation]) -> bool:
        """Until it is known of each; False if the process died first."""
        return self._ask(process, "/v1/messages/batch", "transactions", deeds, self._note)

    def repeat(self, process: BridgeProcess) -> None:
        """Asks again until everything is known. What has no key and no answer cannot be asked about."""
        self.learn_ids(process)
        ends = [deed for deed in self.deeds if deed.wish and deed.state is None and not deed.is_published]
        published = [deed for deed in self.deeds if deed.is_published and deed.state is None]
        assert self.end(process, ends)
        assert self.publish(process, published)

    def _ask(
        self, process: BridgeProcess, path: str, member: str, deeds: Sequence[Operation],
        open_deeds: Callable[[Sequence[Operation], Sequence[Json]], Sequence[Operation]],
    ) -> bool:  # fmt: skip
        """One call about all, then others about those that it left open, as a producer does; False if the process died
        first. On a busy machine an answer may say that nothing is known yet."""
        asked, give_up_at = list(deeds), time.monotonic() + PATIENCE_S
        while asked:
            body = [_end_of(deed) if member == "resolutions" else deed.body for deed in asked]
            results = self._call(process, path, {member: body})
            if results:
                asked = list(open_deeds(asked, results))
            elif process.popen.poll() is not None:
                return False
            assert not asked or time.monotonic() < give_up_at, f"no answer about {asked}"
            time.sleep(_PAUSE_S if asked else 0)
        return True

    def _note(self, asked: Sequence[Operation], results: Sequence[Json]) -> list[Operation]:
        """Those of which it is not known yet how they ended."""
        for deed, result in zip(asked, results, strict=True):
            if result["status"] == 200 or (result["status"] == 202 and result.get("blocked")):
                assert deed.transaction_id in {None, result["transaction_id"]}, (deed.transaction_id, result)
                assert result["state"] == _FINAL[deed.wish or ""], result
                deed.transaction_id, deed.state = result["transaction_id"], result["state"]
            else:
                assert result["status"] in {202, 503, 504}, result
        return [deed for deed in asked if deed.state is None]

    def _call(self, process: BridgeProcess, path: str, body: Json) -> list[Json]:
        """Results by place; none if the process died under the call, or cannot answer now."""
        try:
            reply = process.post(path, body)
        except httpx2.TransportError:
            self.wait_dead(process)
            return []
        assert reply.status_code in {200, 503, 504}, reply.text
        results: list[Json] = reply.json()["results"] if reply.status_code == 200 else []
        return results

    # --- witnesses ---

    def visible(self, isolation: str = "read_committed") -> list[Record]:
        """What is in the real topics."""
        topics = [self.orders, self.credits]
        return read_committed(self.kafka, topics, isolation=isolation)

    def visible_ids(self) -> set[str]:
        return {record.transaction_id or "" for record in self.visible()}

    def acknowledged_ids(self) -> set[str]:
        """Those whose commit somebody was told of."""
        return {deed.transaction_id or "" for deed in self.deeds if deed.state == "COMMITTED"}

    def journal(self, kind: str) -> list[Record]:
        """Records of a kind in the journal: H, E or A."""
        records = read_committed(self.kafka, [self.bridge.half_topic])
        return [record for record in records if _properties_of(record)["KIND"] == kind]

    def ids_in(self, kind: str) -> set[str]:
        """The transactions that have a record of this kind in the journal."""
        return {_properties_of(record)["UNIQ_KEY"] for record in self.journal(kind)}

    def recorded(self) -> dict[str, str]:
        """The state that follows from the first resolution in the journal, by transaction id."""
        found: dict[str, str] = {}
        for record in self.journal("E") + self.journal("H"):
            properties = _properties_of(record)
            state = {"8": "COMMITTED", "12": "ROLLED_BACK"}.get(properties.get("RES", ""))
            if state is not None:
                found.setdefault(properties["UNIQ_KEY"], state)
        return found

    def append_end(self, deed: Operation) -> None:
        """The end of a transaction, as an api that died at once would have appended it."""
        transaction_id = deed.transaction_id or ""
        record = EndRecord(transaction_id, Resolution[deed.wish or ""], Source.PRODUCER, int(time.time() * 1_000))
        end = encode_end(record, self.bridge.half_topic, queue_of(transaction_id))
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(end.topic, end.value, end.key, end.queue_id, headers=list(end.headers))
        assert producer.flush(PATIENCE_S) == 0

    def wait_recorded(self, process: BridgeProcess) -> None:
        """What was recorded stands, although nobody was told of it and nobody asks again (L, T)."""
        for transaction_id, state in self.recorded().items():
            wait_until(
                lambda i=transaction_id, wanted=state: self.get(process, i)["state"] == wanted,
                PATIENCE_S,
                f"{state} of {transaction_id}, as recorded",
            )

    def parked_ids(self) -> list[str]:
        """Ids of the copies in the parked topic."""
        records = read_committed(self.kafka, [self.bridge.parked_topic])
        return [_properties_of(record)["UNIQ_KEY"] for record in records]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the bridge's database, or what a statement changes."""
        with closing(sqlite3.connect(self.bridge.directory / "bridge.db", timeout=30)) as connection:
            rows = connection.execute(statement).fetchall()
            connection.commit()
            return rows

    def get(self, process: BridgeProcess, transaction_id: str | None) -> Json:
        """The transaction as the bridge tells it now."""

        def answer() -> Json | None:
            reply = process.get(f"/v1/transactions/{transaction_id}")
            if reply.status_code == 503:
                return None
            assert reply.status_code == 200, reply.text
            found: Json = reply.json()
            return found

        told: Json = wait_until(answer, PATIENCE_S, f"{transaction_id} in the projection")
        return told

    def wait_state(self, process: BridgeProcess, deed: Operation, state: str) -> Json:
        """Until the transaction has it; from then on it is what must be."""

        def there() -> Json | None:
            told = self.get(process, deed.transaction_id)
            return told if told["state"] == state and not told.get("blocked") else None

        found: Json = wait_until(there, PATIENCE_S, f"{state} of {deed.body['messages'][0]['value']}")
        deed.state = state
        return found

    # --- promises ---

    def verify(self, process: BridgeProcess) -> None:
        """L, P, D, I, F, S, C and T, and that every view agrees."""
        self._verify_decided()
        known = [deed for deed in self.deeds if deed.transaction_id is not None]
        told = {deed.transaction_id: self.get(process, deed.transaction_id) for deed in known}
        wanted = {deed.transaction_id: deed.state or "PREPARED" for deed in known}
        assert {i: t["state"] for i, t in told.items()} == wanted
        recorded = self.recorded()
        assert {i: t["state"] for i, t in told.items() if i in recorded} == recorded
        self._verify_topics(known, told)
        self._verify_op(wanted)
        self._verify_counts(process, set(told))

    def _verify_position(self) -> None:
        """Whatever a committed reader sees decided lies below the S that it sees: one Kafka transaction wrote both."""
        decided, s = -1, 0
        for record in read_committed(self.kafka, [self.bridge.op_topic]):
            told = json.loads(record.value or b"")
            if record.key == b"~":
                s = told["s"]
            elif record.key != b"?":
                decided = max(decided, told["at"])
        assert decided < s

    def _verify_decided(self) -> None:
        """Every record of the journal is below S."""

        def is_decided() -> bool:
            journal = read_committed(self.kafka, [self.bridge.half_topic])
            return not journal or read_positions(self.bridge)[0]["s"] > journal[-1].offset

        wait_until(is_decided, PATIENCE_S, "S at the journal's end")

    def _verify_topics(self, known: Sequence[Operation], told: dict[str | None, Json]) -> None:
        """Each commit once, byte for byte, where its receipts say; nothing else."""
        records = self.visible()
        seen: dict[str | None, Counter[Content]] = {}
        for record in records:
            headers = tuple(header for header in record.headers if header[0] != "transaction-id")
            content = record.topic, record.key, record.value, headers
            seen.setdefault(record.transaction_id, Counter())[content] += 1
        assert seen == {d.transaction_id: Counter(d.contents) for d in known if d.state == "COMMITTED"}
        places = {
            (r["topic"], r["partition"], r["offset"], i)
            for i, transaction in told.items()
            for r in transaction.get("receipts", [])
        }
        assert places == {(r.topic, r.partition, r.offset, r.transaction_id) for r in records}

    def _verify_op(self, wanted: dict[str | None, str]) -> None:
        """The last op message is the state, and no end was ever decided in two ways."""
        for transaction_id, states in read_states(self.bridge).items():
            assert states[-1]["state"] == wanted.get(transaction_id, "PREPARED"), (transaction_id, states)
            ends = {
                json.dumps([s["state"], s["at"], s.get("receipts")])
                for s in states
                if s["state"] in _FINAL.values() and not s.get("blocked")
            }
            assert len(ends) <= 1, (transaction_id, states)

    def _verify_counts(self, process: BridgeProcess, known: set[str | None]) -> None:
        """All are listed, and the counts add up. Half messages without key or answer may be there as well."""
        halves = self.ids_in("H")
        assert known <= halves

        def is_listed() -> bool:
            stats = process.get("/v1/stats").json()
            ended = stats["committed"] + stats["rolled_back"] + stats["parked"] + stats["pending"]
            return bool(stats["prepared"] == ended == len(halves))

        wait_until(is_listed, PATIENCE_S, "the counts")
        rows = process.get("/v1/transactions?limit=500").json()["transactions"]
        assert sorted(row["transaction_id"] for row in rows) == sorted(halves)


def _end_of(deed: Operation) -> Json:
    return {"transaction_id": deed.transaction_id, "resolution": deed.wish}


def _properties_of(record: Record) -> dict[str, str]:
    raw = (dict(record.headers)["properties"] or b"").decode()
    return dict(pair.split("\x01") for pair in raw.split("\x02") if pair)


Scenario = Callable[[Stage, FaultPoint], None]
