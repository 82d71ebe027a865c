"""Connections of the door: what they keep of frames is bounded, each for itself and all together."""

import asyncio
import tracemalloc
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.remoting.frame import FrameBuffer, RemotingCommand, encode_frame
from api.remoting.message import RequestCode, ResponseCode
from api.remoting.server import PortConfig, RemotingConnection, RemotingServer, _FirstByte
from api.web.limits import ByteBudget
from tests.unit.api.remoting.test_door import NOW_MS, Peer, Transactions, key_of, open_door, send_of
from tests.unit.api.remoting.test_first_tries import learned
from tests.unit.api.remoting.test_gatherer import until

MIB = 1024 * 1024


class Server:
    """Takes requests, and ends connections."""

    def __init__(self, config: PortConfig) -> None:
        self.config = config
        self.connections: dict[RemotingConnection, None] = {}
        self.refused: list[str] = []
        self.taken = 0
        self.door = self

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def take(self, _: RemotingConnection, __: RemotingCommand) -> None:
        self.taken += 1

    def leave(self, _: RemotingConnection) -> None:
        """It spoke for nobody."""

    def refuse(self, connection: RemotingConnection, reason: str) -> None:
        self.refused.append(reason)
        connection.connection_lost(None)


class Transport:
    """Reads or not."""

    is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class IdleDoor:
    """Keeps each end at once."""

    is_idle, taken, is_draining = True, 0, False

    def take(self, _: RemotingConnection, __: RemotingCommand) -> None:
        self.taken += 1


class Closing(Transport):
    """Notes what had been taken when it was closed."""

    def __init__(self, door: IdleDoor) -> None:
        self._door = door
        self.taken: list[int] = []

    def close(self) -> None:
        self.taken.append(self._door.taken)

    abort = close


def connect(server: Server) -> tuple[RemotingConnection, Transport]:
    wanted: Any = server
    transport: Any = Transport()
    connection = RemotingConnection(wanted)
    connection.connection_made(transport)
    return connection, transport


async def test_frames_that_wait_for_their_turn_are_kept_as_they_came() -> None:
    """256 KiB of the smallest frames take 8 MB decoded: two thousand connections at once would take 16 GB."""
    server = Server(PortConfig())
    connection, transport = connect(server)
    data = encode_frame(RemotingCommand(1, fields={"a": "b"})) * 2_000
    tracemalloc.start()
    try:
        connection.data_received(data)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(data)
    assert 0 < server.taken <= 64
    assert not transport.is_reading
    await until(lambda: server.taken == 2_000)
    assert transport.is_reading
    assert server.config.budget.used == 0


async def test_frames_that_are_not_whole_have_a_bound_on_all_connections() -> None:
    """Anybody may open two thousand of them and send all but the last byte of 8 MiB: small ones still have room."""
    server = Server(PortConfig(max_frame_bytes=2 * MIB, budget=ByteBudget(4 * MIB)))
    beginning = (2 * MIB).to_bytes(4) + bytes(MIB)
    holders = [connect(server)[0] for _ in range(2)]
    for holder in holders:
        holder.data_received(beginning)
    assert server.refused == []
    late, _ = connect(server)
    late.data_received(beginning)
    assert len(server.refused) == 1
    small, _ = connect(server)
    small.data_received(encode_frame(RemotingCommand(34)))
    assert server.taken == 1
    for holder in holders:
        holder.connection_lost(None)
    assert server.config.budget.used == 0


@pytest.mark.parametrize("takes_room", ["body", "field"])
async def test_sends_on_their_way_have_a_bound_in_bytes(takes_room: str) -> None:
    """Two thousand of a megabyte were taken while Kafka was slow. What has no room was not applied, and is told so."""
    door, peer = open_door(Transactions(), budget=ByteBudget(200_000)), Peer(learned())
    sends = [send_of(key_of(NOW_MS + number)) for number in range(3)]
    for send in sends:
        if takes_room == "field":
            send.fields = {**send.fields, "z": "z" * 70_000}
        else:
            send.body = bytes(70_000)
        door.take(peer, send)  # type: ignore[arg-type]
    await until(lambda: door.is_idle)
    answers = FrameBuffer()
    answers.add(b"".join(peer.sent))
    codes = [answer.code for answer in answers.take()]
    assert codes == [ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    door.take(peer, sends[2])  # type: ignore[arg-type]
    await until(lambda: door.is_idle)
    assert door.totals.sends == 3
    assert sends[0].code == RequestCode.SEND_MESSAGE_V2


async def test_ends_of_a_client_that_has_gone_are_kept() -> None:
    """They had come: without them each transaction waits for a check, which nobody may be there to answer. Nothing
    else is done for who is not there."""
    server = Server(PortConfig())
    connection, _ = connect(server)
    end, send = RemotingCommand(RequestCode.END_TRANSACTION, flag=2), RemotingCommand(RequestCode.SEND_MESSAGE_V2)
    connection.data_received(encode_frame(end) * 200 + encode_frame(send) * 200)
    assert 0 < server.taken <= 64
    connection.connection_lost(None)
    await until(lambda: server.taken == 200)
    await until(lambda: server.config.budget.used == 0)
    assert server.taken == 200


async def test_broken_frame_behind_the_ends_of_a_client_that_has_gone_ends_them() -> None:
    """Nothing goes on for ever."""
    server = Server(PortConfig())
    connection, _ = connect(server)
    connection.data_received(encode_frame(RemotingCommand(RequestCode.END_TRANSACTION, flag=2)) * 65 + bytes(1_000))
    connection.connection_lost(None)
    await until(lambda: server.config.budget.used == 0)
    assert len(server.refused) == 1


async def test_what_came_before_a_broken_frame_is_taken() -> None:
    """An end that is lost there waits for a check."""
    server = Server(PortConfig())
    connection, _ = connect(server)
    connection.data_received(encode_frame(RemotingCommand(RequestCode.END_TRANSACTION, flag=2)) * 3 + bytes(1_000))
    await until(lambda: server.taken == 3)
    assert len(server.refused) == 1


async def test_frames_that_take_long_are_fewer_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed batches of half a kilobyte take ten milliseconds each: of 64 all others waited for most of a
    second."""
    server, taken = Server(PortConfig()), list[int]()
    moments = count()
    monkeypatch.setattr("api.remoting.server.perf_counter", lambda: next(moments) * 0.004)
    connection, _ = connect(server)
    connection.data_received(encode_frame(RemotingCommand(1)) * 20)
    asyncio.get_running_loop().call_soon(lambda: taken.append(server.taken))
    await until(lambda: server.taken == 20)
    assert taken == [3 + 3]


async def test_process_ends_behind_what_has_come() -> None:
    """The door is idle between two turns of a connection whose ends wait."""
    server = RemotingServer(lambda _: (IdleDoor(), None), PortConfig(port=0))  # type: ignore[arg-type, return-value]
    door: Any = server.door
    connection, transport = RemotingConnection(server), Closing(door)
    wanted: Any = transport
    connection.connection_made(wanted)
    connection.data_received(encode_frame(RemotingCommand(RequestCode.END_TRANSACTION, flag=2)) * 500)
    await server._drain()
    server._socket.close()
    assert transport.taken[0] == 500


@pytest.mark.parametrize(
    ("start", "is_plain_taken", "reason"),
    [(b"\x16\x03\x01\x02\x00", True, "remoting.tls is off"), (b"\x00\x00\x00\x10", False, "remoting.tls is required")],
)
async def test_client_that_speaks_the_other_way_is_told_in_the_log(
    start: bytes, is_plain_taken: bool, reason: str
) -> None:
    """It only sees that its connection ends, again and again."""
    config = PortConfig(port=0, is_plain_taken=is_plain_taken)
    server = RemotingServer(lambda _: (IdleDoor(), None), config)  # type: ignore[arg-type, return-value]
    listener = await asyncio.get_running_loop().create_server(lambda: _FirstByte(server), sock=server._socket)
    with capture_logs() as logs:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(start)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    listener.close()
    assert [reason in log["reason"] for log in logs] == [True]
