"""How large a message becomes."""

from bridge.core.message import Message
from bridge.core.properties import ID_HEADER_BYTES, count_body_bytes, count_record_bytes, measure_published


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


def test_published_record_is_measured_exactly() -> None:
    """61 of the batch; length, 3 fixed, lengths of key and value, number of headers; lengths grow at 64 and 8,192."""
    assert measure_published(Message("t"), has_id_header=False) == 61 + 1 + 3 + 1 + 1 + 1
    assert measure_published(Message("t", b"", b""), has_id_header=False) == 61 + 1 + 3 + 1 + 1 + 1
    assert measure_published(Message("t", b"k" * 63, b""), has_id_header=False) == 61 + 2 + 3 + (1 + 63) + 1 + 1
    assert measure_published(Message("t", b"k" * 64, b""), has_id_header=False) == 61 + 2 + 3 + (2 + 64) + 1 + 1
    assert measure_published(Message("t", None, b"v" * 8_192), has_id_header=False) == 61 + 3 + 3 + 1 + 3 + 8_192 + 1
    headers = [("é", b"6789"), ("a", None)]
    assert measure_published(Message("t", headers=headers), has_id_header=False) == 61 + 1 + 6 + (1 + 2 + 1 + 4) + 3


def test_id_header_is_measured_where_there_is_one() -> None:
    """Its name of 14 and its value of 28 bytes, with a length each."""
    message = Message("t", None, b"v" * 100)
    with_id, without = (measure_published(message, has_id_header=has_id) for has_id in (True, False))
    assert with_id - without == 1 + 14 + 1 + 28


def test_estimate_is_never_below_the_figure() -> None:
    """What the estimate lets pass need not be measured."""
    for size in (0, 1, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576):
        headers = [("h" * min(size, 30_000), b"x" * size)] * 2
        for message in (Message("t", b"k" * size, b"v" * size, headers), Message("t", None, b"v" * size)):
            exact = measure_published(message, has_id_header=True)
            assert exact <= count_record_bytes(message) + ID_HEADER_BYTES
