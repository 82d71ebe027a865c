"""What a client does, and what comes of it: on RocketMQ and on the door."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.rocketmq.sides import INTERVAL_S, MOST_CHECKS, TIMEOUT_S, Side
from tests.support.remoting_client import RemotingClient

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
COUNT = 20
_LAST_S = INTERVAL_S + 3.0  # without a check, until none comes any more
_Found = Mapping[str, int]


class Stage(NamedTuple):
    """Where a behaviour is looked at: a topic and a group of its own."""

    side: Side
    topic: str
    group: str

    def connect(self) -> RemotingClient:
        """A producer."""
        return self.side.connect(self.group)

    def count(self) -> int:
        """Messages that consumers get."""
        return self.side.count_visible(self.topic)

    def wait_visible(self, count: int) -> int:
        """As many, and whatever comes beside them."""
        until = time.monotonic() + 30
        while self.count() < count and time.monotonic() < until:
            time.sleep(0.2)
        return self.count()


class Behaviour(NamedTuple):
    """`wanted`: what must be found at the door. `words`, `chinese`: what the client does, with {count} messages."""

    name: str
    words: str
    chinese: str
    wanted: _Found
    look: Callable[[Stage], _Found]


def _answer_all(client: RemotingClient, resolution: int, seconds: float) -> int:
    """How many checks were answered until none came for so long."""
    answered = 0
    while checks := client.wait_checks(seconds):
        for check in checks:
            client.answer_check(check, resolution)
        answered += len(checks)
    return answered


def _end_all(stage: Stage, *resolutions: int) -> _Found:
    client = stage.connect()
    halves = [client.prepare(stage.topic) for _ in range(COUNT)]
    for resolution in resolutions:
        for half in halves:
            client.end_half(half, resolution)
        time.sleep(0.5)
    time.sleep(1)
    stage.wait_visible(COUNT if COMMIT in resolutions[:1] else 0)
    client.close()
    return {"visible": stage.count()}


def commit(stage: Stage) -> _Found:
    """The usual way."""
    return _end_all(stage, COMMIT)


def roll_back(stage: Stage) -> _Found:
    """The other usual way."""
    return _end_all(stage, ROLLBACK)


def commit_twice(stage: Stage) -> _Found:
    """A library repeats nothing, but a network may, and a check is answered beside an end."""
    return _end_all(stage, COMMIT, COMMIT)


def commit_after_rollback(stage: Stage) -> _Found:
    """The first decision is the one that the database knows."""
    return _end_all(stage, ROLLBACK, COMMIT)


def unknown_then_checked(stage: Stage) -> _Found:
    """The listener did not know, and knows when it is asked."""
    client = stage.connect()
    for half in [client.prepare(stage.topic) for _ in range(COUNT)]:
        client.end_half(half, UNKNOWN)
    asked = _answer_all(client, COMMIT, _LAST_S)
    client.close()
    return {"visible": stage.count(), "asked": asked}


def never_known(stage: Stage) -> _Found:
    """Each check is answered with unknown."""
    before = stage.side.count_put_aside()
    client = stage.connect()
    for half in [client.prepare(stage.topic) for _ in range(COUNT)]:
        client.end_half(half, UNKNOWN)
    _answer_all(client, UNKNOWN, _LAST_S)
    client.close()
    return {"visible": stage.count(), "put aside": stage.side.count_put_aside() - before}


def nobody_to_ask(stage: Stage) -> _Found:
    """The whole group is away for longer than all checks take, and comes back."""
    before = stage.side.count_put_aside()
    client = stage.connect()
    for _ in range(COUNT):
        client.prepare(stage.topic)
    client.close()
    time.sleep(TIMEOUT_S + (MOST_CHECKS + 2) * INTERVAL_S + _LAST_S)
    client = stage.connect()
    asked = _answer_all(client, COMMIT, _LAST_S)
    client.close()
    return {"visible": stage.count(), "asked": asked, "put aside": stage.side.count_put_aside() - before}


def send_again(stage: Stage) -> _Found:
    """The answer to a send was lost, so the library sends the same message again; then it commits."""
    client = stage.connect()
    halves = []
    for _ in range(COUNT):
        lost = client.prepare(stage.topic)
        halves.append(client.prepare(stage.topic, lost.key))
    for half in halves:
        client.end_half(half, COMMIT)
    stage.wait_visible(COUNT)
    client.wait_checks(0.5)  # of before they were ended
    asked = _answer_all(client, ROLLBACK, _LAST_S)
    client.close()
    return {"visible": stage.count(), "asked": asked}


def slow_transaction(stage: Stage) -> _Found:
    """A check is answered with commit, as the rows are there already, before the library sends its end."""
    client = stage.connect()
    halves = [client.prepare(stage.topic) for _ in range(COUNT)]
    answered = Counter[str]()
    until = time.monotonic() + 30
    while len(answered) < COUNT and time.monotonic() < until:
        for check in client.wait_checks(0.5):
            client.answer_check(check, COMMIT)
            answered[check.fields.get("msgId", "")] += 1
    for half in halves:
        client.end_half(half, COMMIT)
    _answer_all(client, COMMIT, _LAST_S)
    client.close()
    return {"visible": stage.count()}


def killed_after_commit(stage: Stage) -> _Found:
    """Committed and visible; then the broker, or the bridge, is killed and started again."""
    client = stage.connect()
    for half in [client.prepare(stage.topic) for _ in range(COUNT)]:
        client.end_half(half, COMMIT)
    stage.wait_visible(COUNT)
    client.close()
    stage.side.restart()
    client = stage.connect()
    asked = _answer_all(client, COMMIT, TIMEOUT_S + _LAST_S)
    client.close()
    return {"visible": stage.count(), "asked": asked}


BEHAVIOURS = (
    Behaviour("commit", "commits {count}", "提交 {count} 条", {"visible": COUNT}, commit),
    Behaviour("roll-back", "rolls {count} back", "回滚 {count} 条", {"visible": 0}, roll_back),
    Behaviour(
        "unknown", "answers unknown for {count}, and commit when it is asked",
        "{count} 条先答 UNKNOW，回查时答提交", {"visible": COUNT, "asked": COUNT}, unknown_then_checked,
    ),
    Behaviour(
        "never-known", "answers unknown to each check of {count}", "{count} 条的每次回查都答 UNKNOW",
        {"visible": 0, "put aside": COUNT}, never_known,
    ),
    Behaviour("twice", "commits {count} twice", "{count} 条各提交两次", {"visible": COUNT}, commit_twice),
    Behaviour(
        "after-rollback", "rolls {count} back, then commits them", "{count} 条先回滚再提交",
        {"visible": 0}, commit_after_rollback,
    ),
    Behaviour(
        "slow", "is slow with {count}: a check is answered with commit, then the end comes",
        "{count} 条本地事务较慢：回查先答提交，随后才到结束请求", {"visible": COUNT}, slow_transaction,
    ),
    Behaviour(
        "again", "sends {count} again because the answer was lost, then commits",
        "因应答丢失而重发 {count} 条，然后提交", {"visible": COUNT, "asked": 0}, send_again,
    ),
    Behaviour(
        "killed", "commits {count}; once they are visible, the other side is killed and started again",
        "提交 {count} 条；可见之后，对端被杀掉并重新启动", {"visible": COUNT, "asked": 0}, killed_after_commit,
    ),
    Behaviour(
        "nobody", "leaves {count} pending, and is away with its whole group for longer than all checks take; then it "
        "answers commit",
        "整个生产者组离线，时间超过全部回查，有 {count} 条待定；回来后答提交",
        {"visible": COUNT, "asked": COUNT, "put aside": 0}, nobody_to_ask,
    ),
)  # fmt: skip
