"""Two doors and the bridge are killed at random under an unmodified client: nothing lost, invented, or twice."""

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from bridge.broker.ports import choose_free_port
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.rocketmq_clients import compile_program, find_jars, java

_SEED = 7
_KILLS = 6
_ROLES = ("remoting", "remoting", "api,settler,projector")


def test_kills_of_doors_and_bridge_change_nothing(kafka: str, tmp_path: Path) -> None:
    """A read_committed reader finds what the client's log says was committed, each once, and all is decided."""
    jars, chance = find_jars("5.5.0"), random.Random(_SEED)
    compile_program("Transactions", jars, tmp_path)
    bridge = Bridge.create(kafka, tmp_path)
    ports, doors = [choose_free_port() for _ in _ROLES], [choose_free_port() for _ in range(2)]

    def start(number: int) -> BridgeProcess:
        port = str(doors[number]) if number < 2 else "0"
        return bridge.start(_ROLES[number], port=ports[number], OUTBOX_BRIDGE_REMOTING__PORT=port)

    processes = [start(number) for number in range(len(_ROLES))]
    try:
        for process in processes:
            process.wait_ready()
        create_topics(kafka, {"killed": 2})
        check = {"mode": "pull", "transaction_timeout_seconds": 1, "interval_seconds": 1}
        assert processes[2].http.put("/v1/producer-groups/killed", json={"check": check}).status_code == 201
        addresses = ";".join(f"127.0.0.1:{port}" for port in doors)
        # a client says which groups it has every 30 s: so long a restarted door may not know it
        arguments = ["Transactions", addresses, "killed", "killed", "100", "0", "120"]
        output = tmp_path / "client"
        with output.open("w") as file:
            client = subprocess.Popen([*java(jars, tmp_path), *arguments], stdout=file, stderr=subprocess.STDOUT)
        wait_until(lambda: "sent order-10" in output.read_text(), 60, "sends")
        for _ in range(_KILLS):
            time.sleep(chance.uniform(1, 3))
            number = chance.randrange(len(_ROLES))
            _end(processes[number])
            processes[number] = start(number)
        for process in processes:
            process.wait_ready()
        client.wait(150)
        told = [(what, body.strip()) for what, _, body in (x.partition(" ") for x in output.read_text().splitlines())]
        committed = {body for what, body in told if what == "committed"}
        assert client.returncode == 0, told[-20:]
        wait_until(lambda: processes[2].get("/v1/stats").json().get("pending") == 0, 60, "nothing pending")
        found = Counter((record.value or b"").decode().strip() for record in read_committed(kafka, ["killed"]))
        # whose answer was lost: the client rolls back while a check may commit, and the first of the two counts
        open_ended = {body for what, body in told if what == "unknown-send"}
        assert max(found.values()) == 1
        assert found.keys() - open_ended == committed - open_ended
    finally:
        for process in processes:
            _end(process)


def _end(process: BridgeProcess) -> None:
    process.kill()
    process.http.close()
