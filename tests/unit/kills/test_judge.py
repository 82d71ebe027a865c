"""The judge of a run of kills, on small histories whose verdict is known."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kills.judge import Announced, Kind, Order, Way, judge


def make_orders(way: Way, *names: str, customer: str = "ann") -> list[Order]:
    """Numbered from 1 in the order of their names."""
    return [Order(name, customer, number, way) for number, name in enumerate(names, start=1)]


def announce(*orders: Order, partition: int = 0) -> list[Announced]:
    """Messages one behind the other in one partition."""
    return [
        Announced(order.order_id, order.customer, order.number, order.way, partition, offset)
        for offset, order in enumerate(orders)
    ]


def kinds(orders: list[Order], announced: list[Announced], told: set[str] | None = None) -> list[tuple[Kind, str]]:
    return [(violation.kind, violation.order_id) for violation in judge(orders, announced, told or set())]


@pytest.mark.parametrize("way", Way)
def test_each_order_once_and_in_order_is_good(way: Way) -> None:
    """Also where the producer was told of each, and where offsets have gaps as Kafka transactions leave them."""
    orders = make_orders(way, "a", "b", "c")
    gaps = [message._replace(offset=3 * message.offset + 1) for message in announce(*orders)]
    assert kinds(orders, gaps, {"a", "b", "c"}) == []
    assert kinds([], []) == []


def test_committed_order_without_message_is_lost() -> None:
    """A relay that deletes first, a check that is answered ROLLBACK after the commit."""
    first, second = make_orders(Way.OUTBOX, "a", "b")
    assert kinds([first, second], announce(second)) == [(Kind.LOST, "a")]


def test_message_without_row_is_a_phantom() -> None:
    """A check that is answered COMMIT without a record."""
    first, second = make_orders(Way.TRANSACTION, "a", "b")
    assert kinds([first], announce(first, second)) == [(Kind.PHANTOM, "b")]


def test_second_message_of_an_order_is_doubled() -> None:
    """A repeated hand-over that was no repeat to the bridge; a phantom can be doubled too."""
    first, second = make_orders(Way.OUTBOX, "a", "b")
    assert kinds([first, second], announce(first, second, first)) == [(Kind.DOUBLED, "a")]
    assert kinds([], announce(first, first)) == [(Kind.PHANTOM, "a"), (Kind.DOUBLED, "a")]


def test_message_that_says_something_else_is_changed() -> None:
    """The right id alone proves nothing: customer, number and topic are the order's too."""
    (order,) = make_orders(Way.OUTBOX, "a")
    (message,) = announce(order)
    assert kinds([order], [message]) == []
    for changed in ({"customer": "bob"}, {"number": 2}, {"topic": Way.TRANSACTION}):
        assert kinds([order], [message._replace(**changed)]) == [(Kind.CHANGED, "a")]


def test_customer_in_two_partitions_is_divided() -> None:
    """No reader could put them in order again."""
    first, second = make_orders(Way.OUTBOX, "a", "b")
    assert kinds([first, second], [*announce(first), *announce(second, partition=1)]) == [(Kind.DIVIDED, "b")]


def test_outbox_rows_of_a_customer_may_never_overtake() -> None:
    """Whatever their producer knows of them; the place of each is that of its first message."""
    a, b, c = orders = make_orders(Way.OUTBOX, "a", "b", "c")
    assert kinds(orders, announce(b, a, c)) == [(Kind.REORDERED, "b")]
    assert kinds(orders, announce(a, c, b)) == [(Kind.REORDERED, "c")]
    assert kinds(orders, announce(c, a, b)) == [(Kind.REORDERED, "c")]


def test_transaction_may_not_overtake_one_whose_publication_was_told() -> None:
    """Not even when others lie between the two that its producer was told nothing of."""
    a, b, c = orders = make_orders(Way.TRANSACTION, "a", "b", "c")
    assert kinds(orders, announce(b, a, c), {"a"}) == [(Kind.REORDERED, "b")]
    assert kinds(orders, announce(c, b, a), {"a"}) == [(Kind.REORDERED, "b"), (Kind.REORDERED, "c")]


def test_transaction_left_to_the_check_may_be_overtaken() -> None:
    """Its commit is recorded when the check is answered, and the order is that of the recorded commits."""
    a, b, c = orders = make_orders(Way.TRANSACTION, "a", "b", "c")
    assert kinds(orders, announce(b, c, a), {"b", "c"}) == []
    assert kinds(orders, announce(b, a, c), {"b"}) == []


def test_customers_and_ways_do_not_wait_for_each_other() -> None:
    """Numbers are those of one customer by one way."""
    ann, bob = make_orders(Way.OUTBOX, "a", "b"), make_orders(Way.OUTBOX, "c", "d", customer="bob")
    assert kinds([*ann, *bob], announce(bob[0], ann[0], bob[1], ann[1])) == []
    one, other = Order("a", "ann", 1, Way.TRANSACTION), Order("b", "ann", 2, Way.OUTBOX)
    assert kinds([one, other], [*announce(other), *announce(one, partition=1)], {"a"}) == []


def test_order_told_as_published_must_be_in_the_database() -> None:
    """An answer to the producer is a promise about its own commit too."""
    (order,) = make_orders(Way.TRANSACTION, "a")
    assert kinds([order], announce(order), {"a", "b"}) == [(Kind.FORGOTTEN, "b")]


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)), st.sampled_from(Way))
def test_order_is_judged_as_pair_by_pair(places: list[int], told: set[int], way: Way) -> None:
    """Bad is every order that lies before an earlier one that had to come first, and no other."""
    orders = make_orders(way, *"abcde")
    announced = [message._replace(offset=place) for message, place in zip(announce(*orders), places, strict=True)]
    bad = {
        orders[later].order_id
        for earlier, later in permutations(range(5), 2)
        if earlier < later and places[later] < places[earlier] and (way is Way.OUTBOX or earlier in told)
    }
    found = judge(orders, announced, {orders[number].order_id for number in told})
    assert all(violation.kind is Kind.REORDERED for violation in found)
    assert {violation.order_id for violation in found} == bad
