"""What `dev` says about transactions while it runs: a line for what a newcomer would otherwise look for."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from api.cli.http_calls import call, quoted
from api.cli.output import CommandFailed, Row
from api.cli.transactions import has_ended
from bridge.core.transaction import TransactionState

_LOOK_INTERVAL_S = 1.0
_NEWEST = 100  # so many are followed; in `dev` people try things one by one
_REMEDIES = {
    "no-endpoint": "nobody is asked: outbox-bridge group put {group} --endpoint URL",
    "no-secret": "it cannot be asked: outbox-bridge group rotate-secret {group}",
    "not-claimed": "nobody fetches its checks: is a pull worker running?",
    "refused": "nothing listens there: is the service running?",
    "status 401": "the signature was refused: has the endpoint the secret of group {group}?",
}


class DevEvents:
    """Looks at the newest transactions of a bridge, and tells what is new of them.

    `tell`: takes the members of an event, among them `text`, a line.
    """

    def __init__(self, url: str, tell: Callable[[Row], None]) -> None:
        self._url = url
        self._tell = tell
        self._open: dict[str, set[str]] = {}  # what was told of each
        self._seen: set[str] = set()  # ended, and told
        self._silences: set[str] = set()  # told of a group until it answers

    async def run_forever(self) -> None:
        """Until it is cancelled. Not a word of a bridge that does not answer: it says so itself."""
        while True:
            with suppress(CommandFailed):
                await asyncio.to_thread(self.look)
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def look(self) -> None:
        """Once. Raises CommandFailed."""
        listed = call(self._url, "GET", "/v1/transactions", query={"limit": _NEWEST}).members["transactions"]
        for row in reversed(listed):
            if row["transaction_id"] not in self._seen:
                self._look_at(row)
        newest = {row["transaction_id"] for row in listed}
        self._open = {id_: told for id_, told in self._open.items() if id_ in newest}
        self._seen &= newest

    def _look_at(self, row: Row) -> None:
        id_ = row["transaction_id"]
        told = self._open.setdefault(id_, set())
        if row["resolved_by"] == "producer" and not row["blocked"]:  # as it should be
            self._close(id_)
            return
        events = call(self._url, "GET", f"/v1/transactions/{quoted(id_)}/timeline").members["events"]
        for key, text in describe(row["producer_group"], events):
            if key in told:
                continue
            told.add(key)
            if key.startswith("silence"):
                if f"{row['producer_group']} {key}" in self._silences:
                    continue
                self._silences.add(f"{row['producer_group']} {key}")
            elif key.startswith("answer"):
                self._silences = {one for one in self._silences if not one.startswith(f"{row['producer_group']} ")}
            named = {"event": key.split()[0], "transaction_id": id_, "producer_group": row["producer_group"]}
            self._tell({**named, "text": f"{row['producer_group']} {id_}: {text}"})
        if has_ended(row) and row["state"] != TransactionState.PARKED:
            self._close(id_)

    def _close(self, id_: str) -> None:
        self._open.pop(id_, None)
        self._seen.add(id_)


def describe(group: str, events: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What is worth a line, in the order of the timeline: a key by which it is known again, and the line."""
    answer = ""
    for event in events:
        match event["type"]:
            case "check_unanswered":
                failure, where = str(event["failure"]), event.get("endpoint")
                asked = f"asked {where}: {failure}" if where else failure
                remedy = _REMEDIES.get(failure, "").format(group=group)
                yield f"silence {failure} {where}", f"check not answered, {asked}" + (f"; {remedy}" if remedy else "")
            case "check_answered":
                answer = str(event["answer"])
                yield f"answer {event['number']}", f"check answered {answer} by {event.get('endpoint') or 'its group'}"
            case "parked":
                yield f"parked {event['at']}", f"parked ({event['why']}): outbox-bridge parked list"
            case "blocked":
                yield f"blocked {event['at']}", f"committed, and cannot be published now: {event['why']}"
            case "published" if answer == "COMMIT":
                yield "rescued", "rescued: its producer did not end it, and its messages are published"
