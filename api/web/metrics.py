"""Metrics of the HTTP interface, of producer groups, and of the parts a process has. Labels are bounded."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from api.web.transports import Certificates
from bridge.clock import SystemClock
from bridge.core.measures import DURATION_BOUNDS_MS, MOST_NAMES, OTHER_NAMES, Durations
from bridge.node import Node
from bridge.service.audit import AuditHeads
from bridge.service.canary import ARRIVED, FAILED, Canary
from bridge.service.contract import Refused
from bridge.service.reads import BridgeStats, SearchService
from bridge.settler.settler import Hold, QueueStatus, Settler
from bridge.turns import Recent
from checker.call import CheckCounts
from checker.service import CheckService
from checker.webhooks import OUTCOMES, Webhooks

# --- metrics of the HTTP interface, of producer groups, and the text of all metrics. Labels are bounded ---

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


_FRESH_MS = 1_000
_STATS_TIMEOUT_S = 2.0


class Exposition:
    """The text of all metrics, made once a second at most. What the loop changes is copied in it; the text is made
    in a thread."""

    def __init__(self, process: ProcessMetrics | None = None) -> None:
        self.registry = CollectorRegistry()
        self._process = process or ProcessMetrics()
        self._made = Recent[bytes](_FRESH_MS, SystemClock().monotonic_ms)

    async def read(self, search: SearchService) -> bytes:
        """Everything, whoever asks. What SQL knows is left out while it does not answer."""
        return await self._made.get(lambda: self._make(search))

    async def _make(self, search: SearchService) -> bytes:
        process = self._process
        stats = await _read_stats(search) if process.has_lags or process.has_groups else None
        copied = [*process.copy()]
        if stats is not None:
            copied += collect_lags(stats) if process.has_lags else ()
            copied += collect_groups(stats) if process.has_groups else ()
        return await asyncio.to_thread(lambda: generate_latest(self.registry) + generate_latest(_Copied(copied)))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


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
    settle_s, projection_s = stats.lag.settle_ms / 1000, stats.lag.projection_ms / 1000
    yield _gauge(
        "settle_lag_seconds", "Age of the oldest journal record that is not decided; 0 if there is none.", settle_s
    )
    yield _gauge("projection_lag_seconds", "Age of the oldest journal record that is not in SQL.", projection_s)


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


# --- metrics of the parts that a process has ---


class MeasuredPort(Protocol):
    """A port beside that of HTTP."""

    def copy_metrics(self) -> Iterable[Metric]:
        """The present values."""
        ...


class NodeMetrics(ProcessMetrics):
    """The parts that the node has, now or later, the certificate that is shown, and what its other ports tell."""

    def __init__(self, node: Node, certificates: Certificates | None, ports: Sequence[MeasuredPort] = ()) -> None:
        self._node = node
        self._certificates = certificates
        self._ports = ports

    @property
    def has_lags(self) -> bool:
        return self._node.roles.is_called  # which reads the answers of all settlers

    @property
    def has_groups(self) -> bool:
        return self._node.projector is not None and self._node.projector.is_active

    def copy(self) -> Iterable[Metric]:
        node = self._node
        yield CounterMetricFamily(
            f"{PREFIX}op_records_not_ours", "Records in the op topic without a valid seal, not believed.",
            value=node.seal_watch.forged,
        )  # fmt: skip
        yield _gauge(
            "topology_faults",
            "Faults of the internal topics; while there are any, writes are refused.",
            len(node.guard.faults),
        )
        yield _gauge(
            "transactions_without_body",
            "Not over, and no log has their messages any more.",
            sum(lost.transactions for lost in node.bodies.lost.values()),
        )
        yield _gauge(
            "damaged_secrets", "Secrets and endpoints of groups that cannot be decrypted.", len(node.directory.damaged)
        )
        if self._certificates is not None:
            yield _gauge(
                "certificate_end_seconds",
                "When the certificate that is shown ends, in Unix time.",
                self._certificates.end_s,
            )
        if node.roles.is_called:
            yield from _collect_audit(node.audit_heads)
            yield from _collect_webhooks(node.webhooks)
            yield from _collect_canary(node.canary)
        for port in self._ports:
            yield from port.copy_metrics()
        if node.settler is not None:
            yield from _collect_settler(node.settler)
            yield _gauge(
                "last_stable_offset_age_seconds",
                "How long what was written to some partition could not be read with `read_committed`; 0 if all can.",
                node.stable_offsets.age_ms / 1000,
            )
        if node.checks is not None:
            yield from _collect_checks(node.checks)
        if node.projector is not None:
            yield _gauge(
                "projector_active",
                "1 where this projector works, 0 where it stands by.",
                float(node.projector.is_active),
            )
            yield _gauge(
                "projector_halted_queues", "Queues the projector cannot go on with.", len(node.projector.halted)
            )


def _collect_audit(heads: AuditHeads) -> Iterable[Metric]:
    yield _gauge("audit_unproven_entries", "Entries of the audit behind its newest head in Kafka.", heads.unproven)
    yield _gauge(
        "audit_chain_broken", "1 where the audit does not go on from its newest head in Kafka.", float(heads.is_broken)
    )


def _collect_webhooks(webhooks: Webhooks) -> Iterable[Metric]:
    events = CounterMetricFamily(
        f"{PREFIX}webhook_events", "Events that webhooks were told, were told in vain, and will not be told.",
        labels=["webhook", "word"],
    )  # fmt: skip
    waiting = GaugeMetricFamily(
        f"{PREFIX}webhook_waiting", "Events that a webhook has not been told yet, where this process tells.",
        labels=["webhook"],
    )  # fmt: skip
    for target in webhooks.targets:
        for word in OUTCOMES:
            events.add_metric([target.name, word], webhooks.counts[target.name, word])
        if target.name in webhooks.waiting:
            waiting.add_metric([target.name], webhooks.waiting[target.name].events)
    yield from (events, waiting)


def _collect_canary(canary: Canary | None) -> Iterable[Metric]:
    runs = CounterMetricFamily(f"{PREFIX}canary_runs", "Looks at the canary, by what came of them.", labels=["word"])
    seconds = HistogramMetricFamily(f"{PREFIX}canary_seconds", "From a canary's prepare to when it was read.")
    if canary is not None:
        for word in (ARRIVED, FAILED):
            runs.add_metric([word], canary.counts[word])
        _add_durations(seconds, [], canary.durations)
    yield from (runs, seconds)


_OF_GAUGES: Mapping[str, tuple[str, Callable[[QueueStatus], float]]] = {
    "owned": ("1 while the queue is owned and settled here.", lambda queue: queue.hold is Hold.OWNED),
    "halted": ("1 while the queue cannot go on without an operator.", lambda queue: queue.hold is Hold.HALTED),
    "live_transactions": ("Transactions that are not final, or blocked.", lambda queue: queue.live),
    "blocked_transactions": ("Committed transactions that cannot be published now.", lambda queue: queue.blocked),
    "body_bytes": ("Bodies in memory.", lambda queue: queue.held_bytes),
    "next_offset": ("S, the next journal offset to decide.", lambda queue: queue.s),
}
_OF_COUNTERS: Mapping[str, tuple[str, Callable[[QueueStatus], float]]] = {
    "records": ("Journal records decided.", lambda queue: queue.counts.records),
    "batches": ("Kafka transactions committed.", lambda queue: queue.counts.batches),
    "published": ("Transactions published.", lambda queue: queue.counts.published),
    "quarantined": ("Journal records that could not be parsed.", lambda queue: queue.counts.quarantined),
    "put_backs": ("Transactions put back.", lambda queue: queue.counts.carried),
    "parked": ("Transactions parked.", lambda queue: queue.counts.parked),
    "abandoned": ("Blocked commits that operators gave up.", lambda queue: queue.counts.abandoned),
    "overruled": (
        "Ends and answers to checks that say otherwise than the resolution recorded before.",
        lambda queue: queue.counts.overruled,
    ),
    "take_overs": ("Times the queue was taken over.", lambda queue: queue.take_overs),
}


def _collect_settler(settler: Settler) -> Iterable[Metric]:
    for kind, measured in ((GaugeMetricFamily, _OF_GAUGES), (CounterMetricFamily, _OF_COUNTERS)):
        for name, (text, read) in measured.items():
            of_queues = kind(f"{PREFIX}queue_{name}", text, labels=["queue"])
            for queue_id, status in settler.status.items():
                of_queues.add_metric([str(queue_id)], read(status))
            yield of_queues
    for name, text, durations in (
        ("settle_seconds", "From the append of an end to when what follows is written.", settler.times.settle),
        ("publish_seconds", "From a commit to when its messages can be read, blocked or not.", settler.times.publish),
    ):
        family = HistogramMetricFamily(PREFIX + name, text)
        _add_durations(family, [], durations)
        yield family


def _add_durations(family: HistogramMetricFamily, labels: Sequence[str], durations: Durations) -> None:
    bounds = [*(str(bound_ms / 1000) for bound_ms in DURATION_BOUNDS_MS), "+Inf"]
    family.add_metric(labels, [*zip(bounds, accumulate(durations.counts), strict=True)], durations.sum_ms / 1000)


def _collect_checks(checks: CheckService) -> Iterable[Metric]:
    gauges, counts = checks.gauges(), checks.counts
    for name, value in gauges._asdict().items():
        yield GaugeMetricFamily(f"{PREFIX}checks_{name}", f"Transactions or calls that are {name} now.", value=value)
    yield CounterMetricFamily(f"{PREFIX}check_calls", "Calls to endpoints.", value=counts.calls)
    yield _gauge(
        "groups_without_endpoint", "Groups with something due and nobody to ask.", len(counts.groups_without_endpoint)
    )
    for name, text, words in (
        ("checks_answered", "Answers, by resolution.", counts.answered),
        ("checks_unanswered", "Transactions asked about in vain, by failure.", counts.unanswered),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=["word"])
        for word, number in words.items():
            family.add_metric([word], number)
        yield family
    yield from _collect_group_checks(counts)


def _collect_group_checks(counts: CheckCounts) -> Iterable[Metric]:
    for name, text, words_of in (
        ("answered", "Answers, by producer group and resolution.", attrgetter("answered")),
        ("unanswered", "Transactions asked about in vain, by producer group and failure.", attrgetter("unanswered")),
    ):
        family = CounterMetricFamily(f"{PREFIX}group_checks_{name}", text, labels=["producer_group", "word"])
        for group, counted in counts.groups.items():
            for word, number in words_of(counted).items():
                family.add_metric([group, word], number)
        yield family
    calls = HistogramMetricFamily(
        f"{PREFIX}group_check_call_seconds", "Calls to endpoints, by producer group.", labels=["producer_group"]
    )
    lateness = HistogramMetricFamily(
        f"{PREFIX}check_lateness_seconds", "From when a transaction was due to when it was asked about."
    )
    for group, counted in counts.groups.items():
        _add_durations(calls, [group], counted.calls)
    _add_durations(lateness, [], counts.lateness)
    yield from (calls, lateness)
