"""The figures: what each says, what it is to reach."""

from typing import NamedTuple


class Figure(NamedTuple):
    """One figure. `least`: what is asked for; `aim`: what is hoped for; None: told, not judged."""

    title: str
    unit: str
    least: float | None = None
    aim: float | None = None
    is_low_better: bool = False

    def reaches(self, value: float) -> bool | None:
        """Whether it is as good as asked for."""
        if self.least is None:
            return None
        return value <= self.least if self.is_low_better else value >= self.least


def _low(title: str, unit: str, least: float | None = None, aim: float | None = None) -> Figure:
    return Figure(title, unit, least, aim, is_low_better=True)


FIGURES = {
    "raw_tps": Figure("raw producer loop with callbacks, the same four records a transaction", "/s"),
    "batch_tps_300": Figure("settled over HTTP in batches of 100, 300 B", "/s", 35_000, 50_000),
    "batch_tps_1000": Figure("settled over HTTP in batches of 100, 1 KB", "/s", 35_000, 50_000),
    "batch_vs_raw": Figure("batches of 300 B / raw loop", "x", 0.70, 0.90),
    "batch_vs_rocketmq": Figure("batches of 1 KB / RocketMQ's best rate", "x", 1.5, 2.0),
    "batch_p50_ms": _low("resolutions of 100, 32 connections, p50", "ms"),
    "single256_tps": Figure("single calls (prepare, then commit), 256 connections", "/s", 8_000, 12_000),
    "single64_tps": Figure("single calls, 64 connections", "/s"),
    "single_vs_fastapi": Figure("single calls / the same behind plain FastAPI and pydantic", "x", 3.0, 4.0),
    "single64_vs_transaction_each": Figure("single calls / one Kafka transaction a message", "x", 15, 25),
    "commit1_p50_ms": _low("commit, 1 client, p50", "ms", 5, 3.5),
    "commit1_p99_ms": _low("commit, 1 client, p99", "ms", 12, 8),
    "commit64_p50_ms": _low("commit, 64 clients, p50", "ms", 10, 7),
    "commit64_p99_ms": _low("commit, 64 clients, p99", "ms", 35, 20),
    "commit1000_p50_ms": _low("commit, 1,000 clients, p50", "ms", 30, 20),
    "commit1000_p99_ms": _low("commit, 1,000 clients, p99", "ms", 70, 45),
    "async1_p50_ms": _low("end with `Prefer: respond-async`, 1 client, p50", "ms", 1, 0.6),
    "async1_p99_ms": _low("end with `Prefer: respond-async`, 1 client, p99", "ms", 4, 2),
    "api_us": _low("CPU of the api processes for a transaction in batches", "us", 22, 15),
    "settler_us": _low("CPU of the settlers", "us", 11, 8),
    "projector_us": _low("CPU of the projector", "us", 20, 12),
    "broker_us": _low("CPU of the broker", "us"),
    "load_us": _low("CPU of the load itself", "us"),
    "projection_lag_s": _low("until the projection has caught up after a load in batches", "s"),
    "rocketmq_tps": Figure("RocketMQ, transactional, one-way ends, 1 KB", "/s"),
    "rocketmq_visible_tps": Figure("the same, counted as messages became visible", "/s"),
    "transaction_each_tps": Figure("one Kafka transaction a message, 8 producers", "/s"),
    "fastapi_single256_tps": Figure("single calls behind plain FastAPI and pydantic, 256 connections", "/s"),
    "foreign_cores": _low("processors used by others meanwhile", "cores"),
}
