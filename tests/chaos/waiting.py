"""Many transactions that nobody ends, while every settler starts anew."""

import random
import time
from collections.abc import Callable, Iterable

from bridge.core.message import Message
from tests.chaos.fleet import Fleet
from tests.chaos.orders import QUIET, WAITING, RunFile
from tests.chaos.recorded_calls import BridgeClient, Recorder, Wanted, is_unknown, may_succeed, now_ms
from tests.support.history.content import make_content
from tests.support.history.events import Call

_BATCH = 1_000
_PAUSE_S = 0.1


class WaitingRoom:
    """A client that prepares in masses and rolls all back in the end. A call is repeated until its outcome is known."""

    def __init__(self, run: RunFile) -> None:
        self._topics = list(QUIET)
        self._client = BridgeClient(Recorder(run.folder, "waiting"), run.urls, random.Random(run.seed))
        self._ids: list[str] = []

    def fill(self, count: int, is_stopping: Callable[[], bool]) -> int:
        """Prepares so many; the number that wait now."""
        for start in range(0, count, _BATCH):
            asked = [self._prepare(number) for number in range(start, min(start + _BATCH, count))]
            while asked and not is_stopping():
                ends = self._client.batch("/v1/transactions/batch", "transactions", asked)
                self._ids += [end.transaction_id for end in ends if end.transaction_id and end.status in {200, 201}]
                asked = [each for each, end in zip(asked, ends, strict=True) if is_unknown(end) or may_succeed(end)]
                time.sleep(_PAUSE_S if asked else 0)
        return len(self._ids)

    def empty(self) -> None:
        """Rolls all back."""
        for start in range(0, len(self._ids), _BATCH):
            asked = self._ids[start : start + _BATCH]
            while asked:
                wanted = [_roll_back(transaction_id) for transaction_id in asked]
                ends = self._client.batch("/v1/resolutions", "resolutions", wanted)
                asked = [each for each, end in zip(asked, ends, strict=True) if is_unknown(end) or may_succeed(end)]
                time.sleep(_PAUSE_S if asked else 0)

    def close(self) -> None:
        self._client.close()

    def _prepare(self, number: int) -> Wanted:
        message = Message(self._topics[number % len(self._topics)], b"w%d" % number, b"waits")
        body = {
            "producer_group": WAITING,
            "messages": [{"topic": message.topic, "key": f"w{number}", "value": "waits"}],
            "idempotency_key": f"waiting-{number}",
        }
        members = {
            "group": WAITING, "messages": (make_content(message),), "idempotency_key": body["idempotency_key"],
        }  # fmt: skip
        return Wanted(Call.PREPARE, body, members)


def _roll_back(transaction_id: str) -> Wanted:
    body = {"transaction_id": transaction_id, "resolution": "ROLLBACK"}
    return Wanted(Call.ROLLBACK, body, {"transaction_id": transaction_id})


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
