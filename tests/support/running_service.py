"""One bridge as real processes for many tests: two APIs, one more with tight limits, and the engine behind them.

Every answer that is received through `api`, `other` or `strict` is held against the OpenAPI document.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.bridge_process import Bridge, BridgeProcess, Record, create_topics, read_committed, wait_until
from tests.support.documented import Documented

NDJSON = {"Content-Type": "application/x-ndjson"}
_MOST = 1_000

Json = dict[str, Any]


@dataclass(slots=True)
class Topics:
    """Real topics: `orders` has 3 partitions, `credits` 2, `line` 1; the others refuse something."""

    orders: str
    credits: str
    line: str
    small: str  # records of at most 2,000 bytes
    strict_time: str  # timestamps at most an hour old or an hour ahead

    @classmethod
    def create(cls, kafka: str) -> "Topics":
        """With names of their own."""
        name = f"t{secrets.token_hex(4)}"
        topics = cls(*[f"{name}.{purpose}" for purpose in ("orders", "credits", "line", "small", "strict_time")])
        create_topics(kafka, {topics.orders: 3, topics.credits: 2, topics.line: 1})
        create_topics(kafka, {topics.small: 1}, {"max.message.bytes": "2000"})
        hour = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
        create_topics(kafka, {topics.strict_time: 1}, hour)
        return topics

    def names(self) -> list[str]:
        """All of them."""
        return [self.orders, self.credits, self.line, self.small, self.strict_time]


@dataclass(slots=True)
class RunningService:
    """`api` and `other` are alike; `strict` makes no groups, calls no network of ours, serves two at once."""

    bridge: Bridge
    topics: Topics
    api: BridgeProcess
    other: BridgeProcess
    strict: BridgeProcess
    engine: BridgeProcess
    document: Json
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    @property
    def processes(self) -> list[BridgeProcess]:
        """All four."""
        return [self.api, self.other, self.strict, self.engine]

    def new_group(self, purpose: str) -> str:
        """The name of a group that nobody uses."""
        return f"{purpose}-{next(self._numbers)}"

    def message(self, **members: Any) -> Json:
        """A message to `orders`, or with the members given."""
        return {"topic": self.topics.orders, **members}

    def prepare(self, group: str, *messages: Json, at: BridgeProcess | None = None, **members: Any) -> str:
        """The id of a new transaction; of one small message if none is given."""
        body = {"producer_group": group, "messages": list(messages) or [self.message(key="k", value="v")], **members}
        answer = (at or self.api).post("/v1/transactions", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["transaction_id"])

    def publish(self, group: str, *messages: Json) -> Json:
        """The answer to a publish, which must be 200."""
        body = {"producer_group": group, "messages": list(messages) or [self.message(key="k", value="v")]}
        answer = self.api.post("/v1/messages", body)
        assert answer.status_code == 200, answer.text
        members: Json = answer.json()
        return members

    def prepare_many(self, transactions: Sequence[Json]) -> list[str]:
        """The ids of new transactions."""
        ids: list[str] = []
        for start in range(0, len(transactions), _MOST):
            part = transactions[start : start + _MOST]
            results = self.api.post("/v1/transactions/batch", {"transactions": part}).json()["results"]
            assert {result["status"] for result in results} == {201}, results[:3]
            ids += [result["transaction_id"] for result in results]
        return ids

    def end(self, transaction_id: str, word: str, at: BridgeProcess | None = None) -> Json:
        """The answer to `commit` or `rollback`, which must be 200."""
        answer = (at or self.api).post(f"/v1/transactions/{transaction_id}/{word}")
        assert answer.status_code == 200, answer.text
        members: Json = answer.json()
        return members

    def get(self, transaction_id: str, at: BridgeProcess | None = None, **options: Any) -> Json:
        """The transaction as it is now."""
        answer = (at or self.api).get(f"/v1/transactions/{transaction_id}", **options)
        assert answer.status_code == 200, answer.text
        members: Json = answer.json()
        return members

    def events(self, transaction_id: str) -> list[Json]:
        """Its timeline."""
        answer = self.api.get(f"/v1/transactions/{transaction_id}/timeline")
        assert answer.status_code == 200, answer.text
        events: list[Json] = answer.json()["events"]
        return events

    def wait_state(self, transaction_id: str, state: str) -> Json:
        """The transaction, once it is in this state."""
        wait_until(lambda: self.get(transaction_id)["state"] == state, name=f"{state} of {transaction_id}")
        return self.get(transaction_id)

    def counts(self, group: str) -> Json:
        """The counts of one group when everything of before is counted."""
        self.catch_up()
        members: Json = self.api.get(f"/v1/producer-groups/{group}").json()["counts"]
        return members

    def catch_up(self) -> None:
        """Returns when all that was appended before this call is in the projection: a 404 is told only then."""
        for queue_id in range(2):
            answer = self.api.get(f"/v1/transactions/{queue_id:02}{'7' * 25}0")
            assert answer.status_code == 404, answer.text

    def put_group(self, name: str, urls: Iterable[str] = (), **check: Any) -> str | None:
        """Creates or replaces a group; its secret if it is new."""
        body = {"endpoints": [{"url": url} for url in urls], "check": check}
        answer = self.api.http.put(f"/v1/producer-groups/{name}", json=body)
        assert answer.status_code in {200, 201}, answer.text
        secret: str | None = answer.json().get("secret")
        return secret

    def put_known_group(self, name: str, urls: Iterable[str] = (), **check: Any) -> str | None:
        """The same, and waits until the engine knows it."""
        secret = self.put_group(name, urls, **check)
        self.wait_groups_known()
        return secret

    def wait_groups_known(self) -> None:
        """Until the engine knows all groups as they were put: a second at most. One more is put to see it."""
        probe = self.new_group("probe")
        self.put_group(probe, transaction_timeout_seconds=86_400)
        body = {"producer_group": probe, "messages": [self.message()]}

        def is_known() -> bool:
            told: Json = self.api.post("/v1/transactions", body).json()
            is_same: bool = self.get(told["transaction_id"])["first_check_at"] == told["first_check_at"]
            self.end(told["transaction_id"], "rollback")
            return is_same

        wait_until(is_known, name="groups known")

    def read(self, transaction_ids: Iterable[str], *topics: str) -> list[Record]:
        """Records of these transactions, as an independent `read_committed` consumer sees them."""
        wanted = set(transaction_ids)
        records = read_committed(self.bridge.kafka, topics or self.topics.names())
        return [record for record in records if record.transaction_id in wanted]


@contextmanager
def running_service(kafka: str, folder: Path) -> Iterator[RunningService]:
    """A bridge on SQLite with everything in processes of its own. No 500 may have been answered when it ends."""
    bridge = Bridge.create(kafka, folder)
    topics = Topics.create(kafka)
    limits = {
        "OUTBOX_BRIDGE_AUTO_CREATE_GROUPS": "false",
        "OUTBOX_BRIDGE_CALLBACKS__ALLOW_NETWORKS": "[]",
        "OUTBOX_BRIDGE_LIMITS__REQUESTS_IN_FLIGHT": "2",
        "OUTBOX_BRIDGE_HTTP__RECEIVE_SECONDS": "2",
    }
    with ExitStack() as stack:
        engine = stack.enter_context(bridge.start("settler,projector"))
        strict = stack.enter_context(bridge.start("api", **limits))
        api, other = [stack.enter_context(bridge.start("api")) for _ in range(2)]
        for process in (engine, strict, api, other):
            process.wait_ready()
        document = api.get("/openapi.json").json()
        documented = Documented(document)
        for process in (api, other, strict):
            process.http.event_hooks["response"].append(documented.check_now)
        service = RunningService(bridge, topics, api, other, strict, engine, document)
        yield service
        assert internal_errors(service.processes) == []


def internal_errors(processes: Iterable[BridgeProcess]) -> list[str]:
    """Bugs that processes met, by their logs: what was answered with 500, and stack traces."""
    lines = [line for process in processes for line in process.log.read_text().splitlines()]
    return [line[:2_000] for line in lines if "internal_error" in line or "Traceback" in line]


def lines_of(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """NDJSON."""
    return b"".join([json.dumps(document).encode() + b"\n" for document in documents])
