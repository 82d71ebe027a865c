"""Metrics of the HTTP interface. Labels are bounded: route templates, methods and classes of status."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

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


def render_metrics(registry: CollectorRegistry) -> tuple[bytes, str]:
    """The exposition and its content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
