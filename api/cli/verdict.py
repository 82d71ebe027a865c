"""PURE. Judges a consumer's reads against a producer's database."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Fact(NamedTuple):
    """An order, as somebody holds it."""

    order_id: str
    cents: int


class Verdict(NamedTuple):
    """Orders by what is wrong with them. `altered`: the consumer's content is not the producer's."""

    lost: Collection[str]
    invented: Collection[str]
    twice: Collection[str]
    altered: Collection[str]

    @property
    def is_clean(self) -> bool:
        """Whether each order was read exactly once, as it is, and nothing else was."""
        return not any(self)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        text = f"{len(self.lost)} lost, {len(self.invented)} invented, {len(self.twice)} twice"
        return text + (f", {len(self.altered)} altered" if self.altered else "")


def judge(orders: Mapping[str, int], *holdings: Sequence[Fact]) -> Verdict:
    """`orders`: cents by id, as the producer's database holds them; `holdings`: what was read, what came of it."""
    each = [_judge_one(orders, facts) for facts in holdings]
    return Verdict(*(sorted(set().union(*column)) for column in zip(*each, strict=True)))


def _judge_one(orders: Mapping[str, int], facts: Sequence[Fact]) -> Verdict:
    times = Counter(fact.order_id for fact in facts)
    return Verdict(
        lost=orders.keys() - times.keys(),
        invented=times.keys() - orders.keys(),
        twice={order_id for order_id, count in times.items() if count > 1},
        altered={fact.order_id for fact in facts if orders.get(fact.order_id, fact.cents) != fact.cents},
    )
