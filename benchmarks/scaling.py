"""`python -m benchmarks.scaling`: what a transaction costs as everything else grows, and what that says of larger sets.

One thing grows at a time while the others stay: load, transactions pending, producer groups, topics, bytes. Costs are
CPU seconds of each part. Then one, two and four queues with as many processes, and three brokers with three replicas.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.load import Load, batch_body, load_mixed
from benchmarks.model import PARTS
from benchmarks.outcome import LATEST, Values, conclude, tell
from benchmarks.pending import prepare_many, put_sleepers
from benchmarks.rounds import settle
from benchmarks.stage import TOPIC, Shape, Stage, running_stage

Point = dict[str, float]

_CONNECTIONS = 32
_LOADS = (1, 4, 16, 32, 64)
_PENDING = (0, 50_000, 200_000)
_GROUPS = (1, 100, 2_000)
_TOPICS = (1, 10, 100)
_BYTES = (100, 300, 1_000, 4_000, 16_000)
_SHAPES = (1, 2, 4)
_BROKERS = 3
_USUAL = [batch_body([TOPIC], ["bench"])]
_WIDE_TOPICS = [f"bench.wide{n}" for n in range(max(_TOPICS))]


def main() -> int:
    """Measures everything once. Exit code 1: something was lost, or visible twice."""
    options = _read_options()
    mistakes: list[str] = []
    shape = Shape(1, 1, 1)
    with running_stage(shape, (TOPIC, *_WIDE_TOPICS)) as stage:
        costs = _Costs(stage, options.seconds)
        costs.warm_up(options.warm_up)
        curves = costs.measure()
        mistakes += stage.find_mistakes()
    found = {}
    for count, brokers in [*((n, 1) for n in _SHAPES), (1, _BROKERS)]:
        with running_stage(Shape(count, count, count), brokers=brokers) as stage:
            costs = _Costs(stage, options.seconds)
            costs.warm_up(options.warm_up)
            found[count, brokers] = costs.point()
            tell(f"{count} of each, {brokers} brokers: {found[count, brokers]}")
            mistakes += stage.find_mistakes()
    curves["queues"] = [found[n, 1] | {"x": n} for n in _SHAPES]
    curves["brokers"] = [found[1, n] | {"x": n} for n in (1, _BROKERS)]
    values = Values()
    for name, points in curves.items():
        _note_growth(name, points, values)
    return conclude("scaling", values, shape, options.output, mistakes, sections={"curves": curves})


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="for each point (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=45, help="before the first point (default %(default)s)")
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


class _Costs:
    """What a transaction costs while one thing grows."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds

    def warm_up(self, seconds: float) -> None:
        """Until the broker's compiler is done with most of its work."""
        tell("warming up")
        self._load(_USUAL, _CONNECTIONS, seconds)
        self._stage.await_projection()

    def measure(self) -> dict[str, list[Point]]:
        """Every curve; what is pending comes last, since it stays."""
        return {
            "load": self._curve("load", _LOADS, lambda n: self._point(_USUAL, n)),
            "groups": self._curve("groups", _GROUPS, lambda n: self._point(_spread([TOPIC], _names(n)))),
            "topics": self._curve("topics", _TOPICS, lambda n: self._point(_spread(_WIDE_TOPICS[:n], ["bench"]))),
            "bytes": self._curve("bytes", _BYTES, lambda n: self._point([batch_body([TOPIC], ["bench"], bytes_=n)])),
            "pending": self._pending_curve(),
        }

    def _pending_curve(self) -> list[Point]:
        put_sleepers(self._stage)
        points = []
        for before, count in pairwise((0, *_PENDING)):
            prepare_many(self._stage, TOPIC, count - before)
            self._stage.await_projection()
            points += self._curve("pending", [count], lambda _: self.point())
        return points

    def _curve(self, name: str, values: Sequence[int], measure: Callable[[int], Point]) -> list[Point]:
        points = []
        for value in values:
            points.append(measure(value) | {"x": value})
            tell(f"{name} {value:,}: {points[-1]}")
        return points

    def point(self) -> Point:
        """The usual load."""
        return self._point(_USUAL)

    def _point(self, bodies: Sequence[bytes], connections: int = _CONNECTIONS) -> Point:
        """Rate and costs; the first moments, in which groups are created and topics looked up, do not count."""
        self._load(bodies, connections, min(2.0, self._seconds))
        load, used = self._stage.watch(lambda: self._load(bodies, connections, self._seconds))
        self._stage.await_projection()
        return make_point(load, used.cpu)

    def _load(self, bodies: Sequence[bytes], connections: int, seconds: float) -> Load:
        return settle(self._stage, lambda ports: load_mixed(ports, bodies, connections, seconds))


def make_point(load: Load, cpu: Mapping[str, float]) -> Point:
    """Transactions a second, and microseconds of CPU of each part for one."""
    costs = {part: round(seconds / load.transactions * 1e6, 2) for part, seconds in cpu.items()}
    return {"per_second": round(load.per_second), **costs}


def _spread(topics: Sequence[str], groups: Sequence[str]) -> list[bytes]:
    """So many bodies that every topic and every group comes in turn."""
    return [batch_body(topics, groups, first=first) for first in range(0, max(len(topics), len(groups)), 100)]


def _names(count: int) -> list[str]:
    return [f"bench{n}" for n in range(count)]


def _note_growth(name: str, points: Sequence[Point], values: Values) -> None:
    """The cost of the last point over that of the first usual one."""
    whole = [sum(cost for part, cost in point.items() if part in PARTS) for point in points]
    values.note(f"cost_by_{name}", whole[-1] / whole[0])


if __name__ == "__main__":
    raise SystemExit(main())
