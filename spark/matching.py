"""Prepared messages against visible records: which is which, and what is wrong with each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark.columns import Event, Prepared, ReceiptRow


class Pair(NamedTuple):
    """A prepared message, where its receipt says it is, and the record taken for it (None: it is nowhere)."""

    message: Prepared
    receipt: ReceiptRow | None
    record: Event | None

    @property
    def is_in_place(self) -> bool:
        """Whether the record lies in the topic, and in the partition, that was asked for."""
        record, asked = self.record, self.message.part
        return record is not None and record.topic == self.message.topic and asked in {None, record.part}

    @property
    def is_at_receipt(self) -> bool:
        """Whether the receipt points at the record, or says nothing."""
        return self.receipt is None or self.record is None or _is_at(self.record, self.receipt)


@dataclass(slots=True)
class Match:
    """One pair for each prepared message, in message order; `extra`: records nobody prepared another of."""

    pairs: list[Pair]
    extra: list[Event] = field(default_factory=list)


def match(messages: Sequence[Prepared], receipts: Sequence[ReceiptRow], visible: Sequence[Event]) -> Match:
    """Takes the likeliest record for each message: first what is the same, then what is where the receipt says.

    Records of a topic nobody asked for are taken last, so that one of them is not mistaken for the right one.
    """
    known = [receipts[i] if len(receipts) == len(messages) else None for i in range(len(messages))]
    taken: list[Event | None] = [None] * len(messages)
    left = sorted(visible, key=lambda record: (record.topic, record.part, record.off))
    for is_same in _DEGREES:
        for index, message in enumerate(messages):
            if taken[index] is None:
                receipt = known[index]
                found = next((record for record in left if is_same(message, receipt, record)), None)
                if found is not None:
                    taken[index] = found
                    left.remove(found)
    pairs = [Pair(*three) for three in zip(messages, known, taken, strict=True)]
    return Match(pairs, left)


_Likeness = Callable[[Prepared, ReceiptRow | None, Event], bool]


def _degrees() -> Iterator[_Likeness]:
    """From the surest to the most doubtful."""
    yield lambda m, r, v: m.content == v.content and m.topic == v.topic and r is not None and _is_at(v, r)
    yield lambda m, _, v: m.content == v.content and m.topic == v.topic and m.part in {None, v.part}
    yield lambda m, _, v: m.content == v.content and m.topic == v.topic
    yield lambda _, r, v: r is not None and _is_at(v, r)
    yield lambda m, _, v: m.content == v.content
    yield lambda m, _, v: m.topic == v.topic


_DEGREES = tuple(_degrees())


def _is_at(record: Event, receipt: ReceiptRow) -> bool:
    """Whether a receipt names this record; an offset the log did not know names any."""
    return (record.topic, record.part) == (receipt.topic, receipt.part) and receipt.off in {None, record.off}
