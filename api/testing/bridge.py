"""A running bridge in the hands of a test.

    def test_order_is_announced(outbox_bridge: OutboxBridge) -> None:
        outbox_bridge.create_topic("orders")
        ...                                             # the application, with outbox_bridge.url
        (message,) = outbox_bridge.published("orders")

It runs in a thread of its own, behind a socket on loopback; its methods block and belong to the test's thread.
"""

import asyncio
import inspect
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import httpx2

from api.services import TransactionCalls
from api.testing.app_server import AppServer
from api.testing.cut_ends import CutEnds
from api.testing.published import PublishedMessage, read_published
from api.testing.quiet_logs import quiet_logs
from bridge.store.message_store import MessageStore, TopicAdmin
from outbox import Bridge, TransactionState, TransactionView
from outbox.asgi import CheckApp
from outbox.check_handler import Answer, AsyncAnswer, AsyncCheckHandler, CheckHandler

T = TypeVar("T")

_CALL_S = 30.0
_LOOK_INTERVAL_S = 0.005


class OutboxBridge(ABC):
    """Started by a fixture, and stopped by it."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._ends: CutEnds | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._url = ""
        self._checks: dict[str, dict[str, object]] = {}
        self._apps = ExitStack()
        self._stack = ExitStack()
        self._logs = ExitStack()
        self._thread = threading.Thread(target=self._run, name="outbox-bridge", daemon=True)

    @property
    def url(self) -> str:
        """What the application under test takes as the bridge's address."""
        return self._url

    # --- topics ---

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Its name. One that is there already stays as it is."""
        self._in_loop(self._admin.create_topic(name, partitions, 1, {}))
        return name

    def published(self, topic: str, *, at_least: int = 0, wait_seconds: float = 5.0) -> list[PublishedMessage]:
        """What `read_committed` consumers find in a topic, partition by partition.

        Waits for `at_least` so many; raises AssertionError if they do not come in time.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            found = self._read(topic)
            assert found is not None, f"there is no topic {topic}: outbox_bridge.create_topic({topic!r}) makes one"
            if len(found) >= at_least:
                return found
            assert time.monotonic() < deadline, (
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
    def kill_before_commit(self) -> Iterator[list[str]]:
        """In the block every producer seems to die between its local commit and the end of its transaction.

        The application lives on: its end calls do not get through, and it leaves the rest to the back-check, as it
        would after a lost connection. Gives the ids of the transactions that were left so; raises AssertionError
        if there was none.
        """
        assert self._ends is not None
        with self._ends.cut() as cut:
            yield cut
        assert cut, "no producer came to the end of a transaction inside kill_before_commit()"

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
        return self._apps.enter_context(AppServer(app)).url

    def answer_checks(self, producer_group: str, answer: Answer | AsyncAnswer) -> str:
        """Answers the group's checks as the application's endpoint would; where.

        `answer`: as for CheckHandler or AsyncCheckHandler, such as `TransactionRecord().answers(engine)`.
        """
        secret = self.create_group(producer_group)
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
        deadline = time.monotonic() + wait_seconds
        while waiting:
            self._await_first_due([*waiting.values()])
            for name, before in [*waiting.items()]:
                if self._is_answered(before):
                    del waiting[name]
            for name in [*waiting][:1]:
                told = self._read_silence(name)
                assert told == silence[name], f"nobody has answered the check of {name}: {told[-1]}"
                assert time.monotonic() < deadline, f"{name} was not asked about in {wait_seconds:g} s"
            time.sleep(_LOOK_INTERVAL_S)
        return [self.get(view.transaction_id) for view in pending]

    # --- for fixtures ---

    def start(self) -> None:
        """Returns when it takes calls. Raises what kept it from starting."""
        self._logs.enter_context(quiet_logs())
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            self._logs.close()
            raise self._error
        self._http = self._stack.enter_context(
            # an empty context: certificates take long to load, and loopback has none
            httpx2.Client(
                base_url=self.url, timeout=_CALL_S, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        )
        self._face = self._stack.enter_context(Bridge(self.url, "outbox-bridge-tests"))

    def stop(self) -> None:
        """Everything it has started ends."""
        self._apps.close()
        self._stack.close()
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CALL_S)
        self._logs.close()

    @property
    @abstractmethod
    def _store(self) -> MessageStore: ...

    @property
    @abstractmethod
    def _admin(self) -> TopicAdmin: ...

    @abstractmethod
    async def _serve(self) -> None:
        """Sets `_loop` and `_stop`, calls `_note_started` when calls are taken, and serves until `_stop`."""

    @abstractmethod
    def _await_first_due(self, waiting: Sequence[TransactionView]) -> None:
        """Returns when the first of these is due, or earlier."""

    def _read(self, topic: str) -> list[PublishedMessage] | None:
        """What is in a topic; None if it is not there."""
        return self._in_loop(read_published(self._store, self._admin, topic))

    def _default_check(self) -> dict[str, object]:
        """Check settings of groups made here."""
        return {}

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
        finally:
            self._ready.set()

    def _put_between(self, calls: TransactionCalls) -> TransactionCalls:
        self._ends = CutEnds(calls)
        return self._ends

    def _note_started(self, url: str) -> None:
        self._url = url
        self._ready.set()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

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
        """Lists may be a moment old, a 404 is not: each queue's is waited for."""
        for queue_id in range(self._queues):
            self._http.get(f"/v1/transactions/{queue_id:02}{'7' * 25}0")
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
        """What the timeline tells of rounds in which nobody answered."""
        events = self._call("GET", f"/v1/transactions/{transaction_id}/timeline")["events"]
        return [event for event in events if event["type"] == "check_unanswered"]


def _make_handler(secret: str, answer: Answer | AsyncAnswer) -> CheckHandler | AsyncCheckHandler:
    called = answer if inspect.isroutine(answer) else type(answer).__call__
    if inspect.iscoroutinefunction(called):
        return AsyncCheckHandler([secret], answer)  # type: ignore[arg-type]  # it is one
    return CheckHandler([secret], answer)  # type: ignore[arg-type]
