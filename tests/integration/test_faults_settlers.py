"""Settlers and whole processes killed, frozen and replaced under load; a reader outside the bridge is the judge."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, read_committed, wait_until
from tests.support.cluster_acts import read_owners, read_positions
from tests.support.fault_load import Load

SEED = 20_260


@pytest.fixture(scope="module")
def served(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bridge, BridgeProcess]]:
    """A bridge and its api process; settlers come and go."""
    bridge = Bridge.create(kafka, tmp_path_factory.mktemp("settlers"), queues=2)
    with bridge.start("api,projector") as front:
        yield bridge, front


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends processes at the end of the test."""
    with ExitStack() as processes:
        yield processes


def make_topics(kafka: str, name: str) -> list[str]:
    topics = {f"{name}.orders": 2, f"{name}.credits": 1}
    create_topics(kafka, topics)
    return list(topics)


def owned_queues(process: BridgeProcess) -> set[int]:
    """The queues this process said last that it settles."""
    owned: set[int] = set()
    for line in process.log.read_text().splitlines():
        if '"queue_taken_over"' in line:
            owned.add(json.loads(line)["queue"])
        elif '"queue_let_go"' in line or '"queue_dropped"' in line:
            owned.discard(json.loads(line)["queue"])
    return owned


def test_killed_settlers_lose_and_double_nothing(
    kafka: str, served: tuple[Bridge, BridgeProcess], stack: ExitStack
) -> None:
    """SIGKILL in mid-batch, again and again: the successor ends what is open and decides from S (L, P, D, T)."""
    bridge, front = served
    topics = make_topics(kafka, "killed")
    settler = stack.enter_context(bridge.start("settler"))
    front.wait_ready()
    rng = random.Random(SEED)
    with Load([front.url], topics, seed=SEED) as load:
        for _ in range(2):
            load.wait_ended(rng.randint(50, 300))
            successor = stack.enter_context(bridge.start("settler"))
            wait_until(partial(owned_queues, settler), name="somebody to kill")
            settler.kill()
            settler = successor
        load.wait_ended(100)
    assert len(read_owners(bridge)) == 3
    assert load.broken_promises(read_committed(kafka, topics)) == []


def test_frozen_settler_wakes_up_to_no_harm(kafka: str, served: tuple[Bridge, BridgeProcess], stack: ExitStack) -> None:
    """SIGSTOP longer than its session, another takes over, SIGCONT: the zombie is fenced and rejoins (D, P, T)."""
    bridge, front = served
    topics = make_topics(kafka, "frozen")
    first, second = [stack.enter_context(bridge.start("settler")) for _ in range(2)]
    wait_until(lambda: owned_queues(first) and owned_queues(second), 60, "a queue each")
    with Load([front.url], topics, seed=SEED + 1) as load:
        load.wait_ended(100)
        first.pause()
        wait_until(lambda: owned_queues(second) == {0, 1}, 40, "both queues at the other one")
        load.wait_ended(100)
        first.resume()
        wait_until(lambda: len(owned_queues(first)) == len(owned_queues(second)) == 1, 40, "a queue each again")
        load.wait_ended(100)
    assert load.broken_promises(read_committed(kafka, topics)) == []


def test_two_of_each_role_share_the_work(kafka: str, tmp_path: Path, stack: ExitStack) -> None:
    """Queues are divided; killing one process moves its queues and its projector's work to the other (T, C)."""
    topics = make_topics(kafka, "shared")
    bridge = Bridge.create(kafka, tmp_path, queues=2)
    processes = [stack.enter_context(bridge.start()) for _ in range(2)]
    for process in processes:
        process.wait_ready()
    wait_until(lambda: all(len(owned_queues(process)) == 1 for process in processes), name="a queue each")
    assert owned_queues(processes[0]) | owned_queues(processes[1]) == {0, 1}
    urls = [process.url for process in processes]
    with Load(urls, topics, seed=SEED + 2) as load:
        load.wait_ended(200)
        assert len({position["owner"] for position in read_positions(bridge).values()}) == 2
        processes[0].kill()
        urls.pop(0)
        wait_until(lambda: owned_queues(processes[1]) == {0, 1}, 40, "both queues at the survivor")
        load.wait_ended(200)
    assert len({position["owner"] for position in read_positions(bridge).values()}) == 1
    assert load.broken_promises(read_committed(kafka, topics)) == []
    stats = wait_until_projected(processes[1], len(load.ledger.deeds))
    assert stats["committed"] + stats["rolled_back"] == load.ledger.ended
    assert stats["blocked"] == stats["parked"] == 0


def wait_until_projected(process: BridgeProcess, prepared: int) -> dict[str, int]:
    """The counts when all that was prepared is counted."""

    def counted() -> dict[str, int] | None:
        stats: dict[str, int] = process.get("/v1/stats").json()
        return stats if stats["prepared"] == prepared and stats["settle_lag_seconds"] == 0 else None

    found: dict[str, int] = wait_until(counted, 40, "all in the projection")
    return found
