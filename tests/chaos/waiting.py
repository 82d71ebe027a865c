"""Many transactions that wait for their end together: while every settler starts anew, or for a commit that blocks."""

import random
import time
from collections.abc import Callable, Iterable, Sequence

from bridge.core.message import Message
from tests.chaos.fleet import Fleet
from tests.chaos.orders import WAITING, RunFile
from tests.chaos.recorded_calls import BridgeClient, Recorder, Wanted, is_unknown, may_succeed, now_ms
from tests.chaos.shop import COMMIT, ROLLBACK
from tests.support.history.content import make_content
from tests.support.history.events import Call

_BATCH = 1_000
_PAUSE_S = 0.1
_PATIENCE_S = 300.0
_CALLS = {COMMIT: Call.COMMIT, ROLLBACK: Call.ROLLBACK}


class WaitingRoom:
    """A client that prepares in masses and ends all later, in one way. A call is repeated until its outcome is known.

    `name`: of the client, and in its idempotency keys. One message a transaction, to the topics in turn.
    """

    def __init__(self, run: RunFile, name: str, topics: Sequence[str], value: str) -> None:
        self._name = name
        self._topics = topics
        self._value = value
        self._client = BridgeClient(Recorder(run.folder, name), run.urls, random.Random(run.seed))
        self._ids: list[str] = []

    def fill(self, count: int, is_stopping: Callable[[], bool]) -> int:
        """Prepares so many, those that are refused for now too; the number that wait now."""
        for start in range(0, count, _BATCH):
            asked = [self._prepare(number) for number in range(start, min(start + _BATCH, count))]
            give_up_at = time.monotonic() + _PATIENCE_S
            while asked and not is_stopping():
                ends = self._client.batch("/v1/transactions/batch", "transactions", asked)
                made = [end.transaction_id if end.status in {200, 201} else None for end in ends]
                self._ids += [transaction_id for transaction_id in made if transaction_id]
                asked = [each for each, transaction_id in zip(asked, made, strict=True) if not transaction_id]
                _pause(asked, give_up_at)
        return len(self._ids)

    def end(self, resolution: str) -> None:
        """Commits all, or rolls all back; a commit may be blocked."""
        for start in range(0, len(self._ids), _BATCH):
            asked = [_end(each, resolution) for each in self._ids[start : start + _BATCH]]
            give_up_at = time.monotonic() + _PATIENCE_S
            while asked:
                ends = self._client.batch("/v1/resolutions", "resolutions", asked)
                asked = [each for each, end in zip(asked, ends, strict=True) if is_unknown(end) or may_succeed(end)]
                _pause(asked, give_up_at)

    def has_abandoned(self) -> bool:
        """Whether somebody has abandoned one of them."""
        looks = ((each, Wanted(Call.GET, {}, {"transaction_id": each})) for each in self._ids)
        shown = (self._client.get(f"/v1/transactions/{each}", wanted) for each, wanted in looks)
        return any(status == 200 and body is not None and body.get("abandoned", False) for status, body in shown)

    def close(self) -> None:
        self._client.close()

    def _prepare(self, number: int) -> Wanted:
        message = Message(self._topics[number % len(self._topics)], b"w%d" % number, self._value.encode())
        body = {
            "producer_group": WAITING,
            "messages": [{"topic": message.topic, "key": f"w{number}", "value": self._value}],
            "idempotency_key": f"{self._name}-{number}",
        }
        members = {
            "group": WAITING, "messages": (make_content(message),), "idempotency_key": body["idempotency_key"],
        }  # fmt: skip
        return Wanted(Call.PREPARE, body, members)


def _pause(asked: Sequence[Wanted], give_up_at: float) -> None:
    if asked:
        assert time.monotonic() < give_up_at, f"no answer about {len(asked)}, the first is {asked[0].body}"
        time.sleep(_PAUSE_S)


def _end(transaction_id: str, resolution: str) -> Wanted:
    body = {"transaction_id": transaction_id, "resolution": resolution}
    return Wanted(_CALLS[resolution], body, {"transaction_id": transaction_id})


def restart_settlers(fleet: Fleet) -> int:
    """All leave their group in peace and start again; the time of the start."""
    fleet.stop("settler")
    at_ms = now_ms()
    for slot in fleet.slots:
        if slot.role == "settler":
            fleet.start(slot)
    return at_ms


def slowest(times: Iterable[float | None]) -> float | None:
    """None if one of them never came."""
    known = list(times)
    return None if None in known or not known else max(time for time in known if time is not None)
