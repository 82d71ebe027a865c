"""What a relay may rely on when it hands rows over: in memory, and over HTTP to the real service."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from outbox.client.errors import HandOverUnavailable
from outbox.hand_over import HandOver, HttpHandOver, MemoryHandOver, OutboxRow, PublishStatus
from tests.support.socket_bridge import SocketBridge, socket_bridge

TOPIC, UNKNOWN_TOPIC = "line", "no.such.topic"
_NUMBERS = count()


class Arrived(NamedTuple):
    """What consumers find."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class HandOverWorld(Protocol):
    """An adapter, and what became of what it was given."""

    hand_over: HandOver

    def read(self) -> list[Arrived]: ...

    def go_away(self) -> None: ...


class MemoryWorld:
    """The adapter in memory."""

    def __init__(self) -> None:
        self.hand_over = MemoryHandOver()
        self.hand_over.refused_topics.add(UNKNOWN_TOPIC)

    def read(self) -> list[Arrived]:
        return [Arrived(row.key, row.value, list(row.headers)) for row in self.hand_over.published]

    def go_away(self) -> None:
        self.hand_over.is_away = True


class HttpWorld:
    """HTTP to a bridge on the in-memory log. What earlier tests published is not told."""

    def __init__(self, bridge: SocketBridge) -> None:
        self._bridge = bridge
        self._before = len(bridge.read_messages(TOPIC))
        self._open(bridge.url)

    def read(self) -> list[Arrived]:
        return [
            Arrived(message.key, message.value, [pair for pair in message.headers if pair[0] != "transaction-id"])
            for message in self._bridge.read_messages(TOPIC)[self._before :]
        ]

    def go_away(self) -> None:
        """To a port where nobody listens."""
        self.hand_over.close()
        self._open("http://127.0.0.1:1")

    def close(self) -> None:
        self.hand_over.close()

    def _open(self, url: str) -> None:
        self.hand_over = HttpHandOver(url, "relayed")


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBridge]:
    with socket_bridge(Path(tmp_path_factory.mktemp("bridge")), {TOPIC: 1}) as running:
        yield running


@pytest.fixture(params=["memory", "http"])
def world(request: pytest.FixtureRequest) -> Iterator[HandOverWorld]:
    """An adapter under test."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    made = HttpWorld(request.getfixturevalue("bridge"))
    yield made
    made.close()


def make_row(topic: str = TOPIC, value: bytes | None = b"v", ordering_key: str | None = "one line") -> OutboxRow:
    number = next(_NUMBERS)
    return OutboxRow(number, str(number), f"key-{number}", topic, value=value, ordering_key=ordering_key)


def test_row_arrives_as_it_was_enqueued(world: HandOverWorld) -> None:
    """Any bytes, null and empty apart, header order and repeats."""
    row = replace(make_row(value=b"\xff\x00"), key=b"\xfe", headers=(("h", b"\x80"), ("h", None), ("é", b"")))
    null, empty = make_row(value=None), make_row(value=b"")
    for one in (row, null, empty):
        assert [handed.fate for handed in world.hand_over.publish([one])] == [PublishStatus.PUBLISHED]
    assert world.read() == [
        Arrived(b"\xfe", b"\xff\x00", [("h", b"\x80"), ("h", None), ("é", b"")]),
        Arrived(None, None, []),
        Arrived(None, b"", []),
    ]


def test_handing_over_again_doubles_nothing(world: HandOverWorld) -> None:
    """In one call, in the next, and beside others; each time the row is told to be published."""
    first, second = make_row(value=b"1"), make_row(value=b"2")
    for rows in ([first], [first, second], [second, first]):
        assert [handed.fate for handed in world.hand_over.publish(rows)] == [PublishStatus.PUBLISHED] * len(rows)
    assert [arrived.value for arrived in world.read()] == [b"1", b"2"]


def test_refused_row_stops_no_other(world: HandOverWorld) -> None:
    """Fates come in the order of the rows, refusals with the bridge's words."""
    rows = [make_row(value=b"1", ordering_key=None), make_row(UNKNOWN_TOPIC), make_row("no topic"), make_row()]
    handed = world.hand_over.publish(rows)
    assert [one.fate for one in handed] == [
        PublishStatus.PUBLISHED,
        PublishStatus.REFUSED,
        PublishStatus.REFUSED,
        PublishStatus.PUBLISHED,
    ]
    assert handed[1].reason.startswith("422 unknown-topic")
    assert len(world.read()) == 2


def test_known_key_with_other_content_is_refused(world: HandOverWorld) -> None:
    """Never a mixture: what was published stands."""
    row = make_row(value=b"1")
    world.hand_over.publish([row])
    (handed,) = world.hand_over.publish([replace(row, value=b"2")])
    assert (handed.fate, handed.reason[:26]) == (PublishStatus.REFUSED, "422 idempotency-key-reused")
    assert [arrived.value for arrived in world.read()] == [b"1"]


def test_nothing_to_hand_over_is_nothing(world: HandOverWorld) -> None:
    """No request, no error."""
    assert list(world.hand_over.publish([])) == []


@pytest.mark.parametrize("number", [1, 2])
def test_bridge_that_is_away_judges_no_row(world: HandOverWorld, number: int) -> None:
    """All of them are to be handed over again, one alone too."""
    world.go_away()
    with pytest.raises(HandOverUnavailable):
        world.hand_over.publish([make_row() for _ in range(number)])
