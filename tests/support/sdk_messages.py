"""Messages for the producer's side, generated; and checks as a bridge asks them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from outbox import Message

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
RAW = st.none() | st.binary(max_size=30) | TEXTS
HEADER_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), max_size=8).filter(
    lambda name: name not in {"properties", "transaction-id"}
)
HEADERS = st.lists(st.tuples(HEADER_NAMES, RAW), max_size=4)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


def messages(
    topics: st.SearchStrategy[str],
    partitions: st.SearchStrategy[int | None] = st.none(),  # noqa: B008 - strategies do not change
    timestamps: st.SearchStrategy[int | None] = st.none(),  # noqa: B008 - strategies do not change
) -> st.SearchStrategy[Message]:
    """Anything that can be sent."""
    return st.builds(
        Message, topics, key=RAW, value=RAW | DOCUMENTS, headers=HEADERS, partition=partitions, timestamp_ms=timestamps
    )


@dataclass(frozen=True)
class Asked:
    """A check, its messages as they stand in the call."""

    transaction_id: str
    producer_group: str = "shop"
    check_number: int = 2
    nonce: str = "2-n"
    born_ms: int = 1_769_860_800_123
    idempotency_key: str | None = "order-1"
    messages: Sequence[dict[str, object]] = ({"topic": "orders", "key": "k", "value": {"a": 1}, "headers": []},)
