"""Doing what needs something that is away for a time."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.insist import insist, insist_once

EXISTS = KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))


def raising(*errors: Exception) -> Callable[[], str]:
    """Raises each once, then returns."""
    left: Iterator[Exception] = iter(errors)

    def act() -> str:
        for error in left:
            raise error
        return "done"

    return act


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(KafkaError(KafkaError._TRANSPORT)),
        TimeoutError(),  # of a future of Kafka's admin client, while its broker stands still
        AssertionError("topics did not come true in 30 s"),
    ],
    ids=repr,
)
def test_whatever_is_away_is_asked_again(error: Exception) -> None:
    """One answer that did not come once ended a run of release size half-way."""
    assert insist(raising(error)) == "done"


def test_an_error_that_stays_is_raised() -> None:
    """A mistake of the harness itself must not hang it for ever."""
    with pytest.raises(ValueError, match="second"):
        insist(raising(ValueError("first"), ValueError("second")), patience_s=0.1)


def test_what_an_earlier_try_has_done_is_done() -> None:
    """Its answer was lost; Kafka refuses the repeat, and only for this reason it counts as done."""
    insist_once(lambda: raising(EXISTS)() and None, KafkaError.TOPIC_ALREADY_EXISTS)
    tries: list[None] = []

    def act() -> None:
        tries.append(None)
        if len(tries) == 1:
            raise EXISTS

    insist_once(act, KafkaError.INVALID_PARTITIONS)
    assert len(tries) == 2
