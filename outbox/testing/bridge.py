"""A running bridge in the hands of a test.

    def test_order_is_announced(outbox_bridge: MemoryOutboxBridge) -> None:
        outbox_bridge.create_topic("orders")
        ...                                             # the application, with outbox_bridge.url
        (message,) = outbox_bridge.published("orders")

The bridge runs in a process of its own, behind a socket on loopback; its methods block.
"""

import inspect
import json
import logging
import ssl
import time
from base64 import b64decode
from collections import UserList
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx2

from outbox import Bridge, TransactionState, TransactionView
from outbox.asgi import CheckApp
from outbox.check_handler import AsyncCheckHandler, CheckHandler
from outbox.client.checks import Answer, AsyncAnswer
from outbox.testing.process import AppServer, BridgeProcess


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """One message. `headers`: without the bridge's own, which is `transaction_id`."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    transaction_id: str | None

    def json(self) -> Any:  # noqa: ANN401 - what JSON holds
        """The value read as JSON; decimals keep their digits. Raises ValueError if it is none."""
        return json.loads(self.value or b"null", parse_float=Decimal)


def decode_published(topic: str, members: Mapping[str, Any]) -> PublishedMessage:
    """From the answer of the bridge's process, whose bytes are base64."""
    return PublishedMessage(
        topic,
        members["partition"],
        members["offset"],
        _decode(members["key"]),
        _decode(members["value"]),
        tuple((name, _decode(value)) for name, value in members["headers"]),
        members["transaction_id"],
    )


def _decode(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


_CALL_S = 30.0
_LOOK_INTERVAL_S = 0.005
_LONGEST_LOOK_S = 0.2
_QUEUES = 2  # of the bridge's process


def _now_s() -> float:
    """By a clock that goes on where a test stops the time, as with freezegun."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@contextmanager
def _shown_errors() -> Iterator[None]:
    """A check that fails in the application under test is logged with its traceback, which pytest shows."""
    log = logging.getLogger("outbox")
    before = log.level
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)


class OutboxBridge:
    """Opened by a fixture, and closed by it."""

    def __init__(self, process: BridgeProcess) -> None:
        self._process = process
        self._url = ""
        self._checks: dict[str, dict[str, object]] = {}
        self._apps = ExitStack()
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """What the application under test takes as the bridge's address."""
        return self._url

    # --- topics ---

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Its name. One that is there already stays as it is."""
        self._process.ask("create_topic", name=name, partitions=partitions)
        return name

    def published(self, topic: str, *, at_least: int = 0, wait_seconds: float = 5.0) -> list[PublishedMessage]:
        """What `read_committed` consumers find in a topic, partition by partition.

        Waits for `at_least` so many; raises AssertionError if they do not come in time.
        """
        deadline = _now_s() + wait_seconds
        while True:
            found = self._read(topic)
            assert found is not None, f"there is no topic {topic}: outbox_bridge.create_topic({topic!r}) makes one"
            if len(found) >= at_least:
                return found
            assert _now_s() < deadline, (
                f"{len(found)} of {at_least} messages in {topic} after {wait_seconds:g} s; "
                f"pending: {len(self.pending())}, parked: {len(self.parked())}"
            )
            time.sleep(_LOOK_INTERVAL_S)

    # --- transactions ---

    def pending(self, producer_group: str | None = None) -> list[TransactionView]:
        """Transactions that are prepared and have not ended."""
        return self._list(TransactionState.PREPARED, producer_group)

    def parked(self, producer_group: str | None = None) -> list[TransactionView]:
        """Transactions that wait for an operator: their checks were used up."""
        return self._list(TransactionState.PARKED, producer_group)

    def get(self, transaction_id: str) -> TransactionView:
        """One transaction as it is recorded now."""
        return self._face.get(transaction_id)

    @contextmanager
    def kill_before_commit(self) -> Iterator[MutableSequence[str]]:
        """In the block every producer seems to die between its local commit and the end of its transaction.

        The application lives on: its end calls do not get through, and it leaves the rest to the back-check, as it
        would after a lost connection. Gives the ids of the transactions that were left so; raises AssertionError
        if there was none.
        """
        self._process.ask("cut_ends")
        left = _LeftBehind(lambda: self._process.ask("read_cut"))
        try:
            yield left
        finally:
            left.freeze(self._process.ask("mend_ends"))
        assert left, "no producer came to the end of a transaction inside kill_before_commit()"

    # --- back-checks ---

    def create_group(self, producer_group: str, **check: object) -> str:
        """Its secret, for the application's check handler. `check`: settings of its checks, such as max_checks=3."""
        self._checks[producer_group] = {**self._default_check(), **check}
        saved = self._put_group(producer_group, [])
        if "secret" in saved:
            return str(saved["secret"])
        return str(self._call("POST", f"/v1/producer-groups/{producer_group}/rotate-secret")["secret"])

    def set_endpoint(self, producer_group: str, url: str) -> None:
        """Where the group is asked from now on; `serve` gives an application such a place."""
        self._put_group(producer_group, [url])

    def serve(self, app: object) -> str:
        """The URL at which an ASGI application is served from now on, in a thread with an event loop of its own."""
        self._apps.enter_context(_shown_errors())
        return self._apps.enter_context(AppServer(app)).url

    def answer_checks(self, producer_group: str, answer: Answer | AsyncAnswer) -> str:
        """Answers the group's checks as the application's endpoint would; where. Settings of `create_group` stay.

        `answer`: as for CheckHandler or AsyncCheckHandler, such as `TransactionRecord().answers(engine)`.
        """
        secret = self.create_group(producer_group, **self._checks.get(producer_group, {}))
        url = self.serve(CheckApp(_make_handler(secret, answer)))
        self.set_endpoint(producer_group, url)
        return url

    def run_checks(self, producer_group: str | None = None, *, wait_seconds: float = 10.0) -> list[TransactionView]:
        """Has each pending transaction asked about once, at once; returns them as they are after the answers.

        Raises AssertionError if nobody can be asked, or no answer comes.
        """
        pending = self.pending(producer_group)
        for group in {view.producer_group for view in pending}:
            self._assert_askable(group)
        waiting = {view.transaction_id: view for view in pending}
        silence = {name: self._read_silence(name) for name in waiting}
        deadline = _now_s() + wait_seconds
        while waiting:
            self._await_first_due([*waiting.values()])
            for name, before in [*waiting.items()]:
                if self._is_answered(before):
                    del waiting[name]
            for name in [*waiting][:1]:
                told = self._read_silence(name)
                if told != silence[name]:
                    why, where = told[-1]["failure"], told[-1].get("endpoint", "nowhere")
                    raise AssertionError(f"nobody has answered the check of {name}: {why}, from {where}")
                assert _now_s() < deadline, f"{name} was not asked about in {wait_seconds:g} s"
            time.sleep(_LOOK_INTERVAL_S)
        return [self.get(view.transaction_id) for view in pending]

    # --- for fixtures ---

    def open(self) -> None:
        """Returns when it takes calls. Raises BridgeFailed."""
        self._url = self._process.ask("open")
        self._http = self._stack.enter_context(
            # an empty context: certificates take long to load, and loopback has none
            httpx2.Client(
                base_url=self.url, timeout=_CALL_S, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        )
        self._face = self._stack.enter_context(Bridge(self.url, "outbox-bridge-tests"))

    def close(self) -> None:
        """Everything it has started ends."""
        self._apps.close()
        self._stack.close()
        self._process.ask("close")

    def _read(self, topic: str) -> list[PublishedMessage] | None:
        """What is in a topic; None if it is not there."""
        found = self._process.ask("read", topic=topic)
        return None if found is None else [decode_published(topic, members) for members in found]

    def _default_check(self) -> dict[str, object]:
        """Check settings of groups made here."""
        return {}

    def _await_due(self, due: datetime) -> None:
        """Returns at `due`, or earlier."""
        time.sleep(min(max((due - datetime.now(UTC)).total_seconds(), 0.0), _LONGEST_LOOK_S))

    def _await_first_due(self, waiting: Sequence[TransactionView]) -> None:
        dues = [view.next_check_at for view in waiting if view.next_check_at is not None]
        if dues:
            self._await_due(min(dues))

    def _call(self, method: str, target: str, document: object = None) -> dict[str, Any]:
        answer = self._http.request(method, target, json={} if document is None and method != "GET" else document)
        assert answer.is_success, f"{method} {target}: {answer.text}"
        members: dict[str, Any] = answer.json()
        return members

    def _put_group(self, group: str, urls: Sequence[str]) -> dict[str, Any]:
        check = self._checks.setdefault(group, self._default_check())
        return self._call(
            "PUT", f"/v1/producer-groups/{group}", {"endpoints": [{"url": url} for url in urls], "check": check}
        )

    def _list(self, state: TransactionState, group: str | None) -> list[TransactionView]:
        self._await_decided()
        wanted = {"state": state.value, "limit": "500", **({"producer_group": group} if group else {})}
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            answer = self._http.get("/v1/transactions", params={**wanted, **({"cursor": cursor} if cursor else {})})
            assert answer.is_success, answer.text
            page = answer.json()
            found += [listed["transaction_id"] for listed in page["transactions"]]
            cursor = page.get("next")
        return [self.get(transaction_id) for transaction_id in found]

    def _await_decided(self) -> None:
        """Lists may be a moment old, a 404 is not: each queue's is waited for."""
        for queue_id in range(_QUEUES):
            self._http.get(f"/v1/transactions/{queue_id:02}{'7' * 25}0")

    def _assert_askable(self, group: str) -> None:
        told = self._call("GET", f"/v1/producer-groups/{group}")
        assert told["check"]["mode"] == "pull" or told["endpoints"], (
            f"nobody can be asked for {group}: outbox_bridge.set_endpoint({group!r}, url) or "
            f"outbox_bridge.answer_checks({group!r}, answers) tells where"
        )

    def _is_answered(self, before: TransactionView) -> bool:
        view = self.get(before.transaction_id)
        return view.state is not TransactionState.PREPARED or view.check_times > before.check_times

    def _read_silence(self, transaction_id: str) -> list[dict[str, object]]:
        """The timeline's entry of rounds in which nobody answered."""
        events = self._call("GET", f"/v1/transactions/{transaction_id}/timeline")["events"]
        return [event for event in events if event["type"] == "check_unanswered"]


class MemoryOutboxBridge(OutboxBridge):
    """On an in-memory log: opened in milliseconds, empty for each test, and its time can be moved."""

    def let_time_pass(self, seconds: float) -> None:
        """As if so much time had passed for the bridge: what is due by then is done, its answers too.

        The machine's clock goes on as it did. Ten minutes take some seconds: much is done every second.
        """
        self._process.ask("move", for_ms=round(seconds * 1_000))
        self._await_decided()

    def _await_due(self, due: datetime) -> None:
        self._process.ask("move_to", until_ms=round(due.timestamp() * 1_000) + 1)


class KafkaOutboxBridge(OutboxBridge):
    """On a real Kafka: like the other, but nobody moves its time, and checks are due a second after the prepare.

    One for many tests: each sees what came since it began.
    """

    def __init__(self, process: BridgeProcess) -> None:
        super().__init__(process)
        self._earlier: frozenset[str] = frozenset()
        self._seen: dict[str, frozenset[tuple[int, int]]] = {}  # partition and offset, by topic

    @contextmanager
    def for_one_test(self) -> Iterator[None]:
        """What other tests left pending or published is not seen; what this one serves ends with it."""
        self._checks.clear()
        self._earlier = frozenset()
        self._earlier = frozenset(view.transaction_id for view in (*self.pending(), *self.parked()))
        self._seen = {name: self._find(name) for name in self._seen}
        try:
            yield
        finally:
            self._apps.close()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Its name. What an earlier test has published to it is not seen from now on."""
        super().create_topic(name, partitions)
        if name not in self._seen:
            self._seen[name] = self._find(name)
        return name

    def _read(self, topic: str) -> list[PublishedMessage] | None:
        found, seen = super()._read(topic), self._seen.get(topic, frozenset())
        return found and [message for message in found if (message.partition, message.offset) not in seen]

    def _find(self, topic: str) -> frozenset[tuple[int, int]]:
        return frozenset((message.partition, message.offset) for message in super()._read(topic) or ())

    def _list(self, state: TransactionState, group: str | None) -> list[TransactionView]:
        return [view for view in super()._list(state, group) if view.transaction_id not in self._earlier]

    def _default_check(self) -> dict[str, object]:
        return {"transaction_timeout_seconds": 1, "interval_seconds": 1}


class _LeftBehind(UserList[str]):
    """Ids of the transactions whose ends were cut off, as they come."""

    def __init__(self, read: Callable[[], list[str]]) -> None:
        self._read = read

    def freeze(self, ids: list[str]) -> None:
        """No more will come."""
        self._read = lambda: ids

    @property
    def data(self) -> list[str]:  # type: ignore[override]  # read anew at each look
        return self._read()


def _make_handler(secret: str, answer: Answer | AsyncAnswer) -> CheckHandler | AsyncCheckHandler:
    called = answer if inspect.isroutine(answer) else type(answer).__call__
    if inspect.iscoroutinefunction(called):
        return AsyncCheckHandler([secret], answer)  # type: ignore[arg-type]  # it is one
    return CheckHandler([secret], answer)  # type: ignore[arg-type]
