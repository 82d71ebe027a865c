"""What a run is asked to do: arguments and files, read once."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bridge.core.topics import InternalTopics, with_prefix
from spark.errors import BadUsage
from spark.judge.findings import Thresholds, parse_thresholds
from spark.read.envelope import GroupTimes
from spark.read.table_list import JdbcDatabase, parse_tables

SPARK_VERSION = "4.0.0"  # which this job is tried with


@dataclass(frozen=True, slots=True)
class Access:
    """Every job's folder, Kafka and machine.

    `kafka`: librdkafka's options. `jars`: JDBC drivers. `cores` 0: all.
    """

    out: Path
    internal: InternalTopics
    kafka: Mapping[str, Any]
    topics: Sequence[str] = ()
    jars: Sequence[Path] = ()
    cores: int = 0
    memory_mb: int = 1_024


@dataclass(frozen=True, slots=True)
class Options(Access):
    """A run's options."""

    since_last: bool = False
    window: Path | None = None
    landed: Path | None = None
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)
    strict: bool = False
    by_receipts: bool = False
    databases: Sequence[JdbcDatabase] = ()


def read_json(path: Path) -> Mapping[str, Any]:
    """A file with one JSON object. Raises BadUsage."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadUsage(f"{path} is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise BadUsage(f"{path} is no JSON object")
    return read


def read_kafka_options(given: argparse.Namespace, *, is_needed: bool = True) -> dict[str, Any]:
    """librdkafka's options, of the arguments of `add_job`. Raises BadUsage if Kafka is needed and not named."""
    kafka = dict(read_json(given.kafka_options)) if given.kafka_options else {}
    if given.kafka:
        kafka["bootstrap.servers"] = given.kafka
    if is_needed and not kafka.get("bootstrap.servers"):
        raise BadUsage("no Kafka named", "Give --kafka HOST:PORT or --kafka-options FILE.")
    return kafka


def read_jars(given: argparse.Namespace) -> list[Path]:
    """Of the arguments of `add_job`."""
    return [Path(name) for name in given.jars.split(",") if name]


def read_access(given: argparse.Namespace, *, needs_kafka: bool = True) -> Access:
    """The arguments of `add_access`. Raises BadUsage."""
    return Access(
        given.out,
        with_prefix(given.prefix),
        read_kafka_options(given, is_needed=needs_kafka),
        _read_topics(given.topics),
        read_jars(given),
        given.cores,
        given.memory_mb,
    )


def _read_topics(given: str) -> list[str]:
    """Raises BadUsage for what names none, which would be all."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if given and not names:
        raise BadUsage(f"--topics {given!r} names no topic", "Name them as A,B, or leave it out: then all are read.")
    return names


def parse_options(arguments: Sequence[str]) -> Options:
    """Ends the process with 2, and the reason, for arguments that cannot be. Raises BadUsage for files."""
    given = _make_parser().parse_args(arguments)
    access = read_access(given, needs_kafka=not given.landed)
    return Options(
        **{member.name: getattr(access, member.name) for member in fields(Access)},
        since_last=given.since_last,
        window=given.window,
        landed=given.landed,
        groups=parse_groups(read_json(given.groups)) if given.groups else {},
        thresholds=parse_thresholds(read_json(given.thresholds)) if given.thresholds else Thresholds(),
        strict=given.strict,
        by_receipts=given.by_receipts,
        databases=parse_tables(read_json(given.tables)) if given.tables else (),
    )


def parse_groups(document: Mapping[str, Any]) -> dict[str, GroupTimes]:
    """The answer of `GET /v1/producer-groups`, or an object of names with `check` settings. Raises BadUsage."""
    try:
        listed = document.get("producer_groups", document)
        pairs = listed.items() if isinstance(listed, Mapping) else ((one["name"], one) for one in listed)
        return {
            name: replace(_read_times(one.get("check", one)), is_paused=bool(one.get("checks_paused")))
            for name, one in pairs
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadUsage(f"the producer groups cannot be read: {error!r}") from error


def _read_times(check: Mapping[str, Any]) -> GroupTimes:
    return GroupTimes(
        round(check["transaction_timeout_seconds"] * 1_000),
        int(check["max_checks"]),
        round(check["max_lifetime_seconds"] * 1_000),
    )


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reconcile", description="Proves from Kafka's topics that what was committed is what consumers can read."
    )
    add_access(parser)
    add = parser.add_argument
    add("--since-last", action="store_true", help="read on from where the last run in --out ended")
    add("--window", type=Path, metavar="FILE", help="read exactly the window.json of another run")
    add("--landed", type=Path, metavar="DIR", help="read what `report land`, or another run, has landed")
    add("--groups", type=Path, metavar="FILE", help="JSON of GET /v1/producer-groups, for check limits")
    add("--thresholds", type=Path, metavar="FILE", help="JSON: findings that are let pass, by kind and topic")
    add("--strict", action="store_true", help="exit 4 for warnings (UNPROVABLE)")
    add("--by-receipts", action="store_true", help="records do not name their transactions (no header)")
    add("--tables", type=Path, metavar="FILE", help="JSON: producers' databases and tables to compare")
    return parser


def add_access(parser: argparse.ArgumentParser) -> None:
    """Options of every job on a bridge's topics."""
    add_job(parser)
    add = parser.add_argument
    add("--prefix", default="", help="topics.prefix of the bridge")
    add("--topics", default="", metavar="A,B", help="real topics to read (default: all that are not internal)")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Options of every job: its folder, Kafka, this machine."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder; each run gets a numbered one inside")
    add("--kafka", metavar="HOST:PORT", default="", help="bootstrap servers")
    add("--kafka-options", type=Path, metavar="FILE", help="JSON object with librdkafka's options")
    add("--jars", default="", metavar="A,B", help="JDBC drivers for --tables, where spark-submit brings none")
    add("--cores", type=int, default=0, help="of this machine (default: all)")
    add("--memory-mb", type=int, default=1_024, help="Java heap on this machine")
