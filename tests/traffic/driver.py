"""A chaos run with reports during the traffic and at rest; then everything is spoilt, and reported again."""

import random
import threading
import time
from typing import Any

import httpx2
from pyspark.sql import SparkSession

from spark.read.envelope import QueuePlace
from spark.read.window import decode_window
from tests.chaos.collect import get
from tests.chaos.driver import Run, Tell
from tests.chaos.fleet import Fleet
from tests.chaos.orders import WAITING, RunFile, Size
from tests.support.bridge_process import Bridge
from tests.traffic.audits import Audit, Auditor, compare, differing
from tests.traffic.bad_settler import BadSettler
from tests.traffic.ink import Ink, Truth
from tests.traffic.stage import plant_tales
from tests.traffic.wounds import remove_oldest, wound

_FIRST_AFTER = 0.2  # of the time of the faults
_PAUSE_S = 5.0
_GRACE_S = 65.0  # the job's settle grace, and a little
_REMOVED = 40
_MOST_SHOWN = 20
_ORDINARY = 100
_LONE = "line"  # a topic of one partition


class TrafficRun(Run):
    """`rounds`: how often everything is planted. Read when it has run: `audits`, `truth`, and what is `same`."""

    def __init__(self, size: Size, seed: int, tell: Tell, spark: SparkSession, rounds: int) -> None:
        super().__init__(size, seed, tell)
        self.rounds = rounds
        self.audits: list[Audit] = []
        self.truth: Truth = set()
        self.same: dict[str, bool] = {}
        self._spark = spark
        self._wrong: list[str] = []  # of all audits

    def accompany(self, run: RunFile, bridge: Bridge, over: threading.Event) -> None:
        """Reports, each on what came since the last one, until the faults are over."""
        auditor = self._make_auditor(run, bridge)
        over.wait(_FIRST_AFTER * 60 * self.size.minutes)
        while not over.is_set():
            name = f"during the traffic, {len(self.audits) + 1}"
            self._keep(auditor.audit(name, "chain", since_last=True))
            over.wait(_PAUSE_S)

    def conclude(self, run: RunFile, bridge: Bridge, fleet: Fleet) -> list[str]:
        """A report at rest; then what is planted must be found, all of it and nothing else."""
        auditor = self._make_auditor(run, bridge)
        live = list(self.audits)
        self._keep(auditor.audit("at rest", "whole"))
        ink = Ink(bridge, run.topics)
        fleet.stop("settler", "projector")
        with httpx2.Client(base_url=run.urls[0], timeout=30) as http:
            decided_at = BadSettler(ink, http, WAITING).spoil(self.rounds)
        for first in live[:1]:
            again = self._keep(auditor.audit(f"{first.name}, read again at rest", "live", window=first.window))
            self.same["a window read during the traffic and at rest"] = not differing(first, again)
        time.sleep(max(0.0, decided_at + _GRACE_S - time.monotonic()))
        bare = self._plant(ink, _end_of(live[-1], _LONE) if live else 0)
        planted = self._keep(auditor.audit("planted", "planted"))
        again = self._keep(auditor.audit("planted, the same window", "again", window=planted.window))
        self.same["two runs on what is planted"] = not differing(planted, again)
        self.truth -= bare  # what is removed later was seen in the window of its time
        self._keep(auditor.audit("planted, what came since the last", "chain", since_last=True))
        self.truth |= bare
        return [
            *self._wrong[:_MOST_SHOWN],
            *[f"not byte-equal: {name}" for name, same in self.same.items() if not same],
        ]

    def _make_auditor(self, run: RunFile, bridge: Bridge) -> Auditor:
        with httpx2.Client(base_url=run.urls[0], timeout=30) as http:
            groups: dict[str, Any] = get(http, "/v1/producer-groups")
        return Auditor(self._spark, bridge, groups, run.folder)

    def _plant(self, ink: Ink, seen: int) -> Truth:
        """What only a reader of everything can see of it. `seen`: of the lone topic, by the last of several reports."""
        bare = remove_oldest(ink, _LONE, min(seen, _REMOVED))
        wound(ink, random.Random(self.seed), self.rounds, bare)
        plant_tales(ink, "", _ORDINARY, self.rounds)
        self.truth = ink.truth
        self.tell(f"{len(self.truth)} findings planted")
        return {(transaction_id, "UNPROVABLE") for transaction_id in bare}

    def _keep(self, audit: Audit) -> Audit:
        self.tell(f"report {audit.name}: {audit.prepared:,} transactions, {len(audit.findings)} findings")
        self.audits.append(audit)
        wrong = compare(audit, self.truth)
        for each in wrong[:_MOST_SHOWN]:
            self.tell(each)
        self._wrong += wrong
        return audit


def _end_of(audit: Audit, topic: str) -> int:
    return decode_window(audit.window.read_text()).extents[QueuePlace(topic, 0)].end
