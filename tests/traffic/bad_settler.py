"""A settler that does everything wrong: a real api process prepares and ends, and what follows is written by hand."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx2

from api.web.guard import MARK
from bridge.core.message import Header
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.record_codec import encode_end
from tests.chaos.dump import read_topic
from tests.support.history.evidence import EndRow
from tests.support.history.raw_records import read_journal
from tests.traffic.ink import Ink, Json, queue_of

_THIEF = "thief"

Receipts = list[list[str | int]]


@dataclass(slots=True)
class Case:
    """One transaction on its way. `end`: journal offset of what ended it."""

    wrong: "Wrong"
    messages: Sequence[Json]
    transaction_id: str = ""
    half: int = 0
    end: int = -1
    receipts: Receipts = field(default_factory=list)


class Wrong(NamedTuple):
    """A way to do it wrong. `word`: how the api is told to end it; `settle`: what is written then."""

    kinds: tuple[str, ...]
    word: str
    settle: Callable[["BadSettler", Case], None]
    size: int = 1  # of its messages
    is_ordered: bool = False


class BadSettler:
    """Only for a bridge without settlers. `group`: one that nobody asks."""

    def __init__(self, ink: Ink, http: httpx2.Client, group: str) -> None:
        self._ink = ink
        self._http = http
        self._group = group
        self._topics = list(ink.topics)
        self._kept_back: list[Case] = []

    def spoil(self, rounds: int, *, is_patient: bool = True) -> float:
        """Every way so often; when the last of them was decided, by the monotonic clock.

        `is_patient`: somebody will wait until what is only late is late enough for a finding.
        """
        wrongs = [wrong for wrong in WRONGS if is_patient or wrong.settle is not BadSettler.leave]
        cases = [self._prepare(wrong, number) for number in range(rounds) for wrong in wrongs]
        for case in cases:
            self._end(case)
        decided_at = time.monotonic()
        ends = self._read_ends()
        for case in cases:
            case.end = ends.get(case.transaction_id, -1)
            case.wrong.settle(self, case)
            self._ink.must_find(case.transaction_id, *case.wrong.kinds)
        return decided_at

    def _prepare(self, wrong: Wrong, number: int) -> Case:
        messages = [
            {"topic": self._topics[0], "partition": 0, "key": f"spoilt-{number}", "value": f"{number}.{i}"}
            for i in range(wrong.size)
        ]
        body: Json = {"producer_group": self._group, "messages": messages}
        if wrong.is_ordered:
            body["ordering_key"] = f"spoilt-{number}"
        else:
            del messages[0]["key"]  # else its order would count
        reply = self._http.post("/v1/transactions", json=body)
        assert reply.status_code == 201, reply.text
        told = reply.json()
        return Case(wrong, messages, told["transaction_id"], told["queue_offset"])

    def _end(self, case: Case) -> None:
        if case.wrong.word == _THIEF:
            transaction_id = case.transaction_id
            end = encode_end(EndRecord(transaction_id, Resolution.COMMIT, Source.PRODUCER, 1, _THIEF), "", 0)
            self._ink.write(
                self._ink.bridge.half_topic, queue_of(transaction_id), end.key, end.value, list(end.headers)
            )
        elif case.wrong.word:
            path = f"/v1/transactions/{case.transaction_id}/{case.wrong.word}"
            reply = self._http.post(path, headers={"Prefer": "respond-async", MARK: "1"})
            assert reply.status_code == 202, reply.text

    def _read_ends(self) -> Mapping[str, int]:
        rows = read_journal(read_topic(self._ink.bridge.kafka, self._ink.bridge.half_topic))
        return {row.transaction_id: row.offset for row in rows if isinstance(row, EndRow)}

    # --- what is written ---

    def show(self, case: Case, index: int = 0, *, partition: int = 0, topic: str = "", value: str = "") -> None:
        """One of its messages, or something like it."""
        message = case.messages[index]
        key, told = message.get("key"), value or message["value"]
        headers: list[Header] = [("transaction-id", case.transaction_id.encode())]
        where = (topic or message["topic"], partition)
        offset = self._ink.write(*where, None if key is None else key.encode(), told.encode(), headers)
        case.receipts.append([*where, offset])

    def tell(self, case: Case, receipts: Receipts | None = None) -> None:
        """COMMITTED, says the op topic."""
        now_ms = time.time_ns() // 1_000_000
        members = {"state": "COMMITTED", "group": self._group, "at": case.end, "half": case.half, "check_times": 0}
        times = {"appended_ms": now_ms, "ended_ms": now_ms, "by": "producer"}
        self._ink.write_op(
            case.transaction_id, {**members, **times, "receipts": case.receipts if receipts is None else receipts}
        )

    def lose(self, case: Case) -> None:
        """Told, and nowhere: each receipt names somebody else's record."""
        self.tell(case, [[self._topics[0], 0, 0] for _ in case.messages])

    def lose_one(self, case: Case) -> None:
        self.show(case)
        self.tell(case, [*case.receipts, [self._topics[0], 0, 0]])

    def alter(self, case: Case) -> None:
        self.show(case, value="altered")
        self.tell(case)

    def misplace(self, case: Case) -> None:
        self.show(case, topic=self._topics[1])
        self.tell(case)

    def misroute(self, case: Case) -> None:
        self.show(case, partition=1)
        self.tell(case)

    def misreport(self, case: Case) -> None:
        self.show(case)
        self.tell(case, [[self._topics[0], 0, 0]])

    def settle(self, case: Case) -> None:
        """As it should, if only it should."""
        self.show(case)
        self.tell(case)

    def turn_round(self, case: Case) -> None:
        """The second message before the first, and receipts that say so."""
        self.show(case, 1)
        self.show(case)
        self.tell(case, case.receipts[::-1])

    def leave(self, case: Case) -> None:
        """For ever."""

    def keep_back(self, case: Case) -> None:
        """Until the next one is published."""
        self._kept_back.append(case)

    def overtake(self, case: Case) -> None:
        """And only then the one before it."""
        self.settle(case)
        self.settle(self._kept_back.pop())


WRONGS = (
    Wrong(("UNSETTLED",), "commit", BadSettler.leave),
    Wrong(("UNSETTLED",), "rollback", BadSettler.leave),
    Wrong(("MISSING",), "commit", BadSettler.lose),
    Wrong(("MISSING",), "commit", BadSettler.lose, size=2),
    Wrong(("PARTIAL",), "commit", BadSettler.lose_one, size=2),
    Wrong(("CORRUPT",), "commit", BadSettler.alter),
    Wrong(("WRONG_PLACE",), "commit", BadSettler.misplace),
    Wrong(("WRONG_PLACE",), "commit", BadSettler.misroute),
    Wrong(("WRONG_RECEIPT",), "commit", BadSettler.misreport),
    Wrong(("PHANTOM", "CONTRADICTION"), "rollback", BadSettler.settle),
    Wrong(("PHANTOM",), "", BadSettler.show),
    Wrong(("WRONG_GROUP",), _THIEF, BadSettler.settle),
    Wrong(("OUT_OF_ORDER",), "commit", BadSettler.turn_round, size=2),
    Wrong((), "commit", BadSettler.keep_back, is_ordered=True),
    Wrong(("OUT_OF_ORDER",), "commit", BadSettler.overtake, is_ordered=True),
)
