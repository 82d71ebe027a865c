"""The prepared messages of transactions, as the logs still have them."""

from collections.abc import Iterable, Mapping, Sequence

from bridge.core.errors import MalformedRecord, UnknownRecordVersion
from bridge.core.message import Message, MessageQueue, StoredMessage
from bridge.core.record import HalfMessage
from bridge.core.record_codec import decode_body, decode_parked, decode_record
from bridge.core.topics import PARKED_QUEUE, InternalTopics
from bridge.core.view import TransactionView
from bridge.store.message_store import MessageStore

Bodies = dict[str, list[Message]]


class BodyReader:
    """Reads by offset, all that is wanted of a queue at once."""

    def __init__(self, store: MessageStore, topics: InternalTopics) -> None:
        self._store = store
        self._topics = topics

    async def read(self, views: Sequence[TransactionView]) -> Bodies:
        """Messages by transaction id: from the journal, else from the parked topic; what no log has is left out.

        Raises StoreError.
        """
        found: Bodies = {}
        for queue_id in {view.queue_id for view in views}:
            queue = MessageQueue(self._topics.half, queue_id)
            found |= await self._read(queue, {v.queue_offset: v for v in views if v.queue_id == queue_id})
        missing = [view for view in views if view.transaction_id not in found]
        copies = {view.parked_offset: view for view in missing if view.parked_offset is not None}
        if copies:
            found |= await self._read(MessageQueue(self._topics.parked, PARKED_QUEUE), copies)
        return found

    async def _read(self, queue: MessageQueue, places: Mapping[int, TransactionView]) -> Bodies:
        records = await self._store.get_each(queue, sorted(places))
        is_parked = queue.topic == self._topics.parked
        pairs = [(places[offset], stored) for offset, stored in records.items()]
        return dict(_decode(pairs, is_parked=is_parked))


def _decode(
    records: Iterable[tuple[TransactionView, StoredMessage]], *, is_parked: bool
) -> Iterable[tuple[str, list[Message]]]:
    """Those that are half messages of the transactions they should be of."""
    for view, stored in records:
        try:
            half = decode_parked(stored) if is_parked else _decode_half(stored)
            if half is not None and half.transaction_id == view.transaction_id:
                yield view.transaction_id, decode_body(half, stored)
        except (MalformedRecord, UnknownRecordVersion):
            continue


def _decode_half(stored: StoredMessage) -> HalfMessage | None:
    record = decode_record(stored)
    return record if isinstance(record, HalfMessage) else None
