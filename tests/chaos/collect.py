"""All that a run left behind, read when everything is at rest."""

import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, LiteralString

import httpx2
import psycopg

from tests.chaos.destinations import read_gone
from tests.chaos.dump import read_topic
from tests.chaos.insist import insist
from tests.chaos.orders import RunFile
from tests.support.bridge_process import Bridge
from tests.support.history.events import Event, read_receipts
from tests.support.history.evidence import AuditRow, CheckCall, CountsRow, Evidence, RealRecord, ShownRow
from tests.support.history.lines import LineReader
from tests.support.history.raw_records import read_journal, read_op, read_parked, read_real

_PAGE = 500
_AT_REST = ("pending", "blocked", "settle_lag_seconds", "projection_lag_seconds")
_STATS_AGE_S = 1.2  # an api process counts once a second and shows that to all who ask
_ROWS = (
    "SELECT transaction_id, producer_group, state, blocked, check_times, receipts, idempotency_key, abandoned_ms"
    " FROM transactions"
)
_AUDITED = "SELECT DISTINCT target FROM audit WHERE what = 'transaction.abandon'"


class Parts:
    """The files of a run's folder, and Kafka and SQL behind the bridge. What is large is read anew at each use."""

    def __init__(self, run: RunFile, bridge: Bridge) -> None:
        self._run = run
        self._bridge = bridge

    def events(self) -> LineReader[Event]:
        """The history."""
        return LineReader(Event, *self._files("history"))

    def surprises(self) -> list[str]:
        """Answers that no fault explains."""
        return [line for path in self._files("surprises") for line in path.read_text().splitlines()]

    def bugs(self) -> list[str]:
        """What no process may ever log."""
        return read_bugs(self._run.folder)

    def evidence(self) -> Evidence:
        """Read it once: the parts are iterated once."""
        states, positions = read_op(read_topic(self._run.kafka, self._bridge.op_topic))
        return Evidence(
            committed=self._real("read_committed"),
            uncommitted=self._real("read_uncommitted"),
            consumed=LineReader[RealRecord](RealRecord, *self._files("consumed")),
            journal=read_journal(read_topic(self._run.kafka, self._bridge.half_topic)),
            op=states,
            positions=positions,
            parked=read_parked(read_topic(self._run.kafka, self._bridge.parked_topic)),
            sql=self._rows(),
            shown=self._shown(),
            checks=LineReader[CheckCall](CheckCall, *self._files("checks")),
            counts=LineReader[CountsRow](CountsRow, *self._files("counts")),
            gone=read_gone(self._run.folder),
            audited=[AuditRow(target) for (target,) in self._select(_AUDITED)],
        )

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._run.folder.glob(f"*.{kind}.jsonl"))

    def _real(self, isolation: str) -> Iterator[RealRecord]:
        return chain.from_iterable(
            read_real(topic, read_topic(self._run.kafka, topic, isolation)) for topic in self._run.topics
        )

    def _rows(self) -> Iterator[ShownRow]:
        """As SQL holds them, past the bridge's code."""
        for transaction_id, group, state, blocked, check_times, receipts, key, abandoned_ms in self._select(_ROWS):
            told = read_receipts(json.loads(receipts or "[]"))
            is_abandoned = abandoned_ms is not None
            yield ShownRow(transaction_id, group, state, bool(blocked), check_times, told, key, is_abandoned)

    def _select(self, query: LiteralString) -> Iterator[tuple[Any, ...]]:
        url = self._bridge.database_url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(url) as connection, connection.cursor(name="rows") as rows:
            rows.execute(query)
            yield from rows

    def _shown(self) -> Iterator[ShownRow]:
        """As GET /v1/transactions lists them."""
        cursor = ""
        with httpx2.Client(base_url=self._run.urls[0], timeout=30) as http:
            while True:
                page = get(http, f"/v1/transactions?limit={_PAGE}{cursor}")
                for shown in page["transactions"]:
                    yield _shown_row(shown)
                if page["next"] is None:
                    return
                cursor = f"&cursor={page['next']}"


def read_bugs(folder: Path) -> list[str]:
    """What no process may ever log, whatever is broken around it: answers of 500, stack traces."""
    logs = sorted(folder.glob("*.log"))
    lines = ((log.name, line) for log in logs for line in log.read_text(errors="replace").splitlines())
    return [f"{name}: {line[:500]}" for name, line in lines if "internal_error" in line or "Traceback" in line]


def read_unrest(http: httpx2.Client, seconds: float) -> dict[str, Any]:
    """Empty once nothing is due any more; else, after so long, what still is."""
    time.sleep(_STATS_AGE_S)
    give_up_at = time.monotonic() + seconds
    while True:
        stats = get(http, "/v1/stats")
        unrest = {name: stats[name] for name in _AT_REST if stats[name]}
        if not unrest or time.monotonic() > give_up_at:
            return unrest
        time.sleep(0.2)


def get(http: httpx2.Client, path: str) -> dict[str, Any]:
    """The answer, asked for until there is one."""

    def ask() -> dict[str, Any]:
        reply = http.get(path)
        assert reply.status_code == 200, f"GET {path}: {reply.status_code} {reply.text[:500]}"
        body: dict[str, Any] = reply.json()
        return body

    return insist(ask)


def _shown_row(shown: dict[str, Any]) -> ShownRow:
    return ShownRow(
        shown["transaction_id"],
        shown["producer_group"],
        shown["state"],
        bool(shown.get("blocked", False)),
        shown.get("check_times", 0),
        read_receipts(shown.get("receipts") or ()),
        shown.get("idempotency_key"),
        bool(shown.get("abandoned", False)),
    )
