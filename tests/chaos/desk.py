"""The operators' desk: looks after parked and blocked transactions, reads single ones, keeps the groups' counts.

python -m tests.chaos.desk RUN_FILE NAME
"""

import random
import signal
import sys
import threading
from typing import Any

from tests.chaos.operations import ref_of
from tests.chaos.orders import RunFile
from tests.chaos.recorded_calls import BridgeClient, Recorder, Wanted, is_unknown, now_ms
from tests.chaos.shop import COMMIT, ROLLBACK, Shop
from tests.support.history.events import Call
from tests.support.history.evidence import CountsRow
from tests.support.history.lines import LineWriter

_PAUSE_S = 0.5
_READS = 5  # transactions looked at in each turn
_GIVEN_UP = 0.6  # share of the blocked commits that are abandoned
_FORCED = {COMMIT: Call.FORCE_COMMIT, ROLLBACK: Call.FORCE_ROLLBACK}

Json = dict[str, Any]


class Desk:
    """What one operator does, turn by turn."""

    def __init__(self, run: RunFile, name: str) -> None:
        self._run = run
        self._rng = random.Random(f"{run.seed} {name}")
        self._client = BridgeClient(Recorder(run.folder, name), run.urls, self._rng)
        self._counts = LineWriter(run.folder / f"{name}.counts.jsonl")
        self._decided: dict[str, tuple[str, str]] = {}  # what is to be done with each parked one
        self._done: set[str] = set()

    def turn(self) -> None:
        """One look at everything."""
        self._note_counts()
        self._read_some()
        for transaction_id in self._list("/v1/transactions?blocked=true&limit=100"):
            self._give_up(transaction_id)
        for transaction_id in self._list("/v1/parked?limit=100"):
            if transaction_id not in self._done:
                self._look_after(transaction_id)

    def close(self) -> None:
        self._client.close()

    def _list(self, path: str) -> list[str]:
        _, page = self._client.get(path)
        return [shown["transaction_id"] for shown in (page or {}).get("transactions", ())]

    def _give_up(self, transaction_id: str) -> None:
        """Abandons some, whatever becomes of their topics; what it did not hear of it does again."""
        drawn = self._rng.random() < _GIVEN_UP
        if self._decided.setdefault(transaction_id, ("abandon" if drawn else "wait", ""))[0] == "abandon":
            wanted = Wanted(Call.ABANDON, {"reason": "chaos"}, {"transaction_id": transaction_id})
            self._client.one(f"/v1/transactions/{transaction_id}/abandon", wanted)

    def _look_after(self, transaction_id: str) -> None:
        """Resumes it after its group has found out, decides by force, or leaves it for ever."""
        drawn = (self._rng.choice(("leave", "resume", "force", "force")), self._rng.choice((COMMIT, ROLLBACK)))
        act, resolution = self._decided.setdefault(transaction_id, drawn)
        if act == "leave":
            self._done.add(transaction_id)
            return
        if act == "resume" and not self._find_out(transaction_id, resolution):
            return
        body = {"reason": "chaos"} if act == "resume" else {"resolution": resolution, "reason": "chaos"}
        call = Call.RESUME if act == "resume" else _FORCED[resolution]
        end = self._client.one(
            f"/v1/transactions/{transaction_id}/{act}", Wanted(call, body, {"transaction_id": transaction_id})
        )
        if not is_unknown(end) and end.status:
            self._done.add(transaction_id)

    def _find_out(self, transaction_id: str, resolution: str) -> bool:
        """The group's database now has an answer."""
        status, shown = self._client.get(f"/v1/transactions/{transaction_id}?include=messages")
        if status != 200 or shown is None:
            return False
        shop = Shop(self._run.database(shown["producer_group"]))
        shop.settle(ref_of(shown["messages"]), resolution)
        shop.close()
        return True

    def _read_some(self) -> None:
        shown = self._list("/v1/transactions?limit=100")
        for transaction_id in self._rng.sample(shown, min(_READS, len(shown))):
            wanted = Wanted(Call.GET, {}, {"transaction_id": transaction_id})
            self._client.get(f"/v1/transactions/{transaction_id}", wanted)

    def _note_counts(self) -> None:
        status, stats = self._client.get("/v1/stats")
        if status != 200 or stats is None:
            return
        for row in counts_of(stats):
            self._counts.write(row)


def counts_of(stats: Json, *, is_last: bool = False) -> list[CountsRow]:
    """The counts of each group in an answer of /v1/stats."""
    names = ("prepared", "committed", "rolled_back", "parked", "pending", "blocked", "abandoned")
    return [
        CountsRow(now_ms(), group, is_last=is_last, **{name: counts[name] for name in names})
        for group, counts in stats["groups"].items()
    ]


def main() -> None:
    """Works until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    desk = Desk(RunFile.read(sys.argv[1]), sys.argv[2])
    while not stopping.wait(_PAUSE_S):
        desk.turn()
    desk.close()


if __name__ == "__main__":
    main()
