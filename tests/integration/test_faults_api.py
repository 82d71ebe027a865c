"""Api processes killed under load: repeating a call at another one gives the truth."""

import random
from contextlib import ExitStack
from pathlib import Path

from tests.support.bridge_process import Bridge, create_topics, read_committed
from tests.support.cluster_acts import read_states
from tests.support.fault_load import Load

SEED = 31_337


def test_killed_apis_leave_one_transaction_a_key(kafka: str, tmp_path: Path) -> None:
    """SIGKILL between append and answer, at random moments: a key is one transaction, its first end stands (A, D, F).

    Every transaction has an idempotency key; its producer repeats prepare and end wherever somebody answers.
    """
    topics = ["killed-api.orders", "killed-api.credits"]
    create_topics(kafka, dict.fromkeys(topics, 1))
    bridge = Bridge.create(kafka, tmp_path, queues=2)
    rng = random.Random(SEED)
    with ExitStack() as stack:
        processes = [stack.enter_context(bridge.start(roles)) for roles in ("settler,projector", "api", "api")]
        for process in processes:
            process.wait_ready()
        urls = [process.url for process in processes[1:]]
        with Load(urls, topics, seed=SEED, producers=4) as load:
            for turn in range(2):
                load.wait_ended(rng.randint(50, 200))
                victim = 1 + turn % 2
                processes[victim].kill()
                processes[victim] = stack.enter_context(bridge.start("api"))
                urls[victim - 1] = processes[victim].url
                processes[victim].wait_ready()
            load.wait_ended(100)
        assert load.ledger.repeats > 0, "nobody noticed"
        assert load.broken_promises(read_committed(kafka, topics)) == []
        assert contradictions(read_states(bridge)) == []
    known = {deed.transaction_id for deed in load.ledger.deeds}
    assert len(known) == len(load.ledger.deeds)
    assert read_states(bridge).keys() <= known


def contradictions(states: dict[str, list[dict[str, object]]]) -> list[str]:
    """Transactions with two different final states."""
    final = {"COMMITTED", "ROLLED_BACK"}
    return [i for i, all_of in states.items() if len({s["state"] for s in all_of if s["state"] in final}) > 1]
