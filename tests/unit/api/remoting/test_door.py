"""The door: which sends go to the bridge together, and what it says of routes."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from api.remoting.door import Door, DoorConfig, DoorParts, EndAnswer
from api.remoting.frame import FrameBuffer, RemotingCommand
from api.remoting.gathering import FirstTries
from api.remoting.message import TRACE_TOPIC, RequestCode, ResponseCode
from api.web.limits import ByteBudget, QuotaConfig, Quotas
from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.grants import EVERYTHING, Rights
from bridge.core.record import Resolution
from bridge.core.transaction import TransactionState, make_transaction_id
from bridge.service.access import ANYBODY, Caller
from bridge.service.contract import Accepted, EndCall, Outcome, PrepareCall, Prepared, RefusalCode, Refused, Wait
from tests.unit.api.remoting.test_first_tries import KAFKA_MS, NOW_MS, key_of, learned
from tests.unit.api.remoting.test_gatherer import until


class Transactions:
    """Takes everything, and keeps what was said of each list. `takes_ms`: of Kafka's time, each list."""

    def __init__(self, takes_ms: int = 0) -> None:
        self.lists: list[tuple[list[str | None], int | None]] = []
        self._now_ms = KAFKA_MS
        self._takes_ms = takes_ms
        self.ends: list[asyncio.Future[list[EndAnswer]]] = []

    async def end(self, _: Sequence[EndCall], __: Wait, ___: int, ____: object) -> list[EndAnswer]:
        self.ends.append(asyncio.get_running_loop().create_future())
        return await self.ends[-1]

    def kafka_time_ms(self) -> int:
        return self._now_ms

    async def prepare(
        self, calls: Sequence[PrepareCall], _: int, first_try_ms: int | None, rights: object, __: GroupSettings
    ) -> list[Prepared]:
        self.lists.append(([call.idempotency_key for call in calls], first_try_ms))
        self._now_ms += self._takes_ms
        return [Prepared("t", call.group, TransactionState.PREPARED, 0, 0, 0, 0) for call in calls]


class Clock:
    def monotonic_ms(self) -> int:
        return 1


class Directory:
    def __init__(self, transaction_timeout_ms: int) -> None:
        self._times = CheckTimes(transaction_timeout_ms)

    def settings_of(self, group: str) -> GroupSettings:
        return GroupSettings(self._times)


class Callers:
    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def identify(self, request: RemotingCommand) -> Caller:
        return self.caller


class Groups:
    def join(self, group: str, member: object) -> bool:
        """Nobody is asked here."""
        return True


class Peer:
    """A connection. `tries`: what it has proved."""

    caller = ANYBODY

    def __init__(self, tries: FirstTries) -> None:
        self.tries = tries
        self.groups: set[str] = set()
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


UNLIMITED, PROVEN = QuotaConfig(), Caller("shop", EVERYTHING, "k1")


def send_of(key: str) -> RemotingCommand:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01{key}\x02"
    fields = {"a": "shop", "b": "orders", "e": "0", "f": "4", "g": str(NOW_MS), "i": properties}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=1, fields=fields, body=b"paid")


def open_door(
    transactions: Transactions,
    transaction_timeout_ms: int = 6_000,
    quota: QuotaConfig = UNLIMITED,
    caller: Caller | Callers = ANYBODY,
    budget: ByteBudget | None = None,
) -> Door:
    nobody = Any
    groups: Any = Directory(transaction_timeout_ms)
    callers = Callers(caller) if isinstance(caller, Caller) else caller
    parts = DoorParts(
        transactions, groups, Groups(), callers, lambda: nobody, Clock(), Quotas(quota, 1_000)  # type: ignore[arg-type]
    )  # fmt: skip
    config = DoorConfig("127.0.0.1:9876", 1_000_000)
    return Door(parts, config if budget is None else replace(config, budget=budget))


async def test_first_tries_and_others_never_share_a_list() -> None:
    """What is said of a list holds for each of its calls: a repeat among first tries would not be looked up."""
    transactions = Transactions()
    door = open_door(transactions)
    proven, unproven = Peer(learned()), Peer(FirstTries())
    fresh, old = key_of(NOW_MS), key_of(NOW_MS - 1)
    door.take(proven, send_of(fresh))  # type: ignore[arg-type]
    door.take(unproven, send_of(old))  # type: ignore[arg-type]
    door.take(proven, send_of(old))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert door.is_idle
    assert sorted(transactions.lists, key=lambda said: said[1] is None) == [([fresh], KAFKA_MS), ([old, old], None)]
    assert [len(peer.sent) for peer in (proven, unproven)] == [2, 1]


@pytest.mark.parametrize("quota", [QuotaConfig(requests_per_s=1), QuotaConfig(bytes_per_s=1)], ids=["sends", "bytes"])
async def test_send_over_the_quota_is_refused_and_nothing_is_applied(quota: QuotaConfig) -> None:
    """Of the principal, whichever connection it uses; with the word that lets clients try again, and how long."""
    transactions = Transactions()
    door = open_door(transactions, quota=quota, caller=PROVEN)
    peers = [Peer(learned()) for _ in range(4)]
    for number, peer in enumerate(peers):
        door.take(peer, send_of(key_of(NOW_MS + number)))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    answers = FrameBuffer()
    for peer in peers:
        answers.add(b"".join(peer.sent))
    refused = [answer for answer in answers.take() if answer.code == ResponseCode.SYSTEM_BUSY]
    assert len(refused) + sum(len(keys) for keys, _ in transactions.lists) == 4
    assert refused
    assert all(
        str(answer.remark).startswith("rate-limited: ") and "again in" in str(answer.remark) for answer in refused
    )


async def test_who_is_not_known_has_no_quota() -> None:
    """Without keys all clients have one name: what is fair between principals would keep them from each other."""
    transactions = Transactions()
    door = open_door(transactions, quota=QuotaConfig(requests_per_s=1))
    peers = [Peer(learned()) for _ in range(4)]
    for number, peer in enumerate(peers):
        door.take(peer, send_of(key_of(NOW_MS + number)))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert sum(len(keys) for keys, _ in transactions.lists) == 4


@pytest.mark.parametrize(("takes_ms", "timeout_ms", "said"), [
    (4_900, 6_000, [KAFKA_MS]),
    (5_100, 6_000, [KAFKA_MS, None]),
    (0, 5_000, [None]),
])  # fmt: skip
async def test_what_a_check_may_have_ended_is_looked_up(takes_ms: int, timeout_ms: int, said: list[int | None]) -> None:
    """A second try by another door looks like a first one; the check of the first may be answered before it is."""
    transactions, peer = Transactions(takes_ms), Peer(learned())
    door = open_door(transactions, timeout_ms)
    door.take(peer, send_of(key_of(NOW_MS)))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert [time for _, time in transactions.lists] == said
    assert len(peer.sent) == 1


async def test_send_that_is_one_way_is_stored_and_not_answered() -> None:
    """Whether it is taken or refused: clients log each answer to a request that they do not know."""
    transactions, peer = Transactions(), Peer(FirstTries())
    door = open_door(transactions)
    refused, dropped = (replace_topic(send_of(key_of(NOW_MS)), topic) for topic in ("a%b", TRACE_TOPIC))
    for request in (send_of(key_of(NOW_MS)), refused, dropped):
        request.flag = 2
        door.take(peer, request)  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert [keys for keys, _ in transactions.lists] == [[key_of(NOW_MS)]]
    assert peer.sent == []


def replace_topic(request: RemotingCommand, topic: str) -> RemotingCommand:
    request.fields = {**request.fields, "b": topic}
    return request


@pytest.mark.parametrize("topic", ["orders", "TBW102"])
def test_every_topic_has_a_route(topic: str) -> None:
    """Of TBW102 clients of version 4 learn, before their first send, whom to tell that they are there."""
    peer, answers = Peer(FirstTries()), FrameBuffer()
    request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=1, fields={"topic": topic})
    open_door(Transactions()).take(peer, request)  # type: ignore[arg-type]
    answers.add(peer.sent[0])
    (answer,) = answers.take()
    assert answer.code == 0
    assert b"127.0.0.1:9876" in answer.body


@pytest.mark.parametrize("body", [b'{"x":' + b"[" * 100_000, b'{"clientID":"\xff"}'])
def test_heartbeat_that_cannot_be_read_is_refused(body: bytes) -> None:
    """Whatever is wrong with it; the connection, and what else is sent on it, goes on."""
    peer, answers = Peer(FirstTries()), FrameBuffer()
    request = RemotingCommand(RequestCode.HEART_BEAT, opaque=1, body=body)
    open_door(Transactions()).take(peer, request)  # type: ignore[arg-type]
    answers.add(peer.sent[0])
    (answer,) = answers.take()
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


ID = make_transaction_id(0, 1)


def end_of(flag: int, **fields: str) -> RemotingCommand:
    said = {"transactionId": ID, "commitOrRollback": "8", "producerGroup": "shop", **fields}
    return RemotingCommand(RequestCode.END_TRANSACTION, opaque=1, flag=flag, fields=said)


def read_codes(peer: Peer) -> list[int]:
    answers = FrameBuffer()
    answers.add(b"".join(peer.sent))
    return [answer.code for answer in answers.take()]


@pytest.mark.parametrize(("answer", "code"), [
    (Accepted(ID, Resolution.COMMIT), ResponseCode.SUCCESS),
    (Refused(RefusalCode.FORBIDDEN, "no"), ResponseCode.MESSAGE_ILLEGAL),
    (Refused(RefusalCode.UNAVAILABLE, "away"), ResponseCode.FLUSH_DISK_TIMEOUT),
    (Refused(RefusalCode.OUTCOME_UNKNOWN, "late", Outcome.UNKNOWN), ResponseCode.FLUSH_DISK_TIMEOUT),
])  # fmt: skip
async def test_end_that_is_waited_for_is_acknowledged_once_it_is_kept(answer: EndAnswer, code: int) -> None:
    """Success is said of nothing that a crash may lose, nor of what was refused."""
    transactions, peer = Transactions(), Peer(FirstTries())
    door = open_door(transactions)
    door.take(peer, end_of(0))  # type: ignore[arg-type]
    await until(lambda: len(transactions.ends) == 1)
    assert peer.sent == []
    transactions.ends[0].set_result([answer])
    await until(lambda: bool(peer.sent))
    assert read_codes(peer) == [code]


@pytest.mark.parametrize("fields", [
    {"transactionId": "0" * 200_000}, {"transactionId": "7F0001"}, {"producerGroup": "g" * 200_000},
], ids=["long", "another's", "group"])  # fmt: skip
async def test_end_of_nothing_that_there_can_be_is_not_kept(fields: dict[str, str]) -> None:
    """A hundred thousand ends may wait while Kafka is away: of what clients invent they would take 20 GB."""
    peer, one_way = Peer(FirstTries()), Peer(FirstTries())
    door = open_door(Transactions())
    door.take(peer, end_of(0, **fields))  # type: ignore[arg-type]
    door.take(one_way, end_of(2, **fields))  # type: ignore[arg-type]
    assert door.is_idle
    assert door.totals.strange_ends == 2
    assert (read_codes(peer), one_way.sent) == ([ResponseCode.MESSAGE_ILLEGAL], [])


async def test_ends_that_are_put_again_count_among_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are refused at once they never wait for long, but in their pauses for a minute."""
    monkeypatch.setattr("api.remoting.door._MOST_ENDS", 3)
    transactions, peer = Transactions(), Peer(FirstTries())
    door = open_door(transactions)
    for count in range(1, 4):
        door.take(peer, end_of(2))  # type: ignore[arg-type]
        await until(lambda: len(transactions.ends) == count)  # noqa: B023
        transactions.ends[-1].set_result([Refused(RefusalCode.UNAVAILABLE, "away")])
        await until(lambda: door.totals.insisted == count)  # noqa: B023
    door.take(peer, end_of(0))  # type: ignore[arg-type]
    assert read_codes(peer) == [ResponseCode.SYSTEM_BUSY]
    assert (door.totals.given_up, door.totals.ends) == (1, 3)


class Slow(Transactions):
    """Takes its time with each list. `begun`: whose are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[object] = []
        self.gate = asyncio.Event()

    async def prepare(
        self, calls: Sequence[PrepareCall], wait_ms: int, first_ms: int | None, rights: object, made: GroupSettings
    ) -> list[Prepared]:
        self.begun.append(rights)
        await self.gate.wait()
        return await super().prepare(calls, wait_ms, first_ms, rights, made)

    async def end(self, calls: Sequence[EndCall], _: Wait, __: int, rights: object) -> list[EndAnswer]:
        self.begun.append(rights)
        await self.gate.wait()
        return [Accepted(call.transaction_id, call.resolution) for call in calls]


@pytest.mark.parametrize("request_of", [lambda: send_of(key_of(NOW_MS)), lambda: end_of(0)], ids=["sends", "ends"])
async def test_calls_of_all_principals_are_made_together(request_of: Callable[[], RemotingCommand]) -> None:
    """One after the other, the last of twenty was answered after 50 s where Kafka was slow; clients wait for 3 s."""
    transactions = Slow()
    callers = [Caller(name, Rights(()), name) for name in ("shop", "till", "bank")]
    callers_now = Callers(callers[0])
    door, peers = open_door(transactions, caller=callers_now), [Peer(FirstTries()) for _ in callers]
    for peer, caller in zip(peers, callers, strict=True):
        callers_now.caller = caller
        door.take(peer, request_of())  # type: ignore[arg-type]
    await until(lambda: len(transactions.begun) == 3)
    assert transactions.begun == [caller.rights for caller in callers]
    transactions.gate.set()
    await until(lambda: door.is_idle)
    assert [read_codes(peer) for peer in peers] == [[0], [0], [0]]


async def test_quota_counts_what_is_stored() -> None:
    """A kilobyte that is a megabyte inflated was a kilobyte of the quota, a thousandth of what the journal took."""
    transactions = Transactions()
    door, peer = open_door(transactions, quota=QuotaConfig(bytes_per_s=10_000), caller=PROVEN), Peer(FirstTries())
    for number in range(2):
        send = send_of(key_of(NOW_MS + number))
        send.fields, send.body = {**send.fields, "f": "5"}, zlib.compress(bytes(900_000))
        door.take(peer, send)  # type: ignore[arg-type]
    await until(lambda: door.is_idle)
    assert sorted(read_codes(peer)) == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
