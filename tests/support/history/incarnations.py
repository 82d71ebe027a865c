"""Real topics that were deleted and made again: what lay in them, and what nobody can have seen of them."""

from collections.abc import Iterator

from tests.support.history.content import Content
from tests.support.history.evidence import Gone, RealRecord
from tests.support.history.facts import Facts
from tests.support.history.joined import Joined, name_gone

_LATE_MS = 60_000  # what was sent before the deletion is told of as late as this, where somebody was frozen meanwhile


def find_records(joined: Joined, topic: str, partition: int, offset: int) -> Iterator[RealRecord]:
    """What can be, or could be, read at this place, in whichever topic of this name."""
    names = [topic, *(name_gone(topic, number) for number, gone in enumerate(joined.gone) if gone.topic == topic)]
    for name in names:
        record = joined.visible.get((name, partition), {}).get(offset)
        if record is not None:
            yield record


def is_gone(joined: Joined, facts: Facts, content: Content) -> bool:
    """Whether a message went into a topic that was deleted with it before anybody could read it.

    Its receipt must name a place which that topic had: of a record that was not committed yet, or behind all that was
    read of it; and its publication must have been told about that time.
    """
    if not joined.gone or facts.contents is None or facts.op is None or facts.published_ms is None:
        return False
    receipts = [receipt for asked, receipt in zip(facts.contents, facts.op.receipts, strict=False) if asked == content]
    return any(
        gone.topic == content.topic
        and gone.from_ms - _LATE_MS <= facts.published_ms <= gone.until_ms + _LATE_MS
        and any(_was_unseen(gone, facts, r.queue_id, r.queue_offset) for r in receipts)
        for gone in joined.gone
    )


def _was_unseen(gone: Gone, facts: Facts, partition: int, offset: int | None) -> bool:
    if offset is None or offset >= gone.ends.get(partition, 0):
        return True
    return any(
        record.transaction_id == facts.transaction_id and record.place == (gone.topic, partition, offset)
        for record in gone.uncommitted
    )
