"""What producers draw by lot: transactions with everything that could be mixed up, and what becomes of them."""

import base64
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bridge.core.message import Message
from tests.chaos.orders import DOUBTFUL, MOODY, STEADY, TROUBLED
from tests.chaos.shop import COMMIT, ROLLBACK, UNKNOWN
from tests.support.history.content import make_content

REF = "ref"  # the header by which a group finds its local transaction again


class Fate(StrEnum):
    """What the producer does after the prepare."""

    END = "end"  # as its local transaction went
    CONTRADICT = "contradict"  # and then the opposite
    ABANDON = "abandon"  # dies between its local commit and the end
    FORGET = "forget"  # dies before its local transaction
    DOUBT = "doubt"  # nobody knows; the group's endpoint says so
    PUBLISH = "publish"  # no local transaction at all


_FATES = {Fate.END: 70, Fate.CONTRADICT: 6, Fate.ABANDON: 10, Fate.FORGET: 3, Fate.DOUBT: 3, Fate.PUBLISH: 8}
_USUAL, _RARE = 5, 1  # how often a topic is drawn, so that most transactions know no trouble


@dataclass(slots=True)
class Operation:
    """One transaction of a producer. `resolution`: how its local transaction goes."""

    ref: str
    group: str
    fate: Fate
    resolution: str
    body: dict[str, Any]
    members: dict[str, Any]  # of the invoke
    transaction_id: str | None = None
    is_open: bool = True  # something has still to be asked

    @property
    def is_keyed(self) -> bool:
        """Whether its prepare can be repeated."""
        return "idempotency_key" in self.body


def draft(ref: str, topics: Mapping[str, int], rng: random.Random) -> Operation:
    """A new transaction with one to four messages."""
    fate = rng.choices(list(_FATES), list(_FATES.values()))[0]
    group = DOUBTFUL if fate is Fate.DOUBT else rng.choice((STEADY, STEADY, MOODY))
    resolution = UNKNOWN if fate is Fate.DOUBT else rng.choices((COMMIT, ROLLBACK), (80, 20))[0]
    messages = [_message(ref, topics, rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 4)))]
    body: dict[str, Any] = {"producer_group": group, "messages": [_body_of(message) for message in messages]}
    members: dict[str, Any] = {"group": group, "messages": tuple(make_content(message) for message in messages)}
    if rng.random() < 0.5:
        body["idempotency_key"] = members["idempotency_key"] = ref
    if rng.random() < 0.25:
        body["ordering_key"] = members["ordering_key"] = f"line-{rng.randrange(20)}"
    return Operation(ref, group, fate, resolution, body, members)


def ref_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """The reference that the messages of a check or of an answer carry; empty if there is none."""
    for message in messages:
        plain, encoded = message.get("headers") or (), message.get("headers_base64") or ()
        for name, value in plain:
            if name == REF:
                return str(value)
        for name, value in encoded:
            if name == REF:
                return base64.b64decode(value).decode()
    return ""


def _message(ref: str, topics: Mapping[str, int], rng: random.Random) -> Message:
    topic = rng.choices(list(topics), [_RARE if topic in TROUBLED else _USUAL for topic in topics])[0]
    names = rng.choices(("source", "trace", "Ünïcode"), k=rng.randint(0, 4))
    headers = [(name, rng.choice((None, b"", rng.randbytes(9)))) for name in names]
    headers.insert(rng.randint(0, len(headers)), (REF, ref.encode()))
    key = rng.choice((None, b"", b"k%d" % rng.randint(0, 200), rng.randbytes(4)))
    value = rng.choice((None, b"", rng.randbytes(rng.randint(1, 400)), rng.randbytes(40)))
    partition = rng.randrange(topics[topic]) if rng.random() < 0.1 else -1
    timestamp_ms = rng.randint(1_500_000_000_000, 1_750_000_000_000) if rng.random() < 0.05 else None
    return Message(topic, key, value, headers, partition, timestamp_ms)


def _body_of(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {
        "topic": message.topic,
        "headers_base64": [[name, _encode(value)] for name, value in message.headers],
    }
    for name, raw in (("key", message.key), ("value", message.value)):
        body |= {name: None} if raw is None else {f"{name}_base64": _encode(raw)}
    if message.queue_id >= 0:
        body["partition"] = message.queue_id
    if message.timestamp_ms is not None:
        body["timestamp_ms"] = message.timestamp_ms
    return body


def _encode(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
