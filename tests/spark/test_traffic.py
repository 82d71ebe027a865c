"""Real traffic with a kill in it, reported while it goes on; then everything is spoilt, and reported again."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bridge.broker.ports import choose_free_port
from tests.chaos.collect import read_bugs, read_unrest
from tests.chaos.driver import put_groups
from tests.chaos.fleet import ClientProcess, stop_all
from tests.chaos.orders import SETTINGS, WAITING, RunFile
from tests.chaos.producer import Worker
from tests.chaos.recorded_calls import Recorder
from tests.support.bridge_process import Bridge, BridgeProcess, create_topics, wait_until
from tests.traffic.audits import Auditor, compare, differing
from tests.traffic.bad_settler import BadSettler
from tests.traffic.ink import Ink
from tests.traffic.stage import plant_tales
from tests.traffic.wounds import wound

pytestmark = pytest.mark.traffic
_REST_S = 60.0
_ENOUGH = 300


@contextmanager
def working(run: RunFile) -> Iterator[Sequence[Worker]]:
    """Producers at work; what they began is brought to its end."""
    stopping = threading.Event()
    recorder = Recorder(run.folder, "producer")
    workers = [Worker(run, recorder, number, stopping) for number in range(run.workers)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def make_orders(bridge: Bridge, api: BridgeProcess, folder: Path) -> RunFile:
    """What the producers and the endpoint must know; groups and topics are there."""
    topics = {f"{bridge.prefix}{name}": count for name, count in {"orders": 3, "credits": 2, "line": 1}.items()}
    create_topics(bridge.kafka, topics, {"retention.ms": "-1"})
    run = RunFile(
        place=str(folder),
        seed=8,
        urls=(api.url,),
        kafka=bridge.kafka,
        topics=topics,
        endpoint_ports={group: (choose_free_port(),) for group in SETTINGS},
        rate=25,
        workers=4,
        singles=0.2,
        largest_batch=20,
    )
    run.write()
    put_groups(api.http, run)
    return run


def test_what_is_planted_in_real_traffic_is_found_and_nothing_else(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Nothing during the traffic, whose window says the same at rest; then every anomaly, in what was right then."""
    bridge = Bridge.create(kafka, tmp_path)
    with bridge.serve("api") as api, bridge.start("settler,projector") as first:
        run = make_orders(bridge, api, tmp_path)
        auditor = Auditor(spark, bridge, api.get("/v1/producer-groups").json(), tmp_path)
        endpoint = ClientProcess("tests.chaos.endpoint", run.path, "endpoint", "0")
        with working(run) as workers:
            wait_until(lambda: sum(worker.prepared for worker in workers) > _ENOUGH / 2, _REST_S, "traffic")
            first.kill()
            second = bridge.start("settler,projector")
            during = auditor.audit("during", "chain", list(run.topics), since_last=True)
            wait_until(lambda: sum(worker.prepared for worker in workers) > _ENOUGH, _REST_S, "more traffic")
        with second:
            assert read_unrest(api.http, _REST_S) == {}
            stop_all([endpoint], 0)
        again = auditor.audit("again", "again", window=during.window)
        assert (during.findings, differing(during, again)) == ((), [])
        ink = Ink(bridge, run.topics)
        BadSettler(ink, api.http, WAITING).spoil(1, is_patient=False)
        wound(ink, random.Random(run.seed), 1)
        plant_tales(ink, bridge.prefix, 10, 1)
        everything = auditor.audit("planted", "chain", [*run.topics, f"{bridge.prefix}expired"], since_last=True)
        assert compare(everything, ink.truth) == []
    assert read_bugs(tmp_path) == []
