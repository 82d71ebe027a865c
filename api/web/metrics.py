"""Metrics of the HTTP interface, of producer groups, and the text of all metrics. Labels are bounded."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from bridge.core.measures import MOST_NAMES, OTHER_NAMES
from bridge.service.contract import Refused
from bridge.service.search import BridgeStats, SearchService

PREFIX = "outbox_bridge_"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


class HttpMetrics:
    """Counts requests into a registry that the whole process shares. `now`: what it is, and how it is read, by name."""

    def __init__(self, registry: CollectorRegistry, now: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        labels = ("route", "method", "status_class")
        self._seconds = Histogram(
            f"{PREFIX}http_request_seconds", "Time to answer a request.", labels, registry=registry, buckets=_BUCKETS
        )
        self._problems = Counter(
            f"{PREFIX}http_problems_total", "Requests answered with a problem.", ("code",), registry=registry
        )
        for name, (text, read) in now.items():
            Gauge(f"{PREFIX}http_{name}", text, registry=registry).set_function(read)
        self._known: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """One answered request."""
        name = (route, method if method in _METHODS else "other", status // 100)
        child = self._known.get(name)
        if child is None:
            child = self._known[name] = self._seconds.labels(name[0], name[1], f"{name[2]}xx")
        child.observe(seconds)

    def count_problem(self, code: str) -> None:
        """One problem, by the code of its type."""
        self._problems.labels(code).inc()


class ProcessMetrics:
    """What a process measures beside its HTTP interface, and which of what SQL knows it shows."""

    @property
    def has_lags(self) -> bool:
        """How far behind settlers and projection are."""
        return True

    @property
    def has_groups(self) -> bool:
        """What is open by producer group."""
        return True

    def copy(self) -> Iterable[Metric]:
        """The present values; called in the loop that changes them."""
        return ()


_FRESH_S = 1.0
_STATS_TIMEOUT_S = 2.0


class Exposition:
    """The text of all metrics, made once a second at most. What the loop changes is copied in it; the text is made
    in a thread."""

    def __init__(self, process: ProcessMetrics | None = None) -> None:
        self.registry = CollectorRegistry()
        self._process = process or ProcessMetrics()
        self._made: tuple[float, bytes] | None = None
        self._making: asyncio.Task[bytes] | None = None

    async def read(self, search: SearchService) -> bytes:
        """Everything, whoever asks. What SQL knows is left out while it does not answer."""
        if self._made is not None and asyncio.get_running_loop().time() - self._made[0] < _FRESH_S:
            return self._made[1]
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make(search))
        return await asyncio.shield(self._making)

    async def _make(self, search: SearchService) -> bytes:
        process = self._process
        stats = await _read_stats(search) if process.has_lags or process.has_groups else None
        copied = [*process.copy()]
        if stats is not None:
            copied += collect_lags(stats) if process.has_lags else ()
            copied += collect_groups(stats) if process.has_groups else ()
        body = await asyncio.to_thread(lambda: generate_latest(self.registry) + generate_latest(_Copied(copied)))
        self._made = (asyncio.get_running_loop().time(), body)
        return body


class _Copied(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _read_stats(search: SearchService) -> BridgeStats | None:
    try:
        async with asyncio.timeout(_STATS_TIMEOUT_S):
            stats = await search.stats()
    except TimeoutError:
        return None
    return None if isinstance(stats, Refused) else stats


def collect_lags(stats: BridgeStats) -> Iterable[Metric]:
    """How far behind settlers and projection are."""
    for name, text, lag_ms in (
        (
            "settle_lag",
            "Age of the oldest journal record that is not decided; 0 if there is none.",
            stats.lag.settle_ms,
        ),
        ("projection_lag", "Age of the oldest journal record that is not in SQL.", stats.lag.projection_ms),
    ):
        yield GaugeMetricFamily(f"{PREFIX}{name}_seconds", text, value=lag_ms / 1000)


def collect_groups(stats: BridgeStats) -> Iterable[Metric]:
    """What is open, by producer group: of those with most of it; the rest, and a group of that name, are one."""
    groups = stats.projection.groups
    ranked = sorted(groups, key=lambda name: (-groups[name].pending - groups[name].parked, name))
    kept = set(ranked[:MOST_NAMES]) - {OTHER_NAMES}
    values: dict[str, list[float]] = {}
    for name, group in groups.items():
        oldest_ms = stats.now_ms if group.oldest_pending_ms is None else group.oldest_pending_ms
        age_s = max(0, stats.now_ms - oldest_ms) / 1000
        pending, before_s, parked, blocked = values.get(label := name if name in kept else OTHER_NAMES, [0.0] * 4)
        values[label] = [
            pending + group.pending, max(before_s, age_s), parked + group.parked, blocked + group.blocked
        ]  # fmt: skip
    for place, (name, text) in enumerate(
        (
            ("pending", "Transactions that are PREPARED."),
            ("oldest_pending_seconds", "Age of the oldest of them; 0 if there is none."),
            ("parked", "Transactions that are PARKED."),
            ("blocked", "Committed transactions that cannot be published now."),
        )
    ):
        family = GaugeMetricFamily(f"{PREFIX}group_{name}", text, labels=["producer_group"])
        for label, numbers in values.items():
            family.add_metric([label], numbers[place])
        yield family
