"""Whether a topic, as the cluster describes it, takes a message. Pure."""

from enum import StrEnum

from bridge.core.message import BY_KEY, Message
from bridge.core.properties import ID_HEADER_BYTES, count_record_bytes, measure_published
from bridge.store.message_store import TopicDescription


class NotTaken(StrEnum):
    """What speaks against it; the same words as for what a cluster refuses."""

    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    KEY_REQUIRED = "KEY_REQUIRED"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"


def find_obstacle(message: Message, topic: TopicDescription, now_ms: int, *, has_id_header: bool) -> NotTaken | None:
    """Why the topic would refuse the message when it is published now, by Kafka's time; None if it takes it.

    `has_id_header`: the message is published with the transaction's id as one header more. Rights are not judged here:
    a commit that stands is tried.
    """
    if message.queue_id != BY_KEY and not 0 <= message.queue_id < topic.queues:
        return NotTaken.UNKNOWN_PARTITION
    if message.key is None and topic.is_key_required:
        return NotTaken.KEY_REQUIRED
    if message.timestamp_ms and not topic.is_log_append_time:
        oldest_ms, newest_ms = now_ms - topic.timestamp_before_max_ms, now_ms + topic.timestamp_after_max_ms
        if not oldest_ms <= message.timestamp_ms <= newest_ms:
            return NotTaken.INVALID_TIMESTAMP
    if count_record_bytes(message) + ID_HEADER_BYTES <= topic.max_message_bytes:
        return None  # the estimate is cheaper than the figure
    size = measure_published(message, has_id_header=has_id_header)
    return NotTaken.MESSAGE_TOO_LARGE if size > topic.max_message_bytes else None
