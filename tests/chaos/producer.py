"""A producer process: prepares, runs local transactions, ends them or does not, and asks until it knows.

python -m tests.chaos.producer RUN_FILE NAME
"""

import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from tests.chaos.operations import Fate, Operation, draft
from tests.chaos.orders import DOUBTFUL, MOODY, STEADY, RunFile
from tests.chaos.recorded_calls import BridgeClient, Recorder, Wanted, is_unknown, may_succeed
from tests.chaos.shop import COMMIT, ROLLBACK, UNKNOWN, Shop
from tests.support.history.events import Call, End, Ok

_PAUSE_S = 0.3  # a client's back-off
_PATIENCE_S = 120.0  # after the last fault, when everything due must soon be decided
_FORGETTING = 0.1  # how often something is asked again although the answer came
_BEHIND_S = 30.0  # what an outage cost is made up for, but no more
_CALLS = {COMMIT: Call.COMMIT, ROLLBACK: Call.ROLLBACK, UNKNOWN: Call.UNKNOWN}
_OPPOSITE = {COMMIT: ROLLBACK, ROLLBACK: COMMIT}
_WORDS = {COMMIT: "commit", ROLLBACK: "rollback"}
_FINAL = {"COMMITTED": COMMIT, "ROLLED_BACK": ROLLBACK}


class Worker:
    """One thread of a producer."""

    def __init__(self, run: RunFile, recorder: Recorder, number: int, stopping: threading.Event) -> None:
        self.prepared = 0
        self._run = run
        self._name = f"{recorder.name}.{number}"
        self._rng = random.Random(f"{run.seed} {self._name}")
        self._recorder = recorder
        self._stopping = stopping
        self._seconds_each = run.workers / run.rate

    def work(self) -> None:
        """Until it is to stop; what was begun is brought to its end."""
        shops = {group: Shop(self._run.database(group)) for group in (STEADY, MOODY, DOUBTFUL)}
        client = BridgeClient(self._recorder, self._run.urls, self._rng)
        numbers = iter(range(10**9))
        due = time.monotonic()
        while not self._stopping.is_set():
            count = 1 if self._rng.random() < self._run.singles else self._rng.randint(2, self._run.largest_batch)
            deeds = [draft(f"{self._name}-{next(numbers)}", self._run.topics, self._rng) for _ in range(count)]
            self._do(deeds, client, shops)
            due = max(due + count * self._seconds_each, time.monotonic() - _BEHIND_S)
            self._stopping.wait(max(0.0, due - time.monotonic()))
        client.close()

    def _do(self, deeds: Sequence[Operation], client: BridgeClient, shops: dict[str, Shop]) -> None:
        published = [deed for deed in deeds if deed.fate is Fate.PUBLISH]
        prepared = [deed for deed in deeds if deed.fate is not Fate.PUBLISH]
        for deed in prepared:
            if deed.fate is Fate.DOUBT:
                shops[deed.group].note([(deed.ref, UNKNOWN)])
        self._until_known(published, lambda some: self._make(Call.PUBLISH, some, client))
        self._until_known(prepared, lambda some: self._make(Call.PREPARE, some, client))
        begun = [deed for deed in prepared if deed.transaction_id is not None]
        self.prepared += len(begun) + len(published)
        for group in {deed.group for deed in begun}:
            _run_local(shops[group], [deed for deed in begun if deed.group == group])
        ended = [deed for deed in begun if deed.fate in {Fate.END, Fate.CONTRADICT}]
        for deed in ended:
            deed.is_open = True
            if deed.fate is Fate.CONTRADICT and self._rng.random() < 0.5:  # at the other instance, without waiting
                self._end_one(deed, _OPPOSITE[deed.resolution], client, headers={"Prefer": "respond-async"})
        self._until_known(ended, lambda some: self._end(some, client))
        for deed in ended:
            if deed.fate is Fate.CONTRADICT:
                self._end_one(deed, _OPPOSITE[deed.resolution], client)
        forgotten = [deed for deed in ended if deed.is_keyed]
        if forgotten and self._rng.random() < _FORGETTING:
            self._make(Call.PREPARE, forgotten, client)  # it is told what became of them

    def _until_known(self, deeds: Sequence[Operation], ask: Callable[[Sequence[Operation]], None]) -> None:
        is_repeated = self._rng.random() < _FORGETTING
        asked = list(deeds)
        give_up_at = math.inf
        while asked:
            ask(asked)
            asked = [deed for deed in asked if deed.is_open]
            if asked:
                time.sleep(_PAUSE_S)
            if self._stopping.is_set():
                give_up_at = min(give_up_at, time.monotonic() + _PATIENCE_S)
            if time.monotonic() > give_up_at:
                self._recorder.surprise(f"no truth within {_PATIENCE_S} s about {[deed.ref for deed in asked]}")
                return
        repeated = [deed for deed in deeds if deed.is_keyed and deed.transaction_id is not None]
        if is_repeated and repeated:
            ask(repeated)

    def _make(self, call: Call, deeds: Sequence[Operation], client: BridgeClient) -> None:
        """Prepares or publishes. One without a key is repeated only if it was refused; else its producer gives up."""
        path = "/v1/messages" if call is Call.PUBLISH else "/v1/transactions"
        wanted = [Wanted(call, deed.body, deed.members) for deed in deeds]
        ends = client.batch(f"{path}/batch", "transactions", wanted) if len(wanted) > 1 else [
            client.one(path, wanted[0])
        ]  # fmt: skip
        for deed, end in zip(deeds, ends, strict=True):
            if isinstance(end, Ok):
                deed.transaction_id = end.transaction_id
                if end.state in _FINAL:
                    deed.resolution = _FINAL[end.state]  # a back-check was faster; nothing is left to run
            deed.is_open = deed.is_keyed if is_unknown(end) else may_succeed(end)

    def _end(self, deeds: Sequence[Operation], client: BridgeClient) -> None:
        if len(deeds) == 1:
            _note_end(deeds[0], self._end_one(deeds[0], deeds[0].resolution, client))
            return
        wanted = [
            Wanted(_CALLS[deed.resolution], {"transaction_id": deed.transaction_id, "resolution": deed.resolution},
                   {"transaction_id": deed.transaction_id})
            for deed in deeds
        ]  # fmt: skip
        for deed, end in zip(deeds, client.batch("/v1/resolutions", "resolutions", wanted), strict=True):
            _note_end(deed, end)

    def _end_one(self, deed: Operation, resolution: str, client: BridgeClient, **options: object) -> End:
        wanted = Wanted(_CALLS[resolution], {}, {"transaction_id": deed.transaction_id})
        return client.one(f"/v1/transactions/{deed.transaction_id}/{_WORDS[resolution]}", wanted, **options)


def _note_end(deed: Operation, end: End) -> None:
    deed.is_open = end.status in {0, 503, 504} or (end.status == 202 and not end.blocked)


def _run_local(shop: Shop, deeds: Sequence[Operation]) -> None:
    """The local transactions; one whose reference was barred, because a check came first, is rolled back."""
    running = [deed for deed in deeds if deed.fate is not Fate.FORGET]
    shop.note([(deed.ref, deed.resolution) for deed in running])
    stored = shop.read([deed.ref for deed in running])
    for deed in running:
        deed.resolution = stored[deed.ref]


def main() -> None:
    """Works until SIGTERM; its count stands in NAME.count."""
    run, name = RunFile.read(sys.argv[1]), sys.argv[2]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    recorder = Recorder(run.folder, name)
    workers = [Worker(run, recorder, number, stopping) for number in range(run.workers)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    count = os.open(run.folder / f"{name}.count", os.O_WRONLY | os.O_CREAT, 0o644)
    while any(thread.is_alive() for thread in threads):
        os.pwrite(count, b"%012d" % sum(worker.prepared for worker in workers), 0)
        time.sleep(0.2)
    os.pwrite(count, b"%012d" % sum(worker.prepared for worker in workers), 0)


if __name__ == "__main__":
    main()
