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
from bridge.settler.settler import Hold, Settler
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
        yield CounterMetricFamily(
            f"{PREFIX}op_records_not_ours", "Records in the op topic without a valid seal, not believed.",
            value=self._node.seal_watch.forged,
        )  # fmt: skip
        yield GaugeMetricFamily(
            f"{PREFIX}topology_faults", "Faults of the internal topics; while there are any, writes are refused.",
            value=len(self._node.guard.faults),
        )  # fmt: skip
        yield GaugeMetricFamily(
            f"{PREFIX}transactions_without_body", "Not over, and no log has their messages any more.",
            value=sum(lost.transactions for lost in self._node.bodies.lost.values()),
        )  # fmt: skip
        yield GaugeMetricFamily(
            f"{PREFIX}damaged_secrets", "Secrets and endpoints of groups that cannot be decrypted.",
            value=len(self._node.directory.damaged),
        )  # fmt: skip
        if self._certificates is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}certificate_end_seconds", "When the certificate that is shown ends, in Unix time.",
                value=self._certificates.end_s,
            )  # fmt: skip
        if self._node.roles.is_called:
            yield from _collect_audit(self._node.audit_heads)
            yield from _collect_webhooks(self._node.webhooks)
            yield from _collect_canary(self._node.canary)
        for port in self._ports:
            yield from port.copy_metrics()
        if self._node.settler is not None:
            yield from _collect_settler(self._node.settler)
            yield GaugeMetricFamily(
                f"{PREFIX}last_stable_offset_age_seconds",
                "How long what was written to some partition could not be read with `read_committed`; 0 if all can.",
                value=self._node.stable_offsets.age_ms / 1000,
            )  # fmt: skip
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


def _collect_settler(settler: Settler) -> Iterable[Metric]:
    gauges = {
        "queue_owned": "1 while the queue is owned and settled here.",
        "queue_halted": "1 while the queue cannot go on without an operator.",
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
        "queue_overruled": "Ends and answers to checks that say otherwise than the resolution recorded before.",
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
            "queue_halted": float(status.hold is Hold.HALTED),
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
            "queue_overruled": counts.overruled,
            "queue_take_overs": status.take_overs,
        }
        for name, value in values.items():
            families[name].add_sample(_sample_name(families[name]), {"queue": str(queue_id)}, value)
    yield from families.values()
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
