"""L, P, D, I: what lies in the real topics against what was asked for."""

from collections.abc import Callable, Iterator, Sequence

from tests.support.history.content import Content, show_mark
from tests.support.history.evidence import COMMITTED, RealRecord
from tests.support.history.facts import Facts
from tests.support.history.incarnations import is_gone
from tests.support.history.joined import Joined, show_place
from tests.support.history.violation import Kind, Violation

Found = Iterator[Violation]


def find_phantoms(joined: Joined, facts: Facts) -> Found:
    """Visible, or known to a view, although nobody asked, nobody committed, or it has not ended so."""
    places = ", ".join(map(show_place, facts.records))
    if facts.contents is None:
        if facts.records:
            yield Violation(Kind.PHANTOM, facts.transaction_id, f"nobody asked for {places}")
        elif facts.state is not None or facts.parked is not None:
            yield Violation(Kind.PHANTOM, facts.transaction_id, f"it is {facts.state}, and nobody asked for it")
        return
    if not facts.records:
        return
    if facts.state != COMMITTED:
        yield Violation(Kind.PHANTOM, facts.transaction_id, f"it is {facts.state}, and {places} can be read")
    elif facts.is_abandoned():
        yield Violation(Kind.PHANTOM, facts.transaction_id, f"it was abandoned, and {places} can be read")
    elif facts.op is not None and facts.op.blocked:
        yield Violation(Kind.DISAGREEMENT, facts.transaction_id, f"the op topic says blocked, and {places} can be read")
    elif "journal" in joined.has and facts.half is not None and facts.decided is None:
        text = f"{places} can be read, and the journal has no COMMIT"
        yield Violation(Kind.PHANTOM, facts.transaction_id, text)


def find_lost(joined: Joined, facts: Facts) -> Found:
    """Committed by an answer or by the op topic, and nothing can be read."""
    if facts.records or (facts.contents and all(is_gone(joined, facts, content) for content in facts.contents)):
        return
    hint = "" if facts.aborted is None else f"; {show_place(facts.aborted)} was aborted"
    answers = [heard for heard in (facts.first_published, facts.odd) if heard is not None and heard.blocked is False]
    published = next((heard for heard in answers if heard.state == COMMITTED), None)
    if published is not None:
        text = f"{published.call_id} heard COMMITTED at {published.heard_ms}, and nothing can be read{hint}"
        yield Violation(Kind.LOST, facts.transaction_id, text)
    elif facts.is_published():
        yield Violation(Kind.LOST, facts.transaction_id, f"it is COMMITTED, and nothing can be read{hint}")


def compare_messages(joined: Joined, facts: Facts) -> Found:
    """Each prepared message once, as it was prepared."""
    if not facts.records or facts.contents is None:
        return
    missing, extra = _pair_equal(facts.contents, facts.records, joined)
    while missing and extra:
        content, record = _take_nearest(missing, extra, joined)
        for kind, what in _differences(content, record, joined, facts):
            yield Violation(kind, facts.transaction_id, f"{show_place(record)}: {what}")
    for record in extra:
        text = f"{show_place(record)} is one more than the {len(facts.contents)} messages prepared"
        yield Violation(Kind.DUPLICATE, facts.transaction_id, text)
    missing = [content for content in missing if not is_gone(joined, facts, content)]
    if missing and facts.is_published():
        text = f"{len(missing)} of {len(facts.contents)} messages cannot be read, first {_show(missing[0])}"
        yield Violation(Kind.TORN, facts.transaction_id, text)


def compare_times(joined: Joined, facts: Facts) -> Found:
    """Where no timestamp was asked for, a record has the append time of what committed it."""
    ended_ms = None if facts.op is None or not facts.is_published() else facts.op.ended_ms
    if ended_ms is None or facts.contents is None or any(c.timestamp_ms is not None for c in facts.contents):
        return
    for record in facts.records:
        if record.timestamp_ms != ended_ms and record.topic not in joined.rules.append_time:
            text = f"{show_place(record)}: timestamp {record.timestamp_ms}, committed by an append at {ended_ms}"
            yield Violation(Kind.CORRUPT, facts.transaction_id, text)


def compare_copies(_: Joined, facts: Facts) -> Found:
    """Journal and parked topic hold what was asked for."""
    copies = (("journal", facts.half), ("parked topic", facts.parked))
    for name, copy in copies:
        if copy is not None and facts.contents is not None and copy.contents != facts.contents:
            text = f"the {name} holds other messages at offset {copy.offset} than were asked for"
            yield Violation(Kind.CORRUPT, facts.transaction_id, text)


def _pair_equal(
    contents: Sequence[Content], records: Sequence[RealRecord], joined: Joined
) -> tuple[list[Content], list[RealRecord]]:
    """What is left when everything that is as it should be is taken away: as much of it as can be.

    Two messages may differ in nothing but where one of them was to go, so a first choice can be wrong. Source: Kuhn's
    augmenting paths.
    """
    fits = [[n for n, c in enumerate(contents) if not _count_differences(c, record, joined)] for record in records]
    record_of: dict[int, int] = {}

    def place(record: int, tried: set[int]) -> bool:
        for content in fits[record]:
            if content not in tried:
                tried.add(content)
                if content not in record_of or place(record_of[content], tried):
                    record_of[content] = record
                    return True
        return False

    extra = [record for number, record in enumerate(records) if not place(number, set())]
    return [content for number, content in enumerate(contents) if number not in record_of], extra


def _take_nearest(missing: list[Content], extra: list[RealRecord], joined: Joined) -> tuple[Content, RealRecord]:
    """The two that differ least; a transaction has at most 100 messages."""
    pairs = [(_count_differences(content, record, joined), i, j) for i, content in enumerate(missing)
             for j, record in enumerate(extra)]  # fmt: skip
    _, i, j = min(pairs)
    return missing.pop(i), extra.pop(j)


def _count_differences(content: Content, record: RealRecord, joined: Joined) -> int:
    return sum(is_wrong(content, record) for is_wrong, _ in _PARTS) + _is_time_wrong(content, record, joined)


def _is_time_wrong(content: Content, record: RealRecord, joined: Joined) -> bool:
    is_asked = content.timestamp_ms is not None and content.topic not in joined.rules.append_time
    return is_asked and record.timestamp_ms != content.timestamp_ms


def _is_partition_wrong(content: Content, record: RealRecord) -> bool:
    return content.partition >= 0 and record.partition != content.partition


_PARTS: Sequence[tuple[Callable[[Content, RealRecord], bool], str]] = (
    (lambda content, record: content.topic != record.topic, "topic"),
    (_is_partition_wrong, "partition"),
    (lambda content, record: content.key != record.key, "key"),
    (lambda content, record: content.value != record.value, "value"),
    (lambda content, record: content.headers != record.headers, "headers"),
)


def _differences(content: Content, record: RealRecord, joined: Joined, facts: Facts) -> Iterator[tuple[Kind, str]]:
    for is_wrong, part in _PARTS:
        if is_wrong(content, record):
            asked, found = getattr(content, part), getattr(record, part)
            shown = (show_mark(asked), show_mark(found)) if part in {"key", "value", "headers"} else (asked, found)
            kind = Kind.WRONG_PLACE if part in {"topic", "partition"} else Kind.CORRUPT
            yield kind, f"{part} {shown[1]}, {shown[0]} was asked for by {facts.acked or facts.unknown}"
    if _is_time_wrong(content, record, joined):
        yield Kind.CORRUPT, f"timestamp {record.timestamp_ms}, {content.timestamp_ms} was asked for"


def _show(content: Content) -> str:
    return f"to {content.topic} with key {show_mark(content.key)}"
