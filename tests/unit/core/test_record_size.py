"""How large a message becomes."""

from bridge.core.message import Message
from bridge.core.record_size import ID_HEADER_BYTES, count_body_bytes, count_record_bytes


def test_body_is_what_was_given() -> None:
    """Key, value, header names in UTF-8, header values; null weighs nothing."""
    assert count_body_bytes(Message("t")) == 0
    assert count_body_bytes(Message("t", b"12", b"345")) == 5
    assert count_body_bytes(Message("t", b"12", b"345", [("é", b"6789"), ("a", None)])) == 5 + 6 + 1


def test_record_adds_what_kafka_adds_at_most() -> None:
    """90 bytes, and 8 for each header; the id header is counted as one."""
    assert count_record_bytes(Message("t")) == 90
    assert count_record_bytes(Message("t", b"12", b"345")) == 95
    headers = [("é", b"6789"), ("a", None)]
    assert count_record_bytes(Message("t", b"12", b"345", headers)) == 95 + 6 + 1 + 2 * 8
    with_id = Message("t", headers=[("transaction-id", b"0" * 28)])
    assert count_record_bytes(with_id) - count_record_bytes(Message("t")) == ID_HEADER_BYTES
