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
    "batch_tps_300": Figure("settled over HTTP in batches of 100, 300 B", "/s", 28_000, 34_000),
    "batch_tps_1000": Figure("settled over HTTP in batches of 100, 1 KB", "/s", 22_000, 28_000),
    "batch_vs_raw": Figure("batches of 300 B / raw loop", "x", 0.25, 0.30),
    "batch_vs_rocketmq": Figure("batches of 1 KB / RocketMQ's best rate", "x", 2.0, 2.5),
    "batch_p50_ms": _low("resolutions of 100, 32 connections, p50", "ms"),
    "single256_tps": Figure("single calls (prepare, then commit), 256 connections", "/s", 7_000, 9_000),
    "single64_tps": Figure("single calls, 64 connections", "/s", 4_500, 6_000),
    "single_vs_fastapi": Figure("single calls / the same behind plain FastAPI and pydantic", "x", 4.0, 6.0),
    "single64_vs_transaction_each": Figure("single calls / one Kafka transaction a message", "x", 4.0, 6.0),
    "wrk256_tps": Figure("single calls made by `wrk`, 256 connections", "/s"),
    "wrk64_tps": Figure("the same, 64 connections", "/s"),
    "commit1_p50_ms": _low("commit, 1 client, p50", "ms", 3.4, 3.0),
    "commit1_p99_ms": _low("commit, 1 client, p99", "ms", 12, 9),
    "commit64_p50_ms": _low("commit, 64 clients, p50", "ms", 10, 8),
    "commit64_p99_ms": _low("commit, 64 clients, p99", "ms", 28, 22),
    "commit1000_p50_ms": _low("commit, 1,000 clients, p50", "ms", 18, 15),
    "commit1000_p99_ms": _low("commit, 1,000 clients, p99", "ms", 50, 40),
    "async1_p50_ms": _low("end with `Prefer: respond-async`, 1 client, p50", "ms", 1.2, 0.8),
    "async1_p99_ms": _low("end with `Prefer: respond-async`, 1 client, p99", "ms", 4, 2),
    "api_us": _low("CPU of the api processes for a transaction in batches", "us", 16, 13),
    "settler_us": _low("CPU of the settlers", "us", 18, 14),
    "projector_us": _low("CPU of the projector", "us", 16, 12),
    "broker_us": _low("CPU of the broker", "us"),
    "load_us": _low("CPU of the load itself", "us"),
    "projection_lag_s": _low("until the projection has caught up after a load in batches", "s", 1),
    "projector_core_us": _low("the projector itself, without Kafka, on SQLite", "us"),
    "projector_sqlite_tps": Figure("transactions projected on SQLite", "/s", 90_000, 150_000),
    "projector_postgres_tps": Figure("transactions projected on PostgreSQL, fsync on", "/s", 50_000, 80_000),
    "fill_tps": Figure("prepares alone, in batches of 1,000, 200 B", "/s"),
    "pending_bytes": _low("settler's memory for a pending transaction with a body of 200 B", "B", 550, 450),
    "pending_bytes_without_body": _low("the same without body, after a restart", "B", 250, 200),
    "prepare_p99_ms": _low("prepare, 200/s, p99, with nothing pending", "ms"),
    "prepare_1m_put_back_p99_ms": _low("the same while a million pending are put back", "ms"),
    "prepare_1m_p99_ms": _low("the same with a million pending", "ms"),
    "prepare_1m_vs_none": _low("with a million pending / with nothing pending", "x", 1.15, 1.05),
    "restart_1m_s": _low("from the start of a settler's process to its first commit, a million pending", "s", 4, 2.5),
    "take_over_1m_s": _low("from the kill of a settler to another's first commit, a million pending", "s", 8, 6),
    "due_tps": Figure("due at once: asked, answered and visible", "/s"),
    "bare_calls_tps": Figure("the same calls made by a bare aiohttp loop", "/s"),
    "pending_vs_due_loop": Figure("the first / the second", "x", 0.5, 0.8),
    "cost_by_load": _low("CPU of all parts for a transaction in batches, 64 connections / 1 connection", "x"),
    "cost_by_groups": _low("the same, 2,000 producer groups / 1", "x"),
    "cost_by_topics": _low("the same, 100 topics / 1", "x"),
    "cost_by_bytes": _low("the same, 16,000 B / 100 B", "x"),
    "cost_by_pending": _low("the same, 200,000 pending / none", "x"),
    "cost_by_queues": _low("the same, four queues, apis and settlers / one of each", "x"),
    "cost_by_brokers": _low("the same, three brokers with three replicas / one", "x"),
    "rocketmq_tps": Figure("RocketMQ, transactional, one-way ends, 1 KB", "/s"),
    "rocketmq_visible_tps": Figure("the same, counted as messages became visible", "/s"),
    "door_visible_tps": Figure("its client at the door, 64 threads, counted so", "/s", 8_000),
    "door_vs_rocketmq": Figure("the same / RocketMQ in the same run", "x", 0.8),
    "transaction_each_tps": Figure("one Kafka transaction a message, 8 producers", "/s"),
    "fastapi_single256_tps": Figure("single calls behind plain FastAPI and pydantic, 256 connections", "/s"),
    "foreign_cores": _low("processors used by others meanwhile", "cores"),
    "relay_tps": Figure("relay: rows of PostgreSQL visible in Kafka, once each, in order of their keys", "/s"),
    "faststream_tps": Figure("faststream-outbox, tuned, in no order, one process", "/s"),
    "faststreams_tps": Figure("the same, a process for each processor", "/s"),
    "faststream_ordered_tps": Figure("faststream-outbox, rows in their order: one worker, else the same", "/s"),
    "faststream_defaults_tps": Figure("faststream-outbox as it comes", "/s"),
    "plain_tps": Figure("a loop of `FOR UPDATE SKIP LOCKED`, produce, delete", "/s"),
    "relay_vs_faststream": Figure("relay / faststream-outbox, tuned, in no order, one process", "x", 3.0, 4.0),
    "relay_vs_faststreams": Figure("the same, a process for each processor", "x"),
    "relay_vs_faststream_ordered": Figure("relay / faststream-outbox, both in order", "x", 3.0),
    "relay_vs_faststream_defaults": Figure("relay / faststream-outbox, both as they come", "x", 3.0),
    "relay_vs_plain": Figure("relay / the loop", "x"),
    "relay_us": _low("CPU of the relay's own process for a row", "us"),
    "faststream_us": _low("CPU of faststream-outbox's process, tuned", "us"),
    "faststreams_us": _low("CPU of its processes, one for each processor", "us"),
    "faststream_ordered_us": _low("CPU of its process, in order", "us"),
    "faststream_defaults_us": _low("CPU of its process, as it comes", "us"),
    "plain_us": _low("CPU of the loop", "us"),
    "enqueue_postgres_us": _low("`enqueue` of a message, PostgreSQL", "us"),
    "insert_postgres_us": _low("a bare INSERT of an equal row", "us"),
    "enqueue_vs_insert_postgres": _low("the first / the second", "x"),
    "enqueued_postgres_us": _low("a local transaction of an order and `enqueue`, with its commit", "us"),
    "inserted_postgres_us": _low("the same with the bare INSERT", "us"),
    "enqueued_vs_inserted_postgres": _low("the first / the second", "x"),
    "enqueue_sqlite_us": _low("`enqueue` of a message, SQLite", "us"),
    "insert_sqlite_us": _low("a bare INSERT of an equal row", "us"),
    "enqueue_vs_insert_sqlite": _low("the first / the second", "x"),
    "enqueued_sqlite_us": _low("a local transaction of an order and `enqueue`, with its commit", "us"),
    "inserted_sqlite_us": _low("the same with the bare INSERT", "us"),
    "sdk1_tps": Figure("`with bridge.transaction(session)`, 1 thread, settled", "/s", 100, 150),
    "sdk16_tps": Figure("the same, 16 threads", "/s"),
    "sdk64_tps": Figure("the same, 64 threads", "/s", 1_000, 1_500),
    "sdk1_stored_tps": Figure("`respond_async=True`, 1 thread, the commit stored", "/s"),
    "sdk16_stored_tps": Figure("the same, 16 threads", "/s"),
    "sdk64_stored_tps": Figure("the same, 64 threads", "/s"),
    "local1_tps": Figure("the same local transaction without a bridge and without its record, 1 thread", "/s"),
    "local16_tps": Figure("the same, 16 threads", "/s"),
    "local64_tps": Figure("the same, 64 threads", "/s"),
    "lean1_tps": Figure("the least program that does what a block does, no SDK, 1 thread, settled", "/s"),
    "lean16_tps": Figure("the same, 16 threads", "/s"),
    "lean64_tps": Figure("the same, 64 threads", "/s"),
    "lean1_stored_tps": Figure("the same, 1 thread, the commit stored", "/s"),
    "lean16_stored_tps": Figure("the same, 16 threads", "/s"),
    "lean64_stored_tps": Figure("the same, 64 threads", "/s"),
    "sdk_async64_tps": Figure("the same, 64 tasks of asyncio", "/s"),
    "reconcile_s": _low("reconciliation of everything in one window, after Spark's start", "s", 45, 30),
    "reconcile_start_s": _low("Spark's start, from the process's", "s"),
    "reconcile_peak_mb": _low("most memory of driver, JVM and Python workers together", "MB", 2_500),
    "reconcile_4_windows_s": _low("each of four windows over the same, after Spark's start", "s"),
    "reconcile_4_last_vs_first": _low("the last window / the first", "x", 1.25),
    "reconcile_16_windows_s": _low("each of sixteen windows", "s"),
    "reconcile_16_last_vs_first": _low("the last four windows / the first four", "x", 1.25),
    "reconcile_planting_s": _low("writing the data through Kafka transactions, everything planted", "s"),
}
