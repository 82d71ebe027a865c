"""SIGTERM in the middle of a load: what was acknowledged is there, and the process ends by itself."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx2

from api.web.guard import MARK
from tests.support.bridge_process import Bridge, create_topics, read_committed
from tests.support.postgres import PostgresServer

CLIENTS = 8


class Client:
    """Prepares and commits for as long as it is answered; what was acknowledged."""

    def __init__(self, url: str, topic: str) -> None:
        self._http = httpx2.Client(base_url=url, headers={MARK: "1"}, timeout=20)
        self._body = {"producer_group": "shop", "messages": [{"topic": topic, "key": "k", "value": "v"}]}
        self.prepared: set[str] = set()
        self.committed: set[str] = set()

    def run(self, is_over: Event) -> None:
        """Until nobody answers any more."""
        with self._http as http:
            while not is_over.is_set():
                try:
                    answer = http.post("/v1/transactions", json=self._body)
                    if answer.status_code != 201:
                        continue
                    transaction_id = answer.json()["transaction_id"]
                    self.prepared.add(transaction_id)
                    if http.post(f"/v1/transactions/{transaction_id}/commit", json={}).status_code == 200:
                        self.committed.add(transaction_id)
                except httpx2.TransportError:
                    return


def test_process_that_is_told_to_end_loses_nothing_of_what_it_acknowledged(kafka: str, tmp_path: Path) -> None:
    """Each commit is there once for committed readers; each prepare is known to who comes next."""
    bridge = Bridge.create(kafka, tmp_path)
    topic = f"{bridge.prefix}orders"
    create_topics(kafka, {topic: 2})
    is_over = Event()
    with bridge.serve() as process, ThreadPoolExecutor(CLIENTS) as pool:
        assert process.http.put("/v1/producer-groups/shop", json={"endpoints": []}).status_code in {200, 201}
        clients = [Client(process.url, topic) for _ in range(CLIENTS)]
        running = [pool.submit(client.run, is_over) for client in clients]
        end = time.monotonic() + 60
        while sum(len(client.committed) for client in clients) < 100 and time.monotonic() < end:
            time.sleep(0.05)
        assert process.stop() == 0
        is_over.set()
        for future in running:
            future.result(60)
    committed = set[str]().union(*(client.committed for client in clients))
    prepared = set[str]().union(*(client.prepared for client in clients))
    assert len(committed) >= 100
    read = [record.transaction_id for record in read_committed(kafka, [topic])]
    assert len(read) == len(set(read))
    assert committed <= set(read)
    with bridge.serve() as process:
        states = {i: process.get(f"/v1/transactions/{i}").json().get("state") for i in prepared - committed}
    assert set(states.values()) <= {"PREPARED", "COMMITTED"}


def test_process_ends_while_its_database_is_frozen(kafka: str, tmp_path: Path) -> None:
    """It waited at its end for threads that wait for the database, for as long as that was frozen."""
    postgres = PostgresServer()
    try:
        bridge = Bridge.create(kafka, tmp_path, database_url=postgres.create())
        process = bridge.serve()
        postgres.freeze()
        process.send(signal.SIGTERM)
        try:
            assert process.popen.wait(120) == 1
        finally:
            process.kill()
            process.http.close()
            postgres.thaw()
        assert "ending_takes_too_long" in process.log.read_text()
    finally:
        postgres.close()
