"""What `doctor` looks at. Each examination ends with a finding, whatever it meets, and within its time."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from api.cli.broker_version import ask_version
from api.cli.clock_probe import probe_clocks
from api.settings import Settings
from api.wiring import KafkaParts, kafka_parts
from bridge.broker.errors import JavaMissing
from bridge.broker.java import find_java
from bridge.core.config import CheckMode
from bridge.core.errors import BridgeError, StoreError
from bridge.core.topics import InternalTopics, with_prefix
from bridge.sql.engine import Database
from bridge.sql.errors import SqlUnavailable
from bridge.sql.groups import Snapshot, read_snapshot
from bridge.sql.identity import read_identity
from bridge.sql.migrate import read_revisions
from bridge.topology import examine as find_faults

OK, WARNING, BROKEN = "ok", "warning", "broken"
MAX_SKEW_MS = 5_000
OLDEST_GOOD = (4, 1)  # below 4.1.1 Kafka's own transactions have bugs that were repaired there
_TIMEOUT_S = 15.0
_CONNECT_TIMEOUT_S = 3.0

_KAFKA_REMEDY = "Start Kafka, correct kafka.bootstrap.servers, or open the network; `outbox-bridge dev` starts one."
_MIGRATE_REMEDY = "Run `outbox-bridge migrate`."


class Diagnosis(NamedTuple):
    """What one examination found. `verdict`: ok, warning or broken."""

    verdict: str
    what: str
    found: str
    remedy: str = ""


async def examine(settings: Settings, url: str) -> list[Diagnosis]:
    """Everything, in the order in which one rests on the other."""
    found = [_examine_java()]
    found += await _guard("Kafka", _examine_kafka(settings))
    found += await _guard("SQL", _examine_sql(settings))
    found += await _guard("bridge", asyncio.to_thread(_examine_bridge, url))
    return found


async def _guard(what: str, examination: Awaitable[list[Diagnosis]]) -> list[Diagnosis]:
    """A finding even of what hangs or fails."""
    try:
        async with asyncio.timeout(2 * _TIMEOUT_S):
            return await examination
    except TimeoutError:
        return [Diagnosis(BROKEN, what, f"no answer within {2 * _TIMEOUT_S:.0f} s", "Look at its log and its load.")]
    except (BridgeError, OSError) as error:
        return [Diagnosis(BROKEN, what, str(error), "Repair this first; the rest rests on it.")]


def _examine_java() -> Diagnosis:
    try:
        java = find_java()
    except JavaMissing as error:
        return Diagnosis(WARNING, "Java", f"{error.reason}; only `dev` and `demo` need it", error.remedy)
    return Diagnosis(OK, "Java", f"{java.major} ({java.path}, from {java.source})")


async def _examine_kafka(settings: Settings) -> list[Diagnosis]:
    parts = kafka_parts(settings)
    topics = with_prefix(settings.topics.prefix, settings.topics.queues)
    servers = settings.kafka["bootstrap.servers"]
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            cluster = await parts.admin.describe_cluster()
    except (StoreError, TimeoutError) as error:
        await parts.close()
        return [Diagnosis(BROKEN, "Kafka", f"{servers} cannot be reached: {error or 'no answer'}", _KAFKA_REMEDY)]
    try:
        found = [Diagnosis(OK, "Kafka", f"{', '.join(cluster.brokers)} (cluster {cluster.cluster_id})")]
        found += await asyncio.gather(*[_examine_version(address) for address in cluster.brokers])
        found += await _guard("topics", _examine_topics(parts, topics, settings))
        found += await _guard("transactions", _examine_transactions(parts, topics))
        found += await _guard("clocks", _examine_clocks(parts, topics))
        return found
    finally:
        await parts.close()


async def _examine_version(address: str) -> Diagnosis:
    try:
        release = await asyncio.to_thread(ask_version, address)
    except (OSError, ValueError):
        release = None
    if release is None:
        return Diagnosis(OK, "Kafka version", f"{address} does not tell (TLS, SASL, or before 3.3)")
    if tuple(int(part) for part in release.split(" ")[0].split(".")) < OLDEST_GOOD:
        return Diagnosis(WARNING, "Kafka version", f"{address} is Kafka {release}", "Upgrade to 4.1.1 or newer.")
    return Diagnosis(OK, "Kafka version", f"{address} is Kafka {release}")


async def _examine_topics(parts: KafkaParts, topics: InternalTopics, settings: Settings) -> list[Diagnosis]:
    database = Database(settings.sql_url())
    try:
        identity = await database.read(read_identity)
    except SqlUnavailable:
        return [Diagnosis(WARNING, "topics", "cannot be judged before SQL is migrated", _MIGRATE_REMEDY)]
    finally:
        await database.close()
    faults = await find_faults(parts.admin, topics, identity)
    found = [Diagnosis(BROKEN, "topics", f"{fault.topic}: {fault.detail}", fault.remedy) for fault in faults]
    return found or [Diagnosis(OK, "topics", f"{topics.half}, {topics.op}, {topics.parked} are as they must be")]


async def _examine_transactions(parts: KafkaParts, topics: InternalTopics) -> list[Diagnosis]:
    """A transactional id of its own, so that no settler is fenced."""
    ids = (f"{topics.transactional_prefix}-doctor-0", f"{topics.transactional_prefix}-doctor-1")
    writer = parts.owners.open_writer(ids)
    try:
        await writer.fence()
    except StoreError as error:
        remedy = (
            f"Allow Write and Describe on transactional ids {topics.transactional_prefix}-*; see the brokers' logs."
        )
        return [Diagnosis(BROKEN, "transactions", f"no Kafka transaction can be begun: {error}", remedy)]
    finally:
        await writer.close()
    return [Diagnosis(OK, "transactions", "Kafka transactions can be begun")]


async def _examine_clocks(parts: KafkaParts, topics: InternalTopics) -> list[Diagnosis]:
    if (await parts.admin.describe_topics([topics.half]))[topics.half] is None:
        return []
    skews = await probe_clocks(parts.store, topics, time.time_ns)
    refused = [f"queue {queue_id}: {skew}" for queue_id, skew in skews.items() if isinstance(skew, str)]
    if refused:
        remedy = f"Give the bridge's user the right to write to {topics.half}, or repair its partitions."
        return [Diagnosis(BROKEN, "clocks", f"{topics.half} cannot be written: {'; '.join(refused)}", remedy)]
    known = [skew for skew in skews.values() if isinstance(skew, int)]
    spread, worst = max(known) - min(known), max(known, key=abs)
    if spread > MAX_SKEW_MS:
        text = f"the brokers' clocks differ by {spread / 1000:.1f} s"
        return [Diagnosis(BROKEN, "clocks", text, "Synchronise the brokers' clocks (NTP); 5 s is the limit.")]
    if abs(worst) > MAX_SKEW_MS:
        text = f"Kafka's clock is {abs(worst) / 1000:.1f} s {'ahead of' if worst > 0 else 'behind'} this machine's"
        return [
            Diagnosis(WARNING, "clocks", text, "Synchronise this machine's clock (NTP); signatures carry its time.")
        ]
    return [Diagnosis(OK, "clocks", f"Kafka's and this machine's agree within {abs(worst)} ms")]


async def _examine_sql(settings: Settings) -> list[Diagnosis]:
    try:
        revisions = await asyncio.to_thread(read_revisions, settings.sql_url())
    except SqlUnavailable as error:
        remedy = "Start the database or correct database_url."
        return [Diagnosis(BROKEN, "SQL", f"cannot be reached: {error}", remedy)]
    if not revisions.is_current:
        text = f"tables are at {revisions.current or 'nothing'}, this release needs {revisions.needed}"
        return [Diagnosis(BROKEN, "SQL", text, _MIGRATE_REMEDY)]
    found = [Diagnosis(OK, "SQL", f"reachable, tables at {revisions.current}")]
    return found + await _guard("endpoints", _examine_endpoints(settings))


async def _examine_endpoints(settings: Settings) -> list[Diagnosis]:
    database = Database(settings.sql_url())
    try:
        now_ms = time.time_ns() // 1_000_000
        snapshot = await database.read(lambda connection: read_snapshot(connection, Snapshot(), now_ms))
    finally:
        await database.close()
    found: list[Diagnosis] = []
    for name, group in snapshot.groups.items():
        what = f"group {name}"
        if not group.endpoints and group.settings.calls.mode is CheckMode.PUSH:
            text, remedy = "no endpoint: nobody can be asked", f"outbox-bridge group put {name} --endpoint URL"
            found.append(Diagnosis(WARNING, what, text, remedy))
        found += await asyncio.gather(*[_examine_endpoint(what, endpoint.url) for endpoint in group.endpoints])
    return found


async def _examine_endpoint(what: str, url: str) -> Diagnosis:
    parts = urlsplit(url)
    shown = url.partition("?")[0]
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            port = parts.port or (443 if parts.scheme == "https" else 80)
            _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        remedy = f"Start it, or correct its URL; then `outbox-bridge group test {what.removeprefix('group ')}`."
        return Diagnosis(WARNING, what, f"{shown} cannot be reached from here: {error or 'time-out'}", remedy)
    return Diagnosis(OK, what, f"{shown} is reachable")


def _examine_bridge(url: str) -> list[Diagnosis]:
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/readyz", params={"verbose": "true"}, timeout=_TIMEOUT_S)
        checks = answer.json()["checks"]
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        remedy = "Start it with `outbox-bridge serve` or `dev`, or name its address with --url."
        return [Diagnosis(WARNING, "bridge", f"does not answer at {url}: {error}", remedy)]
    except (ValueError, KeyError, TypeError):
        return [Diagnosis(BROKEN, "bridge", f"something else answers at {url}", "Name its address with --url.")]
    return [_judge_check(check) for check in checks]


def _judge_check(check: Mapping[str, Any]) -> Diagnosis:
    verdict = OK if check["ok"] else WARNING if check.get("degraded") else BROKEN
    return Diagnosis(verdict, f"bridge {check['name']}", check["detail"] or "as it must be")
