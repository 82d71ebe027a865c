"""Reports on a bridge, and what they came to."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from bridge.core.topics import with_prefix
from spark.errors import Indeterminate
from spark.options import Options, parse_groups
from spark.reconcile import reconcile
from spark.selftest.run import groups_document
from tests.support.bridge_process import Bridge
from tests.traffic.ink import Truth

_PAUSE_S = 2.0
_MOST_TRIES = 20


class Audit(msgspec.Struct, frozen=True):
    """One report. `findings`: those that stand; `told`: transactions looked at event by event; `tries`: in vain."""

    name: str
    place: str
    seconds: float
    prepared: int
    open: int
    offsets: int
    told: int
    findings: tuple[tuple[str, str], ...]
    tries: int

    @property
    def folder(self) -> Path:
        return Path(self.place)

    @property
    def window(self) -> Path:
        """By which the same is read again."""
        return self.folder / "window.json"


class Auditor:
    """Makes reports in one session. `groups`: the bridge's answer; those of what is planted are known besides."""

    def __init__(self, spark: SparkSession, bridge: Bridge, groups: Mapping[str, Any], out: Path) -> None:
        self._spark = spark
        self._bridge = bridge
        self._groups = {**parse_groups(groups), **parse_groups(groups_document())}
        self._out = out

    def audit(
        self,
        name: str,
        folder: str,
        topics: Sequence[str] = (),
        *,
        window: Path | None = None,
        since_last: bool = False,
    ) -> Audit:
        """A report in a folder below `out`; again while there is no verdict, since brokers may be away.

        `topics`: real ones; all if none is named.
        """
        options = Options(
            self._out / folder,
            with_prefix(self._bridge.prefix),
            {"bootstrap.servers": self._bridge.kafka},
            topics=topics,
            groups=self._groups,
            window=window,
            since_last=since_last,
        )
        for tries in range(_MOST_TRIES):
            said: list[str] = []
            began = time.monotonic()
            try:
                outcome = reconcile(self._spark, options, said.append)
            except Indeterminate as error:
                reason = str(error)
                time.sleep(_PAUSE_S)
            else:
                return _read(name, outcome.folder, round(time.monotonic() - began, 1), said, tries)
        raise AssertionError(f"{name}: no verdict in {_MOST_TRIES} tries: {reason}")


def _read(name: str, folder: Path, seconds: float, said: Sequence[str], tries: int) -> Audit:
    summary = json.loads((folder / "summary.json").read_text())
    lines = map(json.loads, (folder / "findings.jsonl").read_text().splitlines())
    standing = tuple(sorted((one["transaction_id"], one["kind"]) for one in lines if one["state"] != "CLEARED"))
    total = summary["books"]["total"]
    offsets = sum(row["end"] - row["start"] for row in summary["partitions"])
    told = next(int(line.split()[0].replace(",", "")) for line in said if "event by event" in line)
    return Audit(name, str(folder), seconds, total["prepared"], total["open"], offsets, told, standing, tries)


def differing(one: Audit, other: Audit) -> list[str]:
    """The files of two reports that are not the same bytes."""
    names = sorted([*json.loads((one.folder / "manifest.json").read_text())["sha256"], "manifest.json"])
    return [name for name in names if (one.folder / name).read_bytes() != (other.folder / name).read_bytes()]


def compare(audit: Audit, truth: Truth) -> list[str]:
    """What was not found, and what is false."""
    found = set(audit.findings)
    return [
        *[f"{audit.name}: {kind} of {tx} not found" for tx, kind in sorted(truth - found)],
        *[f"{audit.name}: {kind} of {tx} is false" for tx, kind in sorted(found - truth)],
    ]
