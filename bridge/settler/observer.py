"""Port between the settler and who looks after due times: told what is pending and what ended."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from bridge.core.message import Message
from bridge.core.record import HalfMessage
from bridge.core.transaction import Transaction


class Body(NamedTuple):
    """A half message with what it carries."""

    half: HalfMessage
    messages: Sequence[Message]


class BodiesRead(NamedTuple):
    """Bodies by transaction id of the first `asked` transactions; what no log has is left out."""

    found: Mapping[str, Body]
    asked: int


class QueueOwner(Protocol):
    """A queue held by the settler in this process, as the checker sees it."""

    @property
    def queue_id(self) -> int:
        """The queue."""
        ...

    def now_ms(self) -> int:
        """Kafka's time: newest append time seen + monotonic time since."""
        ...

    def note_end(self) -> None:
        """Asks the owner to note the queue's end, so that `read_through_ms` can pass the present moment."""
        ...

    def read_through_ms(self) -> int:
        """The queue has been read to its end as noted at this moment of Kafka's time."""
        ...

    async def get_bodies(self, transactions: Sequence[Transaction], max_bytes: int) -> BodiesRead:
        """Bodies from memory or re-read: of the first that weigh at most `max_bytes` together, of one at least."""
        ...

    def park(self, whys: Mapping[str, str]) -> None:
        """Asks the owner to park transactions (id -> why); it does so if they are still PREPARED."""
        ...


class SettlerObserver(Protocol):
    """Told after the Kafka transaction that made it a fact has been committed. Never blocks."""

    def queue_taken(self, owner: QueueOwner, prepared: Iterable[Transaction]) -> None:
        """A queue was taken over; these are its PREPARED transactions."""
        ...

    def prepared(self, queue_id: int, transactions: Sequence[Transaction], read_monotonic_ms: int) -> None:
        """PREPARED transactions, new or changed (counted answer, resumed, asked for); read live at that moment."""
        ...

    def ended(self, queue_id: int, transaction_ids: Sequence[str]) -> None:
        """Transactions that are no longer PREPARED."""
        ...

    def queue_released(self, queue_id: int) -> None:
        """The queue is not ours any more: forget it, let calls in flight append their answers."""
        ...
