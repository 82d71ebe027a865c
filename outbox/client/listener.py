"""RocketMQ's words for the producer's side: the listener, what it is given and what it answers. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple, Protocol

from outbox.client.message import Message, read_message


class Resolution(Enum):
    """What became of a local transaction. Values: RocketMQ's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


MAX_REMARK = 512


class Remarked(NamedTuple):
    """A resolution, and why: kept beside it, and shown in the timeline; 512 characters at most."""

    resolution: Resolution
    remark: str


Answered = Resolution | Remarked


def read_answered(answer: object) -> tuple[Resolution, str | None]:
    """A resolution and its remark, if it has one. Raises TypeError."""
    resolution, remark = answer if isinstance(answer, Remarked) else (answer, None)
    if not isinstance(resolution, Resolution) or not isinstance(remark, str | None):
        raise TypeError("a resolution is COMMIT, ROLLBACK or UNKNOWN")
    return resolution, remark


def tidy_remark(text: str) -> str:
    """What the bridge takes of a text: printable characters, and not too many of them."""
    return "".join([c if c.isprintable() else " " for c in text[:MAX_REMARK]])


class TransactionState(StrEnum):
    """A recorded fact about a transaction."""

    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    PARKED = "PARKED"


class LocalTransactionState(IntEnum):
    """The same in the words of RocketMQ's LocalTransactionState."""

    UNKNOWN = 0
    COMMIT_MESSAGE = 8
    ROLLBACK_MESSAGE = 12
    UNKNOW = 0  # RocketMQ's spelling

    @property
    def resolution(self) -> Resolution:
        """The bridge's word for it."""
        return Resolution(self.value)


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A prepared transaction: stored at the bridge, invisible to consumers.

    `topic`, `key`, `value` and `headers` are those of its first message. `check_number` (0: not a check) and
    `born_time` come with checks.
    """

    transaction_id: str
    producer_group: str
    messages: tuple[Message, ...]
    idempotency_key: str | None = None
    check_number: int = 0
    born_time: datetime | None = None

    @property
    def topic(self) -> str:
        return self.messages[0].topic

    @property
    def key(self) -> bytes | None:
        return self.messages[0].key

    @property
    def value(self) -> bytes | None:
        return self.messages[0].value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self.messages[0].headers


class Check(Protocol):
    """One transaction the bridge asks about. `messages`: as they stand in the call."""

    @property
    def transaction_id(self) -> str: ...
    @property
    def producer_group(self) -> str: ...
    @property
    def check_number(self) -> int: ...
    @property
    def nonce(self) -> str: ...
    @property
    def born_ms(self) -> int: ...
    @property
    def idempotency_key(self) -> str | None: ...
    @property
    def messages(self) -> Sequence[Mapping[str, object]]: ...


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The answer to one check. `nonce`: the check's own."""

    transaction_id: str
    nonce: str
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was published. `offset` is None where the log no longer knows it."""

    topic: str
    partition: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What became of a send.

    `is_settled`: the bridge has returned the recorded `state`; if not, the back-check will resolve it. `is_accepted`:
    the bridge has stored the end and was not asked to wait (`respond_async`): it settles it, without a back-check.
    `is_blocked`: committed, and its publication is being retried. `is_abandoned`: committed, but given up by an
    operator while it was blocked: it is never published. `error`: what the listener raised, if it did.
    """

    transaction_id: str
    local_transaction_state: LocalTransactionState
    is_settled: bool = False
    state: TransactionState | None = None
    is_blocked: bool = False
    receipts: tuple[Receipt, ...] = ()
    queue_id: int | None = None
    queue_offset: int | None = None
    error: BaseException | None = field(default=None, repr=False)
    is_abandoned: bool = False
    is_accepted: bool = False


class TransactionListener(ABC):
    """The producer's own part. Source: RocketMQ's TransactionListener.

    An exception, or anything that is no LocalTransactionState, counts as UNKNOWN: the bridge asks again later.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        """Runs the local transaction, once the half message is stored."""

    @abstractmethod
    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """What became of a local transaction, perhaps one of another instance of this group."""


class AsyncTransactionListener(ABC):
    """The same for event loops."""

    @abstractmethod
    async def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        """Runs the local transaction, once the half message is stored."""

    @abstractmethod
    async def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """What became of a local transaction, perhaps one of another instance of this group."""


def read_check(check: Check) -> HalfMessage:
    """A check as a listener sees it. Raises ValueError."""
    return HalfMessage(
        check.transaction_id,
        check.producer_group,
        tuple(read_message(members) for members in check.messages),
        check.idempotency_key,
        check.check_number,
        datetime.fromtimestamp(check.born_ms / 1000, UTC),
    )


def as_local_state(answer: object) -> LocalTransactionState:
    """What a listener returned; None and anything unexpected count as UNKNOWN."""
    return answer if isinstance(answer, LocalTransactionState) else LocalTransactionState.UNKNOWN
