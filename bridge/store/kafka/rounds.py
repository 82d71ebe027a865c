"""Messages of one Kafka transaction in rounds, so that no request is larger than its topic takes. Pure."""

from collections.abc import Callable, Sequence

from bridge.core.message import Message
from bridge.core.record_size import count_record_bytes

REQUEST_BYTES = 900_000  # of one request to one queue; below Kafka's default `max.message.bytes`
MOST_ROUNDS = 200  # more than the messages of one transaction, and far within the time-out of a Kafka transaction

LimitOf = Callable[[str], int | None]
"""`max.message.bytes` of a topic; None if it is not known."""


def no_limit(_: str) -> int | None:
    """Where nobody knows of a topic with a limit of its own."""
    return None


def split_rounds(messages: Sequence[Message], limit_of: LimitOf) -> list[list[Message]]:
    """Rounds to be sent one after the other; order within each queue is kept.

    The client fills requests up to one size, whatever the topic, and a topic that takes less refuses such a request
    whole. Of each queue of such a topic a round holds no more than one request may; all others go with the first.
    """
    limits = {topic: limit_of(topic) for topic in {message.topic for message in messages}}
    small = {topic: limit for topic, limit in limits.items() if limit is not None and limit < REQUEST_BYTES}
    if not small:
        return [list(messages)]
    rounds: list[list[Message]] = [[]]
    filled: dict[tuple[str, int], tuple[int, int]] = {}
    for message in messages:
        limit = small.get(message.topic)
        number = 0
        if limit is not None:
            place, size = (message.topic, message.queue_id), count_record_bytes(message)
            number, used = filled.get(place, (0, 0))
            if used and used + size > limit:
                number, used = number + 1, 0
            filled[place] = number, used + size
            if number == len(rounds):
                rounds.append([])
        rounds[number].append(message)
    return rounds
