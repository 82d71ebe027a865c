"""Every crash point, with a real kill of a real process on a real Kafka."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.fault_points import FaultPoint
from tests.crash.scenarios import SCENARIOS
from tests.support.broker import running_broker
from tests.support.crash_stage import Stage
from tests.support.process_pool import ProcessPool
from tests.support.source_tree import PACKAGES, ROOT, python_files

_AT_ONCE = 4  # most of a scenario is waiting: for a dead member's session, for what is due
_USE = re.compile(r"FaultPoint\.([A-Z_]+)\b")


@pytest.fixture(scope="module")
def sweep(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[FaultPoint, Future[None]]]:
    """The scenarios of all points that were asked for, some at a time, each on a bridge of its own."""
    chosen = [item.callspec.params["point"] for item in request.session.items if hasattr(item, "callspec")]
    with (
        running_broker({"group.min.session.timeout.ms": "1000"}, heap_mb=512) as broker,
        ProcessPool() as nursery,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):

        def run(point: FaultPoint, folder: Path) -> None:
            with Stage.open(broker.bootstrap, nursery, folder, point.name) as stage:
                SCENARIOS[point](stage, point)

        try:
            yield {
                point: pool.submit(run, point, tmp_path_factory.mktemp(point.name.lower()))
                for point in chosen
                if isinstance(point, FaultPoint)
            }
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@pytest.mark.parametrize("point", FaultPoint, ids=lambda point: point.name)
def test_nothing_is_lost_doubled_or_invented_by_a_death_at(
    point: FaultPoint, sweep: dict[FaultPoint, Future[None]]
) -> None:
    """The process dies there, a successor goes on, and every promise holds."""
    sweep[point].result()


def test_every_point_stands_in_the_code_once() -> None:
    """A point that nobody passes tests nothing; one that two places share tests one of them."""
    home = ROOT / "bridge" / "fault_points.py"
    used = Counter(name for path in python_files(*PACKAGES) if path != home for name in _USE.findall(path.read_text()))
    assert used == Counter(list(FaultPoint.__members__))


def test_every_point_has_a_meaning_of_one_sentence() -> None:
    """`outbox-bridge fault-points` explains each on a line of its own."""
    assert [p.name for p in FaultPoint if not re.fullmatch(r"[A-Z][^.\n]{10,120}\.", p.meaning)] == []
    assert len(FaultPoint) >= 40
