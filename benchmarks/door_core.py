"""`python -m benchmarks.door_core`: CPU time of the door itself for one transaction, without sockets and Kafka."""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from api.remoting.door import Door, DoorConfig, DoorParts
from api.remoting.frame import FrameBuffer, HeaderType, RemotingCommand, encode_frame
from api.remoting.groups import ConnectedGroups, RemotingCallers
from api.remoting.server import PortConfig, RemotingConnection, RemotingServer
from api.web.limits import QuotaConfig, Quotas
from benchmarks.api_core import NOW_MS, open_service
from bridge.core.message import Message
from bridge.node import Node
from bridge.service.contract import PrepareCall

_CALLS = 64  # at a time, as from so many threads
_BODY = b"x" * 1_000
_SEND = {"a": "bench", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "4", "h": "0", "j": "0", "k": "false"}


class _Client:
    """The other end of a connection: the transport that answers are written to."""

    def __init__(self, header_type: HeaderType) -> None:
        self.answers = FrameBuffer()
        self._header_type = header_type
        self._made = 0

    def write(self, data: bytes) -> None:
        self.answers.add(data)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.answers.add(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def send(self) -> bytes:
        """A half message as a client writes it."""
        key, born = self.make_key()
        text = f"KEYS\x01{self._made}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01bench\x02"
        fields = {**_SEND, "g": str(born), "i": text, "m": "false", "n": "bridge-a"}
        return self._frame(310, fields, _BODY)

    def make_key(self) -> tuple[str, int]:
        """UNIQ_KEY, and when it was made."""
        self._made += 1
        born_ms = NOW_MS - NOW_MS % 900_000 + self._made
        return f"7F00000100010000CAFE{self._made:08X}{self._made % 65_536:04X}", born_ms

    def end(self, transaction_id: str) -> bytes:
        """Its commit."""
        fields = {
            "topic": "orders", "producerGroup": "bench", "tranStateTableOffset": "7", "commitLogOffset": "7",
            "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "7F00", "transactionId": transaction_id,
        }  # fmt: skip
        return self._frame(37, fields, b"", 2)

    def _frame(self, code: int, fields: dict[str, str], body: bytes, flag: int = 0) -> bytes:
        return encode_frame(RemotingCommand(code, self._made, flag, 513, None, fields, body, self._header_type))


def open_connection(service: Node, header_type: HeaderType) -> tuple[RemotingConnection, _Client]:
    """A connection of a door that nobody listens at."""

    def make(_: int) -> tuple[Door, ConnectedGroups]:
        clock = service.backing.clock
        groups = ConnectedGroups(service.claims, service.directory, lambda: service.nonces, clock, "127.0.0.1:1")
        callers, nonces = RemotingCallers(service.signing), lambda: service.nonces
        quotas = Quotas(QuotaConfig(), 1_000)
        parts = DoorParts(service.transactions, service.directory, groups, callers, nonces, clock, quotas)
        return Door(parts, DoorConfig("127.0.0.1:1", 1 << 20)), groups

    server = RemotingServer(make, PortConfig(port=0))
    connection, client = RemotingConnection(server), _Client(header_type)
    transport: Any = client
    connection.connection_made(transport)
    return connection, client


def _prove(connection: RemotingConnection, client: _Client, service: Node) -> None:
    """What a connection has shown after a while: nothing is answered here that has to be looked up."""
    for _ in range(9):
        key, born_ms = client.make_key()
        connection.tries.find(key, born_ms, NOW_MS)
    connection.tries.note_answer("first", service.transactions.kafka_time_ms())
    connection.tries.note_end("first")


async def _wait_idle(connection: RemotingConnection) -> None:
    while not connection._server.door.is_idle:  # noqa: ASYNC110, SLF001 - nobody tells
        await asyncio.sleep(0)


async def measure(folder: Path, transactions: int, header_type: HeaderType) -> float:
    """Microseconds of CPU for each transaction: its send, its answer, its end; the client's part is left out."""
    spent = 0.0
    async with open_service(folder) as service:
        known = PrepareCall("bench", [Message("orders", None, b"")])  # makes the group, and tells Kafka's time
        await service.transactions.prepare([known])
        connection, client = open_connection(service, header_type)
        _prove(connection, client, service)
        for turn in range(transactions // _CALLS):
            frames = [client.send() for _ in range(_CALLS)]
            at = time.process_time()
            for frame in frames:
                connection.data_received(frame)
            await _wait_idle(connection)
            spent += time.process_time() - at
            ends = [client.end(answer.fields["transactionId"]) for answer in client.answers.take()]
            assert len(ends) == _CALLS
            at = time.process_time()
            for frame in ends:
                connection.data_received(frame)
            await _wait_idle(connection)
            spent += time.process_time() - at
            if turn < 3:
                spent = 0.0
        return spent / (transactions - 3 * _CALLS) * 1e6


def main() -> int:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=20_000)
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 100)
    found = {}
    for header_type in HeaderType:
        with TemporaryDirectory() as folder:
            found[header_type.name] = round(asyncio.run(measure(Path(folder), options.transactions, header_type)), 1)
    print(json.dumps({"us_per_transaction": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
