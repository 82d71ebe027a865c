"""The processes of a bridge: each notes every few seconds its clock and the settings that all of them must share."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from bridge.clock import Clock
from bridge.core.errors import SqlUnavailable
from bridge.sql.bulk import make_upsert
from bridge.sql.engine import Database
from bridge.sql.tables import processes

_LOG = structlog.get_logger()
_EVERY_MS = 10_000
_GONE_MS = 30_000
_FORGOTTEN_MS = 3_600_000
MAX_APART_MS = 5_000
_NOW_MS = {
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


class ProcessNote(NamedTuple):
    """What a process says of itself. `ahead_ms`: of the database's clock."""

    owner: str
    ahead_ms: int
    settings: Mapping[str, str]


class ProcessBoard:
    """What the processes of this bridge, this one too, noted lately. `settings`: of this process, as they are shown."""

    def __init__(self, database: Database, clock: Clock, owner: str, settings: Mapping[str, str]) -> None:
        self._database = database
        self._clock = clock
        self._own = ProcessNote(owner, 0, settings)
        self._notes: list[ProcessNote] = []

    def describe(self) -> str:
        """How others differ from this process; nothing if none does."""
        told: list[str] = []
        for other in self._notes:
            if abs(apart_ms := other.ahead_ms - self._own.ahead_ms) > MAX_APART_MS:
                word = "ahead of" if apart_ms > 0 else "behind"
                told.append(
                    f"the clock of {other.owner} is {abs(apart_ms) / 1000:.1f} s {word} that of {self._own.owner}"
                )
            for name in sorted(self._own.settings.keys() & other.settings.keys()):
                here, there = self._own.settings[name], other.settings[name]
                if here != there:
                    told.append(f"{name} is {there!r} in {other.owner}, and {here!r} in {self._own.owner}")
        return "; ".join(told)

    async def run_forever(self) -> None:
        """Notes and looks until it is cancelled. What cannot be asked is left as it was known."""
        while True:
            try:
                await self.run_once()
            except SqlUnavailable as error:
                _LOG.warning("processes_not_looked_at", reason=str(error))
            await self._clock.sleep_ms(_EVERY_MS)

    async def run_once(self) -> None:
        """Notes now, then reads what the others have noted. Raises SqlUnavailable."""
        before = self.describe()
        self._own, self._notes = await self._database.run(self._exchange)
        if (found := self.describe()) and found != before:
            _LOG.warning("processes_differ", found=found)

    def _exchange(self, conn: Connection) -> tuple[ProcessNote, list[ProcessNote]]:
        begun_ms = self._clock.now_ms()
        now_ms: int = conn.execute(sa.text(_NOW_MS[conn.dialect.name])).scalar_one()
        own = self._own._replace(ahead_ms=(begun_ms + self._clock.now_ms()) // 2 - now_ms)
        values = {"seen_ms": now_ms, "ahead_ms": own.ahead_ms, "settings": json.dumps(own.settings)}
        upsert = make_upsert(conn, processes).values(owner=own.owner, **values)
        conn.execute(upsert.on_conflict_do_update(index_elements=["owner"], set_=values))
        conn.execute(sa.delete(processes).where(processes.c.seen_ms < now_ms - _FORGOTTEN_MS))
        others = (processes.c.owner != own.owner, processes.c.seen_ms > now_ms - _GONE_MS)
        rows = conn.execute(sa.select(processes).where(*others).order_by(processes.c.owner))
        return own, [ProcessNote(row.owner, row.ahead_ms, json.loads(row.settings)) for row in rows]
