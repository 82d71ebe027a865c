"""Metrics of the HTTP interface and gauges of the process. Labels are bounded."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from api.web.certificates import Certificates
from bridge.node import Node
from bridge.service.audit import AuditHeads
from bridge.service.search import BridgeStats
from bridge.settler.settler import Hold, Settler
from checker.service import CheckService

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


MOST_GROUPS = 100
OTHER_GROUPS = "other"


def collect_groups(stats: BridgeStats) -> CollectorRegistry:
    """What is open, by producer group: of those with most of it; the rest, and a group of that name, are one."""
    registry = CollectorRegistry()
    registry.register(_Groups(stats))
    return registry


class _Groups(Collector):
    def __init__(self, stats: BridgeStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        groups = self._stats.projection.groups
        ranked = sorted(groups, key=lambda name: (-groups[name].pending - groups[name].parked, name))
        kept = set(ranked[:MOST_GROUPS]) - {OTHER_GROUPS}
        values: dict[str, list[float]] = {}
        for name, group in groups.items():
            oldest_ms = self._stats.now_ms if group.oldest_pending_ms is None else group.oldest_pending_ms
            age_s = max(0, self._stats.now_ms - oldest_ms) / 1000
            pending, before_s, parked, blocked = values.get(label := name if name in kept else OTHER_GROUPS, [0.0] * 4)
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


def register_gauges(registry: CollectorRegistry, node: Node, certificates: Certificates | None) -> None:
    """Adds the parts that the node has, now or later, and the certificate that is shown."""
    registry.register(_Parts(node, certificates))


class _Parts(Collector):
    def __init__(self, node: Node, certificates: Certificates | None) -> None:
        self._node = node
        self._certificates = certificates

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            f"{PREFIX}op_records_not_ours", "Records in the op topic without a valid seal, not believed.",
            value=self._node.seal_watch.forged,
        )  # fmt: skip
        if self._certificates is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}certificate_end_seconds", "When the certificate that is shown ends, in Unix time.",
                value=self._certificates.end_s,
            )  # fmt: skip
        if self._node.roles.is_called:
            yield from _collect_audit(self._node.audit_heads)
        if self._node.settler is not None:
            yield from _collect_settler(self._node.settler)
        if self._node.checks is not None:
            yield from _collect_checks(self._node.checks)
        if self._node.projector is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}projector_active", "1 where this projector works, 0 where it stands by.",
                value=float(self._node.projector.is_active),
            )  # fmt: skip
            yield GaugeMetricFamily(
                f"{PREFIX}projector_halted_queues", "Queues the projector cannot go on with.",
                value=len(self._node.projector.halted),
            )  # fmt: skip


def _collect_audit(heads: AuditHeads) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        f"{PREFIX}audit_unproven_entries", "Entries of the audit behind its newest head in Kafka.", value=heads.unproven
    )
    yield GaugeMetricFamily(
        f"{PREFIX}audit_chain_broken", "1 where the audit does not go on from its newest head in Kafka.",
        value=float(heads.is_broken),
    )  # fmt: skip


def _collect_settler(settler: Settler) -> Iterable[Metric]:
    gauges = {
        "queue_owned": "1 while the queue is owned and settled here.",
        "queue_live_transactions": "Transactions that are not final, or blocked.",
        "queue_blocked_transactions": "Committed transactions that cannot be published now.",
        "queue_body_bytes": "Bodies in memory.",
        "queue_next_offset": "S, the next journal offset to decide.",
    }
    counters = {
        "queue_records": "Journal records decided.",
        "queue_batches": "Kafka transactions committed.",
        "queue_published": "Transactions published.",
        "queue_quarantined": "Journal records that could not be parsed.",
        "queue_put_backs": "Transactions put back.",
        "queue_parked": "Transactions parked.",
        "queue_abandoned": "Blocked commits that operators gave up.",
        "queue_take_overs": "Times the queue was taken over.",
    }
    families: dict[str, Metric] = {
        **{name: GaugeMetricFamily(PREFIX + name, text, labels=["queue"]) for name, text in gauges.items()},
        **{name: CounterMetricFamily(PREFIX + name, text, labels=["queue"]) for name, text in counters.items()},
    }
    for queue_id, status in settler.status.items():
        counts = status.counts
        values = {
            "queue_owned": float(status.hold is Hold.OWNED),
            "queue_live_transactions": status.live,
            "queue_blocked_transactions": status.blocked,
            "queue_body_bytes": status.held_bytes,
            "queue_next_offset": status.s,
            "queue_records": counts.records,
            "queue_batches": counts.batches,
            "queue_published": counts.published,
            "queue_quarantined": counts.quarantined,
            "queue_put_backs": counts.carried,
            "queue_parked": counts.parked,
            "queue_abandoned": counts.abandoned,
            "queue_take_overs": status.take_overs,
        }
        for name, value in values.items():
            families[name].add_sample(_sample_name(families[name]), {"queue": str(queue_id)}, value)
    return families.values()


def _sample_name(family: Metric) -> str:
    return f"{family.name}_total" if isinstance(family, CounterMetricFamily) else family.name


def _collect_checks(checks: CheckService) -> Iterable[Metric]:
    gauges, counts = checks.gauges(), checks.counts
    for name, value in gauges._asdict().items():
        yield GaugeMetricFamily(f"{PREFIX}checks_{name}", f"Transactions or calls that are {name} now.", value=value)
    yield CounterMetricFamily(f"{PREFIX}check_calls", "Calls to endpoints.", value=counts.calls)
    yield GaugeMetricFamily(
        f"{PREFIX}groups_without_endpoint", "Groups with something due and nobody to ask.",
        value=len(counts.groups_without_endpoint),
    )  # fmt: skip
    for name, text, words in (
        ("checks_answered", "Answers, by resolution.", counts.answered),
        ("checks_unanswered", "Transactions asked about in vain, by failure.", counts.unanswered),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=["word"])
        for word, number in words.items():
            family.add_metric([word], number)
        yield family
