"""PURE. What the database holds, what Kafka shows, and whether that is the same: once each, in order per customer."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from enum import StrEnum
from typing import NamedTuple


class Way(StrEnum):
    """How an order was announced. The value is its topic."""

    TRANSACTION = "orders.agreed"  # a block of `bridge.transaction`
    OUTBOX = "orders.enqueued"  # a row that a relay hands over


class Order(NamedTuple):
    """A row of the shop, so an order whose local transaction has committed. `number`: grows for each customer."""

    order_id: str
    customer: str
    number: int
    way: Way


class Announced(NamedTuple):
    """A message as a `read_committed` consumer found it."""

    order_id: str
    customer: str
    number: int
    topic: str
    partition: int
    offset: int


class Kind(StrEnum):
    """What may be wrong."""

    LOST = "lost"  # committed, and no message
    PHANTOM = "phantom"  # a message, and nothing committed
    DOUBLED = "doubled"
    CHANGED = "changed"  # the message says something else than the row
    DIVIDED = "divided"  # one customer in two partitions: nobody could read that in order
    REORDERED = "out of order"
    FORGOTTEN = "forgotten"  # its producer was told that it is committed and published, and there is no row


class Violation(NamedTuple):
    """One promise broken."""

    kind: Kind
    order_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: order {self.order_id}: {self.what}"


def judge(orders: Iterable[Order], announced: Iterable[Announced], told: Set[str]) -> list[Violation]:
    """All violations; none is a good run.

    `told`: orders of which the producer heard that they are published, before it began the customer's next one.
    Of an outbox every order must come before the later ones of its customer. Of transactions those that were told:
    of the others nobody knows when their commit was recorded, for the back-check did it.
    """
    rows = {order.order_id: order for order in orders}
    found: dict[str, list[Announced]] = defaultdict(list)
    for message in announced:
        found[message.order_id].append(message)
    return [
        *(_lost(order) for order in rows.values() if order.order_id not in found),
        *(_phantom(messages[0]) for order_id, messages in found.items() if order_id not in rows),
        *(_doubled(messages) for messages in found.values() if len(messages) > 1),
        *(_changed(rows[m.order_id], m) for ms in found.values() for m in ms if _is_changed(rows, m)),
        *(Violation(Kind.FORGOTTEN, order_id, "told as published") for order_id in sorted(told - rows.keys())),
        *_find_disorder([(order, found[key][0]) for key, order in rows.items() if key in found], told),
    ]


def _lost(order: Order) -> Violation:
    return Violation(Kind.LOST, order.order_id, f"number {order.number} of {order.customer}, by {order.way}")


def _phantom(message: Announced) -> Violation:
    return Violation(Kind.PHANTOM, message.order_id, _place(message))


def _doubled(messages: list[Announced]) -> Violation:
    return Violation(Kind.DOUBLED, messages[0].order_id, " and ".join(map(_place, messages)))


def _is_changed(rows: dict[str, Order], message: Announced) -> bool:
    order = rows.get(message.order_id)
    return order is not None and (order.customer, order.number, order.way) != (
        message.customer,
        message.number,
        message.topic,
    )


def _changed(order: Order, message: Announced) -> Violation:
    return Violation(Kind.CHANGED, order.order_id, f"{order} became {message}")


def _find_disorder(pairs: list[tuple[Order, Announced]], told: Set[str]) -> Iterator[Violation]:
    """Customer by customer, in the order of the numbers: nothing may lie before one that had to come first."""
    customers: dict[tuple[str, Way], list[tuple[Order, Announced]]] = defaultdict(list)
    for order, message in pairs:
        customers[order.customer, order.way].append((order, message))
    for ordered in customers.values():
        ordered.sort(key=lambda pair: pair[0].number)
        latest: Announced | None = None
        for order, message in ordered:
            if message.partition != ordered[0][1].partition:
                yield Violation(Kind.DIVIDED, order.order_id, f"{_place(ordered[0][1])} and {_place(message)}")
            elif latest is not None and message.offset < latest.offset:
                yield Violation(Kind.REORDERED, order.order_id, f"{_place(message)} before {_place(latest)}")
            elif order.way is Way.OUTBOX or order.order_id in told:
                latest = message


def _place(message: Announced) -> str:
    return f"number {message.number} of {message.customer} at {message.topic}-{message.partition}@{message.offset}"
