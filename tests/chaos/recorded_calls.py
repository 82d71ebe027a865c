"""Calls of the bridge's API that leave nothing out of the history: an invoke before, what was heard after."""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx2
import msgspec

from api.web.guard import MARK
from tests.support.history.events import Call, End, Fail, Invoke, Unknown, make_end
from tests.support.history.lines import LineWriter

TIMEOUT_S = 15.0
_EXPECTED = {200, 201, 202, 409, 413, 422, 503, 504}  # whether a refusal has its reason, the history checker knows


def now_ms() -> int:
    """The clock of all clients, endpoints and brokers of this machine."""
    return time.time_ns() // 1_000_000


class Surprise(msgspec.Struct):
    """An answer that no fault explains."""

    at_ms: int
    what: str


class Wanted(NamedTuple):
    """One call: what is sent, and what the history says of it."""

    call: Call
    body: dict[str, Any]
    members: Mapping[str, Any]

    def invoke(self, call_id: str) -> Invoke:
        return Invoke(call_id, now_ms(), self.call, **self.members)


class Recorder:
    """The history of one client: a file of events, and one of surprises that exists only if there is one."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name = name
        self._history = LineWriter(folder / f"{name}.history.jsonl")
        self._surprises = folder / f"{name}.surprises.jsonl"
        self._numbers = itertools.count()

    def begin(self, wanted: Wanted) -> str:
        """Before the call is sent; its call id."""
        call_id = f"{self.name}-{next(self._numbers)}"
        self._history.write(wanted.invoke(call_id))
        return call_id

    def end(self, call_id: str, status: int, body: Mapping[str, Any] | None) -> End:
        """After the answer, or for want of one."""
        end = make_end(call_id, now_ms(), status, body)
        self._history.write(end)
        if status and status not in _EXPECTED:
            self.surprise(f"{call_id}: {status} {body}")
        return end

    def surprise(self, what: str) -> None:
        """Keeps what should not have happened."""
        LineWriter(self._surprises).write(Surprise(now_ms(), what))


class BridgeClient:
    """One connection pool of one thread, to whichever api process answers."""

    def __init__(self, recorder: Recorder, urls: Sequence[str], choice: random.Random) -> None:
        self.recorder = recorder
        self._urls = urls
        self._choice = choice
        self._http = httpx2.Client(headers={MARK: "1"}, timeout=TIMEOUT_S)

    def batch(self, path: str, member: str, wanted: Sequence[Wanted]) -> list[End]:
        """Many in one request, each with an end of its own."""
        call_ids = [self.recorder.begin(each) for each in wanted]
        status, body = self._post(path, {member: [each.body for each in wanted]})
        if status == 200 and body is not None:
            items = [(item["status"], item.get("problem", item)) for item in body["results"]]
        else:
            items = [(status, body)] * len(wanted)
        return [self.recorder.end(i, *item) for i, item in zip(call_ids, items, strict=True)]

    def one(self, path: str, wanted: Wanted, **options: Any) -> End:
        """A call of its own."""
        call_id = self.recorder.begin(wanted)
        return self.recorder.end(call_id, *self._post(path, wanted.body, **options))

    def get(self, path: str, wanted: Wanted | None = None) -> tuple[int, dict[str, Any] | None]:
        """Status and body; kept in the history if `wanted` is given."""
        call_id = self.recorder.begin(wanted) if wanted else None
        status, body = self._send(lambda url: self._http.get(url + path))
        if call_id is not None:
            self.recorder.end(call_id, status, body)
        return status, body

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: Any, **options: Any) -> tuple[int, dict[str, Any] | None]:
        return self._send(lambda url: self._http.post(url + path, json=body, **options))

    def _send(self, send: Callable[[str], httpx2.Response]) -> tuple[int, dict[str, Any] | None]:
        """Status 0: nobody answered; where nobody could be reached either, it was not applied."""
        try:
            reply = send(self._choice.choice(self._urls))
            return reply.status_code, reply.json()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return 0, {"type": "not-sent", "outcome": "not_applied"}
        except httpx2.TransportError:
            return 0, None


def is_unknown(end: End) -> bool:
    """Whether only a repeat tells the truth: nothing was heard, or it may come to be."""
    return isinstance(end, Unknown) and end.status in {0, 503, 504}


def may_succeed(end: End) -> bool:
    """Whether it was not applied now, and a repeat may be taken."""
    return isinstance(end, Fail) and end.status in {0, 503}
