"""O: transactions of one effective ordering key lie in their topics as their commits were recorded."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.history.content import Mark
from tests.support.history.facts import Facts
from tests.support.history.joined import Joined
from tests.support.history.violation import Kind, Violation

_NEVER = -1


class _Last(NamedTuple):
    """Of what lies before in a partition: the latest deciding record, and the latest first try to commit."""

    decided: int
    decided_id: str
    asked_ms: int
    asked_id: str


def find_out_of_order(joined: Joined) -> Iterator[Violation]:
    """Follows each partition by its offsets; of each key only the last ones are remembered.

    By the journal, if it is given: the offsets of the deciding ends. By the clients, if all who may decide are known:
    one that was told of its commit before anybody could have committed another comes first.
    """
    for (topic, partition), records in joined.visible.items():
        last: dict[Mark, _Last] = {}
        for offset in sorted(records):
            facts = joined.transactions[records[offset].transaction_id or ""]
            if facts.order is None or facts.contents is None:
                continue
            before = last.get(facts.order)
            if before is not None:
                yield from _compare(joined, before, facts, f"{topic}-{partition}@{offset}")
            last[facts.order] = _advance(before, facts)


def _compare(joined: Joined, before: _Last, facts: Facts, place: str) -> Iterator[Violation]:
    decided, told_ms = _decided(facts), _told_ms(facts) if "checks" in joined.has else None
    if _NEVER < decided < before.decided:
        text = f"{place} lies behind {before.decided_id}, whose commit is offset {before.decided} and this {decided}"
        yield Violation(Kind.OUT_OF_ORDER, facts.transaction_id, text)
    elif told_ms is not None and told_ms + joined.rules.clock_slack_ms < before.asked_ms:
        text = (
            f"{place} lies behind {before.asked_id}, which was asked for at {before.asked_ms}, this told at {told_ms}"
        )
        yield Violation(Kind.OUT_OF_ORDER, facts.transaction_id, text)


def _advance(before: _Last | None, facts: Facts) -> _Last:
    decided = (_decided(facts), facts.transaction_id)
    asked = (_NEVER if facts.commit is None or facts.commit.first_ms is None else facts.commit.first_ms,
             facts.transaction_id)  # fmt: skip
    if before is not None:
        decided, asked = max(decided, before[:2]), max(asked, before[2:])
    return _Last(*decided, *asked)


def _decided(facts: Facts) -> int:
    return _NEVER if facts.decided is None else facts.decided.offset


def _told_ms(facts: Facts) -> int | None:
    return None if facts.commit is None else facts.commit.ok_ms
