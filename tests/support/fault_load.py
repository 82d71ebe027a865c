"""Producers that prepare and end transactions while things break, and go on asking until they know the truth.

with Load([process.url], topics, seed=7) as load:      # any process may be asked again
    load.wait_ended(200)                               # so many acknowledged so far
    ...                                                # break something
assert load.broken_promises(read_committed(kafka, topics)) == []
"""

import base64
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.support.bridge_process import Record, wait_until

GROUP = "load"
_PATIENCE_S = 60.0  # until a deed that was begun has its answer
_PAUSE_S = 0.05
Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(slots=True)
class Operation:
    """One transaction as its producer knows it."""

    body: dict[str, Any]
    contents: list[Content]
    resolution: str | None  # None: left undecided
    transaction_id: str | None = None
    ended: bool = False


@dataclass(slots=True)
class Ledger:
    """What all producers know."""

    deeds: list[Operation] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    repeats: int = 0  # calls whose outcome was unknown or refused, and were made again

    @property
    def ended(self) -> int:
        """Transactions whose end was acknowledged."""
        return sum(deed.ended for deed in self.deeds)


class Load:
    """Some producers, each in a thread, each with its own random numbers."""

    def __init__(self, urls: Sequence[str], topics: Sequence[str], *, seed: int, producers: int = 3) -> None:
        self.ledger = Ledger()
        self._urls = urls
        self._topics = topics
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        print(f"load seed {seed}")  # noqa: T201 - pytest shows it with a failure
        self._threads = [
            threading.Thread(target=self._produce, args=(number, random.Random(seed * 1_000 + number)), daemon=True)
            for number in range(producers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_ended(self, count: int, seconds: float = 60.0) -> None:
        """Until so many more ends have been acknowledged."""
        target = self.ledger.ended + count
        wait_until(lambda: self.ledger.ended >= target or self.ledger.surprises, seconds, f"{target} ends")
        assert not self.ledger.surprises, self.ledger.surprises[:5]

    def broken_promises(self, records: Iterable[Record]) -> list[str]:
        """Every acknowledged commit once, byte for byte; of all else nothing (L, P, D, I)."""
        seen: dict[str, Counter[Content]] = {}
        for record in records:
            assert record.transaction_id is not None, record
            headers = tuple(h for h in record.headers if h[0] != "transaction-id")
            seen.setdefault(record.transaction_id, Counter())[record.topic, record.key, record.value, headers] += 1
        wanted = {
            deed.transaction_id: Counter(deed.contents)
            for deed in self.ledger.deeds
            if deed.ended and deed.resolution == "COMMIT" and deed.transaction_id
        }
        lost = [f"{i}: {len(c)} wanted, {seen.get(i)} seen" for i, c in wanted.items() if seen.get(i) != c]
        invented = [f"{i}: nobody committed it" for i in seen if i not in wanted]
        return self.ledger.surprises + lost + invented

    # --- in a producer's thread ---

    def _produce(self, number: int, rng: random.Random) -> None:
        with httpx2.Client(timeout=20) as http:
            producer = _Producer(self._urls, http, rng, self.ledger, f"{number}-{rng.getrandbits(32)}")
            while not self._stopping.is_set():
                deeds = [producer.draft(self._topics) for _ in range(rng.randint(1, 20))]
                with self._lock:
                    self.ledger.deeds += deeds
                try:
                    producer.prepare(deeds)
                    producer.end(deeds)
                except AssertionError as error:
                    self.ledger.surprises.append(str(error))
                    return


class _Producer:
    """Repeats whatever was not answered for certain, at whichever process answers."""

    def __init__(self, urls: Sequence[str], http: httpx2.Client, rng: random.Random, ledger: Ledger, name: str) -> None:
        self._urls = urls
        self._http = http
        self._rng = rng
        self._ledger = ledger
        self._name = name
        self._count = 0

    def draft(self, topics: Sequence[str]) -> Operation:
        """One to three messages with everything that could be mixed up."""
        rng = self._rng
        self._count += 1
        contents = [self._content(rng.choice(topics)) for _ in range(rng.choice((1, 1, 2, 3)))]
        body = {
            "producer_group": GROUP,
            "messages": [_message(content) for content in contents],
            "idempotency_key": f"{self._name}-{self._count}",
        }
        return Operation(body, contents, rng.choices(("COMMIT", "ROLLBACK", None), (75, 20, 5))[0])

    def prepare(self, deeds: Sequence[Operation]) -> None:
        """Until each has its id; some ask once more although they know."""
        open_deeds = list(deeds)
        repeated = self._rng.sample(open_deeds, len(open_deeds) // 5)
        give_up_at = time.monotonic() + _PATIENCE_S
        while open_deeds:
            assert time.monotonic() < give_up_at, f"not prepared in time: {open_deeds[0].body}"
            self._prepare_once(open_deeds)
            open_deeds = [deed for deed in open_deeds if deed.transaction_id is None]
            self._ledger.repeats += len(open_deeds)
        if repeated:
            self._prepare_once(repeated)

    def _prepare_once(self, deeds: Sequence[Operation]) -> None:
        """The key makes the call repeatable: the same transaction, wherever it is asked."""
        results = self._call("/v1/transactions/batch", {"transactions": [deed.body for deed in deeds]})
        for deed, result in zip(deeds, results, strict=True):
            if result["status"] in {200, 201}:
                assert deed.transaction_id in {None, result["transaction_id"]}, (deed.transaction_id, result)
                deed.transaction_id = result["transaction_id"]
            else:
                assert result["status"] in {503, 504}, result

    def end(self, deeds: Sequence[Operation]) -> None:
        """Until each has its end; some ask once more although they know."""
        open_deeds = [deed for deed in deeds if deed.resolution is not None]
        repeated = self._rng.sample(open_deeds, len(open_deeds) // 5)
        give_up_at = time.monotonic() + _PATIENCE_S
        while open_deeds:
            assert time.monotonic() < give_up_at, f"not ended in time: {open_deeds[0].transaction_id}"
            self._end_once(open_deeds)
            open_deeds = [deed for deed in open_deeds if not deed.ended]
            self._ledger.repeats += len(open_deeds)
        if repeated:
            self._end_once(repeated)

    def _end_once(self, deeds: Sequence[Operation]) -> None:
        ends = [{"transaction_id": deed.transaction_id, "resolution": deed.resolution} for deed in deeds]
        for deed, result in zip(deeds, self._call("/v1/resolutions", {"resolutions": ends}), strict=True):
            self._note(deed, result)

    def _note(self, deed: Operation, result: dict[str, Any]) -> None:
        if result["status"] == 200:
            wanted = "COMMITTED" if deed.resolution == "COMMIT" else "ROLLED_BACK"
            assert result["state"] == wanted, result
            assert deed.resolution != "COMMIT" or len(result["receipts"]) == len(deed.contents), result
            deed.ended = True
        else:
            assert result["status"] in {202, 503, 504}, result

    def _call(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The results; as many of status 503 when nobody answered."""
        count = len(next(iter(body.values())))
        try:
            reply = self._http.post(self._rng.choice(self._urls) + path, json=body)
        except httpx2.TransportError:
            reply = None
        if reply is not None and reply.status_code == 200:
            results: list[dict[str, Any]] = reply.json()["results"]
            return results
        assert reply is None or reply.status_code in {503, 504}, reply.text
        time.sleep(_PAUSE_S)  # back-off of a client, not a wait for anything
        return [{"status": 503}] * count

    def _content(self, topic: str) -> Content:
        rng = self._rng
        names = rng.choices(("source", "trace", "Ünïcode"), k=rng.randint(0, 4))
        headers = tuple((name, rng.choice((None, b"", rng.randbytes(9)))) for name in names)
        key = rng.choice((None, b"", b"k%d" % rng.randint(0, 50), rng.randbytes(4)))
        value = rng.choice((None, b"", rng.randbytes(rng.randint(1, 400)), rng.randbytes(40)))
        return topic, key, value, headers


def _message(content: Content) -> dict[str, Any]:
    topic, key, value, headers = content
    named = {"topic": topic, "headers_base64": [[name, _encode(each)] for name, each in headers]}
    return named | _member("key", key) | _member("value", value)


def _member(name: str, raw: bytes | None) -> dict[str, Any]:
    return {name: None} if raw is None else {f"{name}_base64": _encode(raw)}


def _encode(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
