"""Two doors, the bridge and an unmodified client are killed at random: nothing lost, invented, or twice.

FULL_SIZE=1 goes on for five minutes.
"""

import os
import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.progress import make_tell
from tests.support.rocketmq_clients import compile_program, find_jars, java

_SEED = 7
_SECONDS = 300 if os.environ.get("FULL_SIZE") == "1" else 16
_ROLES = ("remoting", "remoting", "api,settler,projector")
_CLIENT = len(_ROLES)
_MESSAGES = 10_000  # of one client, more than it comes to
_GROUP = "killed"


class Clients:
    """One client at a time; each knows what those before it have written that they decided."""

    def __init__(self, folder: Path, doors: list[int]) -> None:
        self._jars = find_jars("5.5.0")
        compile_program("Transactions", self._jars, folder)
        self._folder = folder
        self._addresses = ";".join(f"127.0.0.1:{port}" for port in doors)
        self._began = 0
        self.output = folder / "client"
        self.output.touch()
        self._process = self._start()

    def read(self) -> list[tuple[str, str]]:
        """What happened, and to which message. The last line of a client that was killed may have no end."""
        lines = [line.partition(" ") for line in self.output.read_text().splitlines()]
        return [(what, body.strip()) for what, _, body in lines]

    def replace(self) -> None:
        """Kills it in the middle of something, and starts the next one."""
        self.end()
        with self.output.open("a") as file:
            file.write("\n")
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def _start(self) -> "subprocess.Popen[bytes]":
        first, self._began = self._began * _MESSAGES, self._began + 1
        numbers = [str(_MESSAGES), "0", "600", str(first), str(self.output)]
        command = [*java(self._jars, self._folder), "Transactions", self._addresses, _GROUP, _GROUP, *numbers]
        with self.output.open("a") as file:
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


@pytest.mark.timeout(900)
def test_kills_of_doors_bridge_and_client_change_nothing(kafka: str, tmp_path: Path) -> None:
    """A read_committed reader finds what the clients' log says was committed, each once, and all is decided."""
    chance = random.Random(_SEED)
    bridge = Bridge.create(kafka, tmp_path)
    ports, doors = [choose_free_port() for _ in _ROLES], [choose_free_port() for _ in range(2)]

    def start(number: int) -> BridgeProcess:
        port = str(doors[number]) if number < 2 else "0"
        return bridge.start(_ROLES[number], port=ports[number], OUTBOX_BRIDGE_REMOTING__PORT=port)

    processes = [start(number) for number in range(len(_ROLES))]
    try:
        for process in processes:
            process.wait_ready()
        create_topics(kafka, {_GROUP: 2})
        check = {"mode": "pull", "transaction_timeout_seconds": 1, "interval_seconds": 1}
        assert processes[2].http.put(f"/v1/producer-groups/{_GROUP}", json={"check": check}).status_code == 201
        clients = Clients(tmp_path, doors)
        try:
            wait_until(lambda: ("sent", "order-10") in clients.read(), 60, "sends")
            killed = Counter[int]()
            until = time.monotonic() + _SECONDS
            while time.monotonic() < until or len(killed) <= _CLIENT:
                time.sleep(chance.uniform(1, 3))
                number = chance.randrange(_CLIENT + 1)
                killed[number] += 1
                if number == _CLIENT:
                    clients.replace()
                else:
                    _end(processes[number])
                    processes[number] = start(number)
            for process in processes:
                process.wait_ready()
            _judge(kafka, clients, processes[2], killed)
        finally:
            clients.end()
    finally:
        for process in processes:
            _end(process)


def _judge(kafka: str, clients: Clients, bridge: BridgeProcess, killed: Counter[int]) -> None:
    """While the last client still sends: what it has not ended yet is left out."""
    before = len(clients.read())
    wait_until(lambda: len(clients.read()) > before + 20, 60, "the last client gets on")
    paused = {"what": "prepares", "reason": "the test ends"}
    assert bridge.http.post(f"/v1/producer-groups/{_GROUP}/pause", json=paused).status_code == 200
    # a client says which groups it has every 30 s: so long a restarted door may not know it
    wait_until(lambda: bridge.get("/v1/stats").json().get("pending") == 0, 90, "nothing pending")
    told = clients.read()
    committed = {body for what, body in told if what == "committed"}
    found = Counter((record.value or b"").decode().strip() for record in read_committed(kafka, [_GROUP]))
    # whose answer was lost: the client rolls back while a check may commit, and the first of the two counts
    open_ended = {body for what, body in told if what == "unknown-send"}
    counts = f"{len(committed)} committed, {len(found)} found, {len(open_ended)} with their answers lost"
    make_tell()(f"killed {killed[0]} and {killed[1]} times, bridge {killed[2]}, client {killed[_CLIENT]}: {counts}")
    assert max(found.values()) == 1
    assert found.keys() - open_ended == committed - open_ended


def _end(process: BridgeProcess) -> None:
    process.kill()
    with suppress(OSError):
        process.http.close()
