"""How many transactions are pending in all, known cheaply and a little late."""

import structlog

from bridge.clock import Clock
from bridge.sql.engine import Database, SqlUnavailable
from bridge.sql.stats import count_pending

_LOG = structlog.get_logger()


class PendingGauge:
    """Read every few seconds; while it cannot be read the last number stands."""

    def __init__(self, database: Database, clock: Clock, most: int, interval_ms: int = 5_000) -> None:
        self._database = database
        self._clock = clock
        self._most = most
        self._interval_ms = interval_ms
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether no more may be prepared."""
        return self.count >= self._most

    async def run_forever(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.run_once()
            except SqlUnavailable as error:
                _LOG.warning("pending_not_counted", reason=str(error))
            except Exception:  # noqa: BLE001 - a loop that lives as long as the process
                _LOG.exception("pending_not_counted")
            await self._clock.sleep_ms(self._interval_ms)

    async def run_once(self) -> int:
        """Reads the number. Raises SqlUnavailable."""
        self.count = await self._database.read(count_pending)
        return self.count
