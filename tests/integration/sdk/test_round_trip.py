"""What is sent is what consumers get, byte for byte."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox import Bridge, Message
from tests.support.sdk_messages import messages
from tests.support.socket_bridge import SocketBridge

_SOME_PAST_MS = 1_700_000_000_000  # a broker takes none that is much ahead of it

MESSAGES = messages(st.just("line"), timestamps=st.none() | st.integers(1, _SOME_PAST_MS))


@pytest.fixture(scope="module")
def face(bridge: SocketBridge) -> Iterator[Bridge]:
    """One for all examples."""
    with Bridge(bridge.url, "round-trip") as running:
        yield running


@settings(max_examples=60)
@given(sent=st.lists(MESSAGES, min_size=1, max_size=5))
def test_bytes_arrive_as_they_were_given(bridge: SocketBridge, face: Bridge, sent: list[Message]) -> None:
    """Null is not empty, header lists keep order and repeats, timestamps are those asked for."""
    view = face.publish(sent)
    stored = {message.queue_offset: message for message in bridge.read_messages("line")}
    read = [stored[receipt.offset] for receipt in view.receipts if receipt.offset is not None]
    pairs = list(zip(sent, read, strict=True))
    assert [(m.key, m.value, tuple(m.headers)[: len(its.headers)]) for its, m in pairs] == [
        (its.key, its.value, its.headers) for its in sent
    ]
    assert [m.stored_ms for its, m in pairs if its.timestamp_ms] == [
        its.timestamp_ms for its in sent if its.timestamp_ms
    ]
