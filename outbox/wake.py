"""Waiting for new outbox rows: PostgreSQL's notifications where they can be had, else only the time."""

import threading
from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from outbox.enqueue import NOTIFY_CHANNEL

_PSYCOPG: Final = ("postgresql", "psycopg")


class Waker:
    """Listens on a connection of its own, for one thread; it is opened anew after it was lost."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._can_listen = (engine.dialect.name, engine.dialect.driver) == _PSYCOPG
        self._connection: sa.PoolProxiedConnection | None = None

    def wait(self, stop: threading.Event, timeout_ms: int) -> None:
        """Returns at a notification, when the time is over, or soon after the stop; may return early."""
        if not self._can_listen:
            stop.wait(timeout_ms / 1000)
            return
        dbapi_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        try:
            driver = self._listen()
            for _ in driver.notifies(timeout=timeout_ms / 1000, stop_after=1):
                return
        except (dbapi_error, SQLAlchemyError):
            self.close()
            stop.wait(timeout_ms / 1000)

    def close(self) -> None:
        """Gives the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # whatever it is in, nobody needs it any more
                connection.invalidate()

    def _listen(self) -> Any:  # noqa: ANN401 - psycopg's own connection
        if self._connection is None:
            self._connection = self._engine.raw_connection()
            driver: Any = self._connection.driver_connection
            driver.autocommit = True
            driver.execute(f"LISTEN {NOTIFY_CHANNEL}")
        return self._connection.driver_connection
