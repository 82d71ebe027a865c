"""What `doctor` looks at: Kafka's version, clocks, topics, rights, SQL, Java, the bridge, endpoints.

A keyed half message that was seen before there was time is void for everybody, by a rule on the record alone
(`docs/records.md`); each queue of the journal may be on another broker.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from api.cli.connect import call, client_for, find_all, quoted
from api.cli.output import CONNECTIONS_REMEDY, TIMEOUT_REMEDY, CommandFailed, is_timeout_refused
from api.cli.security import count_secrets
from api.kafka_version import VERSION_REMEDY, BrokerVersion, ask_versions
from api.settings import Origin, Settings, find_open_servers
from api.web.health import (
    BROKEN,
    OK,
    SKIPPED,
    WARNING,
    Diagnosis,
    Probes,
    judge_check,
    judge_groups,
    judge_stats,
    tell_unknown,
)
from api.wiring import KafkaParts, find_denied, open_database
from bridge.broker.ports import JavaMissing, find_java
from bridge.core.errors import BridgeError, SqlUnavailable, StoreError
from bridge.core.message import Message, MessageQueue
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.core.topics import RIGHTS_REMEDY, InternalTopics, with_prefix
from bridge.core.transaction import make_transaction_id, make_uuid7_bits
from bridge.node import Roles
from bridge.sql.engine import read_revisions
from bridge.sql.groups import Snapshot, read_snapshot
from bridge.sql.identity import read_identity
from bridge.store.message_store import MessageStore, PutStatus
from bridge.topology import examine as find_faults
from bridge.topology import judge_topics_of_kafka
from outbox.client.config import HttpConfig
from outbox.client.errors import OutboxConfigError

GROUP = "outbox-bridge-doctor"


async def _probe(store: MessageStore, topics: InternalTopics, queue_id: int, now_ns: Callable[[], int]) -> int | str:
    before_ms = now_ns() // 1_000_000
    queue = MessageQueue(topics.half, queue_id)
    result = await store.put(queue, make_void(topics.half, queue_id, before_ms))
    if result.status is not PutStatus.PUT_OK:
        return result.detail or result.status.value
    return result.stored_ms - (before_ms + now_ns() // 1_000_000) // 2


def make_void(topic: str, queue_id: int, now_ms: int) -> Message:
    """A half message that no settler takes for one."""
    transaction_id = make_transaction_id(queue_id, make_uuid7_bits(now_ms, int.from_bytes(os.urandom(10))))
    half = HalfMessage(transaction_id, GROUP, 1, now_ms, GROUP, idempotency_key=transaction_id, seen_ms=0)
    return encode_half(half, [Message(GROUP)], topic, queue_id)


MAX_SKEW_MS = 5_000
_TIMEOUT_S = 15.0
_MOST_GROUPS = 10_000
_PROBES_AT_ONCE = 8

_KAFKA_REMEDY = (
    "Start Kafka, correct kafka.bootstrap.servers or the brokers' advertised.listeners, or open the network; "
    "`outbox-bridge dev` starts one."
)
_AWAY_REMEDY = "Give the brokers advertised.listeners that this machine can reach, or open the network."
_MIGRATE_REMEDY = "Run `outbox-bridge migrate`."


async def examine(settings: Settings, url: str, roles: Roles) -> list[Diagnosis]:
    """Everything, in the order in which one rests on the other.

    Where no setting names the bridge's Kafka and database, and it answers, nothing is called broken that is elsewhere.
    """
    of_bridge = await _guard("bridge", asyncio.to_thread(_examine_bridge, url))
    unseen = _find_unseen(settings) if any(one.verdict == OK for one in of_bridge) else set()
    found = [_examine_java()]
    if "Kafka" not in unseen or settings.data_dir.exists():
        of_kafka = await _guard("Kafka", _examine_kafka(settings, roles, is_sql_seen="SQL" not in unseen))
        if all(one.verdict != BROKEN for one in of_kafka):
            unseen.discard("Kafka")
        found += [] if "Kafka" in unseen else of_kafka
    if "SQL" not in unseen:
        found += await _guard("SQL", _examine_sql(settings))
    return [*found, *[_tell_unseen(what) for what in sorted(unseen)], *of_bridge]


def _find_unseen(settings: Settings) -> set[str]:
    """What no setting names: the bridge may use the default, or not."""
    unseen = set()
    if settings.origin("kafka.bootstrap.servers") is Origin.DEFAULT:
        unseen.add("Kafka")
    if settings.database_url is None and not (settings.data_dir / "bridge.db").exists():
        unseen.add("SQL")
    return unseen


def _tell_unseen(what: str) -> Diagnosis:
    text = f"not looked at: no setting in {Path.cwd()} names it; see below what the bridge says"
    return Diagnosis(SKIPPED, what, text, "Run doctor where the bridge's settings are, or name them with --config.")


async def _guard(what: str, examination: Awaitable[list[Diagnosis]]) -> list[Diagnosis]:
    """A finding even of what hangs or fails."""
    try:
        async with asyncio.timeout(2 * _TIMEOUT_S):
            return await examination
    except TimeoutError:
        return [Diagnosis(BROKEN, what, f"no answer within {2 * _TIMEOUT_S:.0f} s", "Look at its log and its load.")]
    except (BridgeError, OutboxConfigError, OSError) as error:
        remedy = getattr(error, "remedy", "") or "Repair this first; the rest rests on it."
        return [Diagnosis(BROKEN, what, str(error), remedy)]


def _examine_java() -> Diagnosis:
    try:
        java = find_java()
    except JavaMissing as error:
        return Diagnosis(WARNING, "Java", f"{error.reason}; only `dev` and `demo` need it", error.remedy)
    return Diagnosis(OK, "Java", f"{java.major} ({java.path}, from {java.source})")


async def _examine_kafka(settings: Settings, roles: Roles, *, is_sql_seen: bool) -> list[Diagnosis]:
    parts = KafkaParts(settings)
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
        answers = await ask_versions(cluster.brokers, settings.kafka)
        if away := [str(answer) for answer in answers if answer.is_away]:  # the rest would blame rights and topics
            return [Diagnosis(BROKEN, "Kafka", f"{servers} answers; of its brokers {', '.join(away)}", _AWAY_REMEDY)]
        found += [_judge_version(answer) for answer in answers]
        found += _examine_encryption(settings)
        found += await _guard("rights", _examine_rights(parts, topics, roles))
        if is_sql_seen:
            found += await _guard("topics", _examine_topics(parts, topics, settings))
        if roles.settler:
            found += await _guard("transactions", _examine_transactions(parts, topics))
        if roles.is_called or roles.settler:
            found += await _guard("clocks", _examine_clocks(parts, topics))
        return found
    finally:
        await parts.close()


def _judge_version(answer: BrokerVersion) -> Diagnosis:
    verdict = WARNING if answer.harm else OK if answer.release else SKIPPED
    return Diagnosis(verdict, "Kafka version", str(answer), VERSION_REMEDY if answer.harm else "")


def _examine_encryption(settings: Settings) -> list[Diagnosis]:
    if not (servers := find_open_servers(settings.kafka)):
        return []
    remedy = "Set kafka.security.protocol to SASL_SSL or SSL."
    return [Diagnosis(WARNING, "encryption", f"records and passwords go to {', '.join(servers)} in clear", remedy)]


async def _examine_rights(parts: KafkaParts, topics: InternalTopics, roles: Roles) -> list[Diagnosis]:
    remedy = f"{RIGHTS_REMEDY[0].upper()}{RIGHTS_REMEDY[1:]}."
    denied = await find_denied(parts.admin, roles, topics)
    found = [Diagnosis(BROKEN, "rights", str(right), remedy) for right in denied]
    return found or [Diagnosis(OK, "rights", "what these roles need of topics and group is allowed")]


async def _examine_topics(parts: KafkaParts, topics: InternalTopics, settings: Settings) -> list[Diagnosis]:
    unjudged = [Diagnosis(WARNING, "topics", "cannot be judged without SQL", "First do what is said of SQL.")]
    if _find_missing_file(settings) is not None:
        return unjudged
    try:
        async with open_database(settings) as database:
            identity = await database.read(read_identity)
    except SqlUnavailable:
        return unjudged
    faults = await find_faults(parts.admin, topics, identity)
    faults += await judge_topics_of_kafka(parts.admin) or []
    taken = settings.topics.overridden
    found = [
        Diagnosis(WARNING if f.kind in taken else BROKEN, "topics", f"{f.topic}: {f.detail}", f.remedy) for f in faults
    ]
    return found or [Diagnosis(OK, "topics", f"{', '.join(topics.names)} are as they must be")]


async def _examine_transactions(parts: KafkaParts, topics: InternalTopics) -> list[Diagnosis]:
    """A transactional id of its own, so that no settler is fenced."""
    ids = (f"{topics.transactional_prefix}-doctor-0", f"{topics.transactional_prefix}-doctor-1")
    writer = parts.owners.open_writer(ids)
    try:
        await writer.fence()
    except StoreError as error:
        rights = (
            f"Allow Write and Describe on transactional ids {topics.transactional_prefix}-*; see the brokers' logs."
        )
        remedy = TIMEOUT_REMEDY if is_timeout_refused(error) else rights
        if "_TIMED_OUT" in str(error):  # whoever lacks a right is told so
            remedy = CONNECTIONS_REMEDY
        return [Diagnosis(BROKEN, "transactions", f"no Kafka transaction can be begun: {error}", remedy)]
    finally:
        await writer.close()
    return [Diagnosis(OK, "transactions", "Kafka transactions can be begun")]


async def _examine_clocks(parts: KafkaParts, topics: InternalTopics) -> list[Diagnosis]:
    if (await parts.admin.describe_topics([topics.half]))[topics.half] is None:
        return []
    # by queue: milliseconds its broker is ahead of `now_ns`, or why nothing could be appended
    skews = {queue_id: await _probe(parts.store, topics, queue_id, time.time_ns) for queue_id in range(topics.queues)}
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


def _find_missing_file(settings: Settings) -> Path | None:
    """SQLite makes an empty file where it opens one that is not there, as after a typing error."""
    database = settings.sql_url().removeprefix("sqlite:///")
    if database == settings.sql_url() or database.startswith("file:"):
        return None
    path = Path(database.partition("?")[0])
    return path if path.parent.is_dir() and not path.exists() else None


async def _examine_sql(settings: Settings) -> list[Diagnosis]:
    if (missing := _find_missing_file(settings)) is not None:
        text = f"there is no database file {missing}"
        return [Diagnosis(BROKEN, "SQL", text, "Run `outbox-bridge migrate`, or correct database_url.")]
    try:
        revisions = await asyncio.to_thread(read_revisions, settings.sql_url())
    except SqlUnavailable as error:
        remedy = "Start the database or correct database_url."
        return [Diagnosis(BROKEN, "SQL", f"cannot be reached: {error}", remedy)]
    if revisions.is_newer:
        text = f"tables are at {revisions.current}, which a later release made; this one needs {revisions.needed}"
        return [Diagnosis(WARNING, "SQL", text, "Upgrade this process too, or finish rolling back.")]
    if not revisions.is_current:
        text = f"tables are at {revisions.current or 'nothing'}, this release needs {revisions.needed}"
        return [Diagnosis(BROKEN, "SQL", text, _MIGRATE_REMEDY)]
    found = [Diagnosis(OK, "SQL", f"reachable, tables at {revisions.current}")]
    found += await _guard("secrets", _examine_secrets(settings))
    return found + await _guard("endpoints", _examine_damage(settings))


async def _examine_secrets(settings: Settings) -> list[Diagnosis]:
    counts, keys = await count_secrets(settings), settings.secret_keys()
    first = keys[0].key_id if keys else None
    if others := counts.total() - counts[first]:
        text = f"{others} are not encrypted with {first or 'no key'}, the first of security.keys"
        return [Diagnosis(WARNING, "secrets", text, "When all processes have it: `outbox-bridge security rewrap`.")]
    if first is None:
        verdict = OK if settings.sql_url().startswith("sqlite") else WARNING
        remedy = "Set security.keys to what `outbox-bridge security new-key` prints."
        return [Diagnosis(verdict, "secrets", "stored in the database unencrypted", remedy)]
    return [Diagnosis(OK, "secrets", f"encrypted with the key {first}")]


async def _examine_damage(settings: Settings) -> list[Diagnosis]:
    async with open_database(settings) as database:
        now_ms = time.time_ns() // 1_000_000
        snapshot = await database.read(lambda connection: read_snapshot(connection, Snapshot(), now_ms))
    remedy = "Set security.keys right, or restore the rows; see `/readyz?verbose` of the bridge."
    return [Diagnosis(BROKEN, "endpoints", "; ".join(snapshot.damaged), remedy)] if snapshot.damaged else []


def _examine_bridge(url: str) -> list[Diagnosis]:
    place, query, client, proof = f"{url.rstrip('/')}/readyz", {"verbose": "true"}, client_for(url), HttpConfig().proof
    try:
        answer = client.get(place, params=query, headers=proof, timeout=_TIMEOUT_S)
        told = answer.json()
        is_ready, checks = told["ready"], told.get("checks")
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        remedy = "Start it with `outbox-bridge serve` or `dev`, or name its address with --url."
        return [Diagnosis(WARNING, "bridge", f"does not answer at {url}: {error}", remedy)]
    except (ValueError, KeyError, TypeError):
        return [Diagnosis(BROKEN, "bridge", f"something else answers at {url}", "Name its address with --url.")]
    if checks is None:
        said = "is ready" if is_ready else "is not ready"
        remedy = "Set OUTBOX_BRIDGE_KEY: what it checked is shown to callers with a key."
        return [Diagnosis(OK if is_ready else BROKEN, "bridge", said, remedy)]
    return [judge_check(check) for check in checks] + _examine_work(url)


def _examine_work(url: str) -> list[Diagnosis]:
    try:
        stats = call(url, "GET", "/v1/stats").members
        listed, _ = find_all(url, "/v1/producer-groups", "producer_groups", {}, _MOST_GROUPS)
    except CommandFailed as failed:
        return [tell_unknown(failed.reason, failed.remedy)]
    groups = [msgspec.json.decode(group) for group in listed]
    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        return judge_stats(stats) + judge_groups(zip(groups, pool.map(partial(_probe_group, url), groups), strict=True))


def _probe_group(url: str, group: Mapping[str, Any]) -> Probes:
    """What the endpoints of the group do with a signed call of the bridge; None if it is not made."""
    if not group["endpoints"]:
        return ()
    try:
        path = f"/v1/producer-groups/{quoted(group['name'])}/test"
        probes: Sequence[Mapping[str, Any]] = call(url, "POST", path, body={"probe": True}).members["findings"]
    except CommandFailed:  # no right to change the group, or a bridge of a release before
        return None
    return probes
