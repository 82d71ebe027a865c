"""How a command fails: an exit code that scripts may rely on, a reason, and what to do about it."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from bridge.broker.errors import BrokerError, JarsUnavailable
from bridge.core.errors import BridgeError, ConfigError, StoreTimeout, StoreUnavailable
from bridge.sql.errors import SqlUnavailable
from outbox.errors import DatabaseUnavailable, OutboxConfigError, TableMissing


class Exit(IntEnum):
    """Exit codes; stable."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5


class CommandFailed(Exception):
    """Ends a command. `remedy`: a sentence for the user, or nothing."""

    def __init__(self, code: Exit, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.remedy = remedy


Told = tuple[Exit, str, str]

_KAFKA_REMEDY = "Is Kafka running? `outbox-bridge doctor` looks; `outbox-bridge dev` starts one on this machine."
_OUTBOX_SQL_REMEDY = "Check --database-url and that the database runs."
_SQL_REMEDY = "Check database_url (`outbox-bridge config show`) and that the database runs."


def explain(error: BaseException) -> CommandFailed | None:
    """An expected error as a failure of the command; None for a surprise."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in _leaves(error) if (found := explain(inner)) is not None), None)
    if isinstance(error, CommandFailed):
        return error
    return next((CommandFailed(*tell(error)) for kind, tell in _TELLERS if isinstance(error, kind)), None)


def _tell_table(error: TableMissing) -> Told:
    remedy = f"`python -m outbox.ddl {error.database}` writes the SQL for the outbox's own tables; see docs/outbox.md."
    return Exit.FAILED, str(error), remedy


def _tell_broker(error: BrokerError) -> Told:
    code = Exit.UNREACHABLE if isinstance(error, JarsUnavailable) else Exit.FAILED
    return code, error.reason, error.remedy


# the first row that fits; what is above inherits from what is below
_TELLERS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], Told]], ...] = (
    (BrokerError, _tell_broker),
    (ConfigError, lambda error: (Exit.USAGE, str(error), "")),
    ((StoreUnavailable, StoreTimeout), lambda e: (Exit.UNREACHABLE, f"Kafka cannot be used now: {e}", _KAFKA_REMEDY)),
    (SqlUnavailable, lambda e: (Exit.UNREACHABLE, f"the database cannot be used now: {e}", _SQL_REMEDY)),
    (TableMissing, _tell_table),
    (DatabaseUnavailable, lambda e: (Exit.UNREACHABLE, f"the database cannot be used now: {e}", _OUTBOX_SQL_REMEDY)),
    (OutboxConfigError, lambda error: (Exit.USAGE, str(error), "")),
    (BridgeError, lambda error: (Exit.FAILED, str(error), str(getattr(error, "remedy", "")))),
)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            yield from _leaves(inner)
        else:
            yield inner
