"""One principal at ten times its quota, at a real bridge: it is told to wait, and nobody else feels it."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx2
import pytest

from bridge.core.keyring import RANDOM_BYTES, make_key_text
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.problems import check_problem

RATE = 10  # requests a second of each principal
BURST = 2 * RATE
TIMES = 10
SENDERS = 8
EACH = BURST // 2 - 1  # transactions of a modest principal: never more than its quota, however fast it is
TAKEN = {200, 202}  # a commit: settled, or recorded
MODEST = [f"modest-{number}" for number in range(6)]


@dataclass(slots=True)
class Caller:
    """A principal, and a group of its name. `refused`: answers with 429."""

    url: str
    name: str
    topic: str
    headers: dict[str, str]
    prepared: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    refused: list[httpx2.Response] = field(default_factory=list)

    def open(self) -> httpx2.Client:
        """A connection of its own."""
        return httpx2.Client(base_url=self.url, headers=self.headers, timeout=60)

    def prepare(self, http: httpx2.Client) -> httpx2.Response:
        """One transaction."""
        body = {"producer_group": self.name, "messages": [{"topic": self.topic, "key": "k", "value": "v"}]}
        answer = http.post("/v1/transactions", json=body)
        if answer.status_code == 201:
            self.prepared.add(answer.json()["transaction_id"])
        if answer.status_code == 429:
            self.refused.append(answer)
        return answer

    def prepare_for_ever(self, is_over: Event) -> list[int]:
        """Whatever it is answered, until the process is gone; the statuses."""
        statuses = []
        with self.open() as http:
            while not is_over.is_set():
                try:
                    statuses.append(self.prepare(http).status_code)
                except httpx2.TransportError:
                    break
        return statuses

    def work(self, note_commit: Event | None = None) -> list[int]:
        """Some transactions, each prepared and committed, until the process is gone; the statuses."""
        statuses: list[int] = []
        with self.open() as http:
            for _ in range(EACH):
                try:
                    statuses.append((prepared := self.prepare(http)).status_code)
                    if statuses[-1] != 201:
                        continue
                    transaction_id = prepared.json()["transaction_id"]
                    statuses.append(http.post(f"/v1/transactions/{transaction_id}/commit", json={}).status_code)
                except httpx2.TransportError:
                    break
                if statuses[-1] in TAKEN:
                    self.committed.add(transaction_id)
                if note_commit is not None:
                    note_commit.set()
        return statuses


@dataclass(frozen=True, slots=True)
class Stage:
    """A bridge with keys and quotas, whose one process does everything."""

    bridge: Bridge
    admin: dict[str, str]
    topic: str

    def serve(self, rate: int = RATE) -> BridgeProcess:
        """With this quota."""
        return self.bridge.serve(OUTBOX_BRIDGE_QUOTAS__REQUESTS_PER_SECOND=str(rate))

    def make_caller(self, process: BridgeProcess, name: str) -> Caller:
        """With a right to its own group."""
        grants = [{"verbs": ["prepare", "decide"], "groups": name, "topics": "*"}]
        put = process.http.put(f"/v1/principals/{name}", json={"grants": grants}, headers=self.admin)
        assert put.status_code in {200, 201}, put.text
        made = process.post(f"/v1/principals/{name}/keys", {}, headers=self.admin)
        assert made.status_code == 201, made.text
        return Caller(process.url, name, self.topic, {"Authorization": f"Bearer {made.json()['key']}"})

    def find_visible(self) -> list[str | None]:
        """The transactions of all messages that consumers see."""
        return [record.transaction_id for record in read_committed(self.bridge.kafka, [self.topic])]

    def wait_visible(self, committed: set[str]) -> list[str]:
        """The same, in order of their names, once these are among them."""
        wait_until(lambda: committed <= set(self.find_visible()), 60, "commits")
        return sorted(map(str, self.find_visible()))

    def find_states(self, process: BridgeProcess, transaction_ids: set[str]) -> set[Any]:
        """What is known of them."""
        answers = [process.get(f"/v1/transactions/{one}", headers=self.admin) for one in transaction_ids]
        return {answer.json().get("state", answer.status_code) for answer in answers}


@pytest.fixture(scope="module")
def stage(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Set up, and not running yet."""
    admin = make_key_text(os.urandom(RANDOM_BYTES))
    bridge = Bridge.create(
        kafka,
        tmp_path_factory.mktemp("bridge"),
        OUTBOX_BRIDGE_INSECURE_NO_AUTH="false",
        OUTBOX_BRIDGE_AUTH__ADMIN_KEY=admin,
    )
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 2})
    return Stage(bridge, {"Authorization": f"Bearer {admin}"}, topic)


@contextmanager
def pressing(greedy: Caller, pool: ThreadPoolExecutor) -> Iterator[list[Future[list[int]]]]:
    """The greedy one goes on meanwhile, and is beyond its quota already."""
    is_over = Event()
    senders = [pool.submit(greedy.prepare_for_ever, is_over) for _ in range(SENDERS)]
    try:
        wait_until(lambda: greedy.refused, 60, "a refusal")
        yield senders
    finally:
        is_over.set()


def check_refusals(greedy: Caller) -> None:
    """Each says what was too much, and when to come again."""
    for answer in greedy.refused:
        check_problem(answer, 429, "rate-limited")
        again = answer.headers["retry-after"]
        assert int(again) >= 1
        assert answer.headers["ratelimit"] == f'"requests";r=0;t={again}'


def test_ten_times_a_quota_is_refused_and_nobody_else_is(stage: Stage) -> None:
    """Each refusal says when to come again. Others that keep to their quota are never refused, and lose nothing."""
    with stage.serve() as process, ThreadPoolExecutor(SENDERS + len(MODEST)) as pool:
        greedy, *modest = [stage.make_caller(process, name) for name in ("greedy", *MODEST)]
        began = time.monotonic()
        with pressing(greedy, pool) as senders:
            working = [pool.submit(caller.work) for caller in modest]
            answers = [status for future in working for status in future.result(120)]
            assert len(answers) == 2 * EACH * len(modest)
            assert set(answers) <= {201, *TAKEN}
            beside = len(greedy.refused)
            wait_until(lambda: len(greedy.refused) > max(beside, TIMES * BURST), 120, "ten times its quota")
        statuses = [status for future in senders for status in future.result(60)]
        assert set(statuses) == {201, 429}
        assert BURST <= len(greedy.prepared) <= BURST + RATE * (time.monotonic() - began) + 1
        check_refusals(greedy)
        committed = set[str]().union(*(caller.committed for caller in modest))
        assert len(committed) == EACH * len(modest)
        assert stage.wait_visible(committed) == sorted(committed)


def test_process_that_is_told_to_end_beside_such_a_load_loses_nothing(stage: Stage) -> None:
    """By itself, with exit code 0: what was acknowledged to anybody is visible once, or known to who comes next."""
    before = set(stage.find_visible())
    with stage.serve() as process, ThreadPoolExecutor(SENDERS + len(MODEST)) as pool:
        greedy, *modest = [stage.make_caller(process, f"drained-{name}") for name in ("greedy", *MODEST)]
        has_committed = Event()
        with pressing(greedy, pool):
            working = [pool.submit(caller.work, has_committed) for caller in modest]
            assert has_committed.wait(60)
            assert process.stop() == 0
        assert {status for future in working for status in future.result(60)} <= {200, 201, 202, 503}
    check_refusals(greedy)
    committed = set[str]().union(*(caller.committed for caller in modest))
    prepared = greedy.prepared.union(*(caller.prepared for caller in modest))
    assert committed
    with stage.serve(rate=100_000) as process:
        assert stage.find_states(process, committed) == {"COMMITTED"}
        assert stage.find_states(process, prepared - committed) <= {"PREPARED", "COMMITTED"}
        visible = [one for one in stage.wait_visible(committed) if one not in before]
    assert len(visible) == len(set(visible))
    assert committed <= set(visible) <= prepared
