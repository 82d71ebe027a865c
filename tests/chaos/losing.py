"""A load whose log is lost under it, and what must be true of each of its transactions afterwards.

load = Load(process.url, "orders")
with load.running():
    ...                                                 # lose a topic
told = ids that `migrate --accept-identity` told of
load.finish(told)                                       # all that is open is ended now, all keyed calls are repeated
assert judge(load.deeds, told, records) == []
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from api.web.guard import MARK
from tests.support.bridge_process import Record, wait_until

GROUP = "shop"
_LINES = 6
_TIMEOUT_S = 20.0
_LEFT_OPEN = 0.3
_PATIENCE_S = 60.0
_LAG_S = 3.0


@dataclass(slots=True)
class Deed:
    """A transaction of one message. `acked_s`: of the machine's monotonic clock; `ended`: the state that an end was
    answered with; `refused`: its last end was."""

    value: str
    key: str | None
    transaction_id: str | None = None
    acked_s: float | None = None
    wanted: str | None = None
    ended: str | None = None
    refused: str | None = None


class Load:
    """Clients that prepare and end, or leave open, until they are to stop. Nothing is repeated before `finish`."""

    def __init__(self, url: str, topic: str, seed: int) -> None:
        self.deeds: list[Deed] = []
        self.refusals = 0  # 503 with `not_applied`
        self._url = url
        self._topic = topic
        self._seed = seed
        self._stopping = threading.Event()
        self._numbers = itertools.count()

    def find_unseen(self, lost_s: float, remade_s: float) -> set[str]:
        """What was acknowledged so shortly before the loss that the projection need not have read it.

        `lost_s`, `remade_s`: when the deletion began, and when the new topic was there.
        """
        acked = [(deed.transaction_id, deed.acked_s) for deed in self.deeds]
        return {name for name, at_s in acked if name and at_s is not None and lost_s - _LAG_S < at_s < remade_s}

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs."""
        self._stopping.clear()
        lines = [threading.Thread(target=self._work, args=(number,)) for number in range(_LINES)]
        for line in lines:
            line.start()
        try:
            yield
        finally:
            self._stopping.set()
            for line in lines:
                line.join()

    def wait_acked(self, count: int) -> None:
        """Until so many more prepares were acknowledged."""
        wanted = self._count_acked() + count
        wait_until(lambda: self._count_acked() >= wanted, _PATIENCE_S, f"{count} more prepares")

    def finish(self, told: Collection[str] = ()) -> None:
        """Commits all that is open, as often as it takes until the bridge knows; then repeats all keyed prepares.

        Of what was given up (`told`) nobody need know anything: it is tried once.
        """
        with httpx2.Client(base_url=self._url, headers={MARK: "1"}, timeout=_TIMEOUT_S) as http:
            for deed in self.deeds:
                if deed.acked_s is not None and deed.ended is None and deed.transaction_id in told:
                    self._end(http, deed, "COMMIT")
                elif deed.acked_s is not None and deed.ended is None:
                    wait_until(lambda deed=deed: self._end(http, deed, "COMMIT"), _PATIENCE_S, f"end of {deed}")
            for deed in [deed for deed in self.deeds if deed.key and deed.acked_s is not None]:
                if deed.transaction_id in told:
                    self._repeat(http, deed)
                    continue
                wait_until(lambda deed=deed: self._repeat(http, deed), _PATIENCE_S, f"repeat of {deed}")

    def _count_acked(self) -> int:
        return sum(deed.acked_s is not None for deed in self.deeds)

    def _work(self, number: int) -> None:
        choice = random.Random(f"{self._seed} {number} {next(self._numbers)}")
        with httpx2.Client(base_url=self._url, headers={MARK: "1"}, timeout=_TIMEOUT_S) as http:
            while not self._stopping.is_set():
                name = f"d{next(self._numbers)}"
                deed = Deed(name, name if choice.random() < 0.5 else None)
                self.deeds.append(deed)
                self._prepare(http, deed)
                if deed.acked_s is None:
                    self._stopping.wait(0.05)
                elif choice.random() > _LEFT_OPEN:
                    self._end(http, deed, choice.choice(("COMMIT", "COMMIT", "ROLLBACK")))

    def _prepare(self, http: httpx2.Client, deed: Deed) -> None:
        status, told = _post(http, "/v1/transactions", self._body_of(deed))
        self.refusals += status == 503 and told.get("outcome") == "not_applied"
        deed.transaction_id = told.get("transaction_id") or deed.transaction_id
        if status in {200, 201}:
            deed.acked_s = time.monotonic()

    def _end(self, http: httpx2.Client, deed: Deed, resolution: str) -> bool:
        """Whether it is known now how it went."""
        deed.wanted = deed.wanted or resolution
        path = f"/v1/transactions/{deed.transaction_id}/{deed.wanted.lower()}"
        status, told = _post(http, path, {})
        if status == 200:
            deed.ended, deed.refused = told["state"], None
            return True
        deed.refused = f"{status} {told.get('type')}"
        return status not in {503, 504, 0, 202}

    def _repeat(self, http: httpx2.Client, deed: Deed) -> bool:
        """The same prepare once more; where it made a new transaction, that one is committed."""
        status, told = _post(http, "/v1/transactions", self._body_of(deed))
        if status in {503, 504, 0}:
            return False
        if status == 201:
            again = Deed(deed.value, None, told["transaction_id"], time.monotonic())
            deed.wanted = "COMMIT"  # whatever was wanted of the one that is lost
            wait_until(lambda: self._end(http, again, "COMMIT"), _PATIENCE_S, f"end of {again}")
        return True

    def _body_of(self, deed: Deed) -> dict[str, Any]:
        message = {"topic": self._topic, "key": "k", "value": deed.value}
        keyed = {"idempotency_key": deed.key} if deed.key else {}
        return {"producer_group": GROUP, "messages": [message], **keyed}


def judge(deeds: Sequence[Deed], told: Collection[str], records: Sequence[Record]) -> list[str]:
    """What is wrong: published twice, lost without a word, given up and yet decided, visible without a commit."""
    visible = Counter((record.value or b"").decode() for record in records)
    wrong = [f"{value} is visible {count} times" for value, count in visible.items() if count > 1]
    for deed in deeds:
        is_told = deed.transaction_id in told
        if deed.ended == "COMMITTED" and not visible[deed.value]:
            wrong.append(f"{deed} was answered COMMITTED, and cannot be read")
        if deed.ended == "ROLLED_BACK" and visible[deed.value]:
            wrong.append(f"{deed} was answered ROLLED_BACK, and can be read")
        if deed.wanted != "COMMIT" and visible[deed.value]:
            wrong.append(f"{deed} can be read, and nobody committed it")
        if deed.acked_s is not None and deed.ended is None and not visible[deed.value] and not is_told:
            wrong.append(f"{deed} was acknowledged, is gone, and nobody was told")
    return wrong


def _post(http: httpx2.Client, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status 0: nobody answered."""
    try:
        reply = http.post(path, json=body)
        told: dict[str, Any] = reply.json()
    except (httpx2.TransportError, ValueError):
        return 0, {}
    return reply.status_code, told
