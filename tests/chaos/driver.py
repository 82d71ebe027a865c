"""A run from its first broker to its verdict."""

import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import msgspec

from bridge.broker.ports import choose_free_port
from tests.chaos import figures
from tests.chaos.collect import Parts, get, read_unrest
from tests.chaos.desk import counts_of
from tests.chaos.destinations import USUAL_CONFIG, Destinations, find_troubles
from tests.chaos.faults import Faults, Stage
from tests.chaos.fleet import ClientProcess, Fleet, running_fleet, settler_bytes, stop_all
from tests.chaos.guard import guarded
from tests.chaos.insist import insist
from tests.chaos.orders import QUIET, RULES, SETTINGS, RunFile, Size
from tests.chaos.recorded_calls import now_ms
from tests.chaos.report import Report, read_processor_seconds, read_versions
from tests.chaos.schedule import BROKER_KINDS, DESTINATION_KINDS, FREEZING_KINDS, HELD_KINDS, Kind, make_lanes
from tests.chaos.shop import ROLLBACK
from tests.chaos.waiting import WaitingRoom, restart_settlers, slowest
from tests.support.bridge_process import Bridge, create_topics, wait_until
from tests.support.history.evidence import Rules
from tests.support.history.lines import LineWriter
from tests.support.history.report import write_report
from tests.support.history.verdict import Verdict, judge
from tests.support.kafka_cluster import KafkaCluster, running_cluster
from tests.support.memory_limit import MIB
from tests.support.postgres import PostgresServer
from tests.support.source_tree import read_commit

QUEUES = 2
_ENDPOINTS = 2
_CONSUMERS = 2
_TELL_S = 10.0
_DECIDED_S = 180.0
_CLIENTS_S = 150.0
_SHORTEST_DISK_MB, _DISK_BYTES_EACH = 512, 8_000
_READING_S = 60.0
_MOST_SHOWN = 20
_STATES = ("COMMITTED", "ROLLED_BACK", "PARKED", "PREPARED")
_TOLD = (*HELD_KINDS, *BROKER_KINDS, *DESTINATION_KINDS)
_IN_FLIGHT_MS = 5_000  # besides what a settler stands still between its last look at the journal and its call

Tell = Callable[[str], None]


class Run:
    """One run. `stopping` ends the faults and the load early; what there is by then is judged all the same."""

    def __init__(self, size: Size, seed: int, tell: Tell) -> None:
        self.size = size
        self.seed = seed
        self.tell = tell
        self._began = time.monotonic()
        self.stopping = threading.Event()
        self._broken: list[str] = []
        self._waited = 0
        self._restarted_ms: int | None = None  # both settlers, while many transactions wait
        self._decided_after_s: float | None = None

    def run(self) -> Report:
        """Everything, to the verdict."""
        disk_mb = max(_SHORTEST_DISK_MB, self.size.transactions * _DISK_BYTES_EACH // 1_000_000)
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="chaos-run-"))
            stack.enter_context(guarded(str(folder)))
            with ThreadPoolExecutor(1) as threads:
                starting = threads.submit(PostgresServer)
                cluster = stack.enter_context(running_cluster(folder, self.size.brokers, disk_mb=disk_mb))
                sql = starting.result()
            stack.callback(sql.close)
            report = self._run_on(cluster, sql, folder)
            for node in cluster.nodes if not report.is_good else ():
                shutil.copy(node.broker.output_file, folder / f"{node.folder.name}.log")  # its disk goes with it
        if report.is_good:
            shutil.rmtree(folder)
        else:
            self.tell(f"logs and history are kept in {folder}")
        return msgspec.structs.replace(report, processor_seconds=read_processor_seconds())

    def _run_on(self, cluster: KafkaCluster, sql: PostgresServer, folder: Path) -> Report:
        config = {**USUAL_CONFIG, "min.insync.replicas": str(min(2, cluster.replicas))}
        create_topics(cluster.direct, self.size.topics, config, replicas=cluster.replicas)
        bridge = Bridge.create(cluster.direct, folder, queues=QUEUES, database_url=sql.create())
        self.tell("brokers, SQL and topics are there")
        with running_fleet(bridge, cluster.proxied, QUEUES, self.size.pending) as fleet:
            run = self._write_run(cluster, fleet, folder)
            with httpx2.Client(base_url=run.urls[0], timeout=30) as http:
                put_groups(http, run)
                clients = self._start_clients(run)
                mortal = clients["producer"] + clients["endpoint"]
                destinations = Destinations(run, config, cluster.replicas, self.stopping)
                stage = Stage(cluster, fleet, mortal, sql, destinations, bridge.prefix)
                faults = Faults(stage, folder / "faults.jsonl", self.stopping, lambda: _count_prepared(run))
                with self._judged_all_the_same("faults and load"):
                    self._break_things_in_company(run, faults, fleet, bridge)
                with self._judged_all_the_same("the end of the load"):
                    self._come_to_rest(run, clients, http)
                stop_all([client for kind in clients.values() for client in kind], 0)
                self.tell("reading everything")
                report = self._judge(Parts(run, bridge), faults)
                with self._judged_all_the_same("what came after the verdict"):
                    self._broken += self.conclude(run, bridge, fleet)
                self._broken += fleet.hung + _judge_memory(fleet.peak_bytes, settler_bytes(QUEUES, self.size.pending))
                broken = report.broken + self._broken
                return msgspec.structs.replace(report, broken=broken, settler_mib=fleet.peak_bytes // MIB)

    @contextmanager
    def _judged_all_the_same(self, part: str) -> Iterator[None]:
        """An error of the run itself ends faults and load, and is a finding beside those of the verdict."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - told in the report
            traceback.print_exc()
            self._broken.append(f"{part}: {type(error).__name__}: {error}")
            self.stopping.set()

    # --- what others may do besides ---

    def accompany(self, run: RunFile, bridge: Bridge, over: threading.Event) -> None:
        """In a thread of its own during load and faults. The load goes on until it returns, soon after `over`."""

    def conclude(self, run: RunFile, bridge: Bridge, fleet: Fleet) -> list[str]:
        """After the verdict, when the clients have ended, and brokers and bridge are still there; what is broken."""
        return []

    # --- the parts of a run, in their order ---

    def _write_run(self, cluster: KafkaCluster, fleet: Fleet, folder: Path) -> RunFile:
        rate = 1.3 * self.size.transactions / (60 * self.size.minutes) / self.size.producers
        ports = {group: tuple(choose_free_port() for _ in range(_ENDPOINTS)) for group in SETTINGS}
        run = RunFile(
            place=str(folder),
            seed=self.seed,
            kafka=cluster.direct,
            urls=fleet.urls,
            topics=self.size.topics,
            endpoint_ports=ports,
            rate=rate,
            workers=self.size.workers,
            singles=self.size.singles,
            largest_batch=self.size.largest_batch,
        )
        run.write()
        return run

    def _start_clients(self, run: RunFile) -> dict[str, list[ClientProcess]]:
        numbers = {"endpoint": _ENDPOINTS, "producer": self.size.producers, "consumer": _CONSUMERS, "desk": 1}
        clients = {
            kind: [ClientProcess(f"tests.chaos.{kind}", run.path, f"{kind}-{n}", *_arguments(kind, n))
                   for n in range(count)]
            for kind, count in numbers.items()
        }  # fmt: skip
        wait_until(lambda: _count_prepared(run) > 0 or self.stopping.is_set(), 60, "a first transaction")
        self.tell("the load is running")
        return clients

    def _break_things_in_company(self, run: RunFile, faults: Faults, fleet: Fleet, bridge: Bridge) -> None:
        over = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            accompanied = threads.submit(self.accompany, run, bridge, over)
            try:
                self._break_things(run, faults, fleet)
            finally:
                over.set()
        accompanied.result()

    def _break_things(self, run: RunFile, faults: Faults, fleet: Fleet) -> None:
        """All faults, and until all transactions are there."""
        lanes = make_lanes(self.size, self.seed)
        threads = [
            threading.Thread(target=faults.run, args=(lane, self.seed + number), name=name)
            for number, (name, lane) in enumerate(lanes.items())
        ]
        for thread in threads:
            thread.start()
        told_at = time.monotonic()
        give_up_at = told_at + 60 * (5 * self.size.minutes + 5)
        while any(thread.is_alive() for thread in threads) or not self._has_enough(run):
            if time.monotonic() > give_up_at:
                self._broken.append("not all faults and transactions were reached in five times the planned time")
                self.stopping.set()
            if self.stopping.wait(0.5):
                break
            if time.monotonic() > told_at + _TELL_S:
                told_at = time.monotonic()
                self.tell(f"{_count_prepared(run):,} transactions, {len(faults.done)} faults")
        for thread in threads:
            thread.join()
        if self.stopping.is_set():
            self.tell("stopping early")
        else:
            self._read_pending_back(run, fleet)

    def _has_enough(self, run: RunFile) -> bool:
        return _count_prepared(run) >= self.size.transactions

    def _read_pending_back(self, run: RunFile, fleet: Fleet) -> None:
        """Both settlers start anew while many wait; producers go on, so that their commits show the end of it."""
        room = WaitingRoom(run, "waiting", list(QUIET), "waits")
        self._waited = room.fill(self.size.pending, self.stopping.is_set)
        self.tell(f"{self._waited:,} transactions wait while the settlers start again")
        self._restarted_ms = restart_settlers(fleet)
        room.end(ROLLBACK)  # each of these commits nothing, the producers' do
        room.close()

    def _come_to_rest(self, run: RunFile, clients: dict[str, list[ClientProcess]], http: httpx2.Client) -> None:
        """Producers finish, back-checks decide what they left."""
        stop_all(clients["producer"], _CLIENTS_S)
        ended_ms = now_ms()
        decided = self._wait_decided(http)
        stop_all(clients["desk"], _CLIENTS_S)
        decided = decided and self._wait_decided(http)  # the desk may have resumed one meanwhile
        self._decided_after_s = (now_ms() - ended_ms) / 1_000 if decided else None
        stop_all(clients["consumer"], _CLIENTS_S)
        counts = LineWriter(run.folder / "last.counts.jsonl")
        for row in counts_of(get(http, "/v1/stats"), is_last=True):
            counts.write(row)

    def _wait_decided(self, http: httpx2.Client) -> bool:
        """Whether all that is due was decided in time (T)."""
        unrest = read_unrest(http, _DECIDED_S)
        if unrest:
            shown = get(http, "/v1/transactions?state=PREPARED&limit=20")["transactions"]
            self._broken.append(f"T: {unrest} at the end: {[each['transaction_id'] for each in shown]}")
        return not unrest

    def _judge(self, parts: Parts, faults: Faults) -> Report:
        troubles = find_troubles(faults.done)
        frozen_s = max((done.seconds for done in faults.done if done.kind in FREEZING_KINDS), default=0.0)
        in_flight_ms = _IN_FLIGHT_MS + int(frozen_s * 1_000)
        rules = Rules(may_pend=True, in_flight_ms=in_flight_ms, clock_slack_ms=100, groups=RULES, troubles=troubles)
        verdict, told = Verdict([], {}), "nothing was judged"
        with self._judged_all_the_same("the verdict"):
            verdict = insist(lambda: judge(parts.events(), parts.evidence(), rules), _READING_S)
            told = write_report(verdict, parts.events(), parts.evidence())
        reached = self._reached(faults, verdict.counts)
        broken = [
            *faults.errors,
            *[f"surprise: {line}" for line in parts.surprises()[:_MOST_SHOWN]],
            *[f"log of {line}" for line in parts.bugs()[:_MOST_SHOWN]],
            *[str(violation) for violation in verdict.violations[:_MOST_SHOWN]],
            *[f"{name}: {got} of {wanted}" for name, (wanted, got) in reached.items() if got < wanted],
        ]
        commits = figures.read_commits(parts.events())
        recoveries = figures.find_recoveries(commits, faults.done) + self._find_read_back(commits)
        return Report(
            size=self.size,
            seed=self.seed,
            commit=read_commit(),
            versions=read_versions("4.3.1"),
            seconds=round(time.monotonic() - self._began, 1),
            processor_seconds=0.0,
            reached=reached,
            done=dict(Counter(done.kind for done in faults.done)),
            notes=dict(
                Counter(f"{done.kind}: {done.note}" for done in faults.done if done.kind in _TOLD and done.note)
            ),
            verdict=told,
            looked_at=verdict.counts,
            broken=broken,
            decided_after_s=self._decided_after_s,
            figures=figures.distributions(recoveries),
        )

    def _find_read_back(self, commits: Sequence[figures.Commit]) -> list[figures.Recovery]:
        """Until the last queue commits again."""
        if self._restarted_ms is None:
            return []
        last = slowest(figures.first_commit_after(commits, self._restarted_ms, queue) for queue in range(QUEUES))
        return [] if last is None else [figures.Recovery(figures.READ_BACK, self._restarted_ms, last, is_alone=True)]

    def _reached(self, faults: Faults, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        transactions = sum(counts.get(state, 0) for state in _STATES) - self._waited
        return {
            "transactions": (self.size.transactions, transactions),
            "kills of bridge processes": (self.size.kills, faults.count(Kind.KILL)),
            "broker faults": (self.size.broker_faults, faults.count(*BROKER_KINDS)),
            "held EndTxn": (self.size.held_ends, faults.count_held()),
            "faults of destinations": (self.size.destination_faults, faults.count(*DESTINATION_KINDS)),
            "abandoned commits": (faults.count(Kind.SHRINK), counts.get("abandoned", 0)),
        }


def _judge_memory(peak_bytes: int, most_bytes: int) -> list[str]:
    if peak_bytes < most_bytes:
        return []
    return [f"a settler had {peak_bytes // MIB} MiB, {most_bytes // MIB} are the limit"]


def _arguments(kind: str, number: int) -> tuple[str, ...]:
    return (str(number),) if kind == "endpoint" else ()


def put_groups(http: httpx2.Client, run: RunFile) -> None:
    """All groups, with the endpoints they will have."""
    for group, settings in SETTINGS.items():
        urls = [{"url": f"http://127.0.0.1:{port}/check"} for port in run.endpoint_ports[group]]
        answer = http.put(f"/v1/producer-groups/{group}", json={"endpoints": urls, "check": settings})
        assert answer.status_code == 201, answer.text


def _count_prepared(run: RunFile) -> int:
    """What the producers say."""
    return sum(int(path.read_text() or 0) for path in run.folder.glob("*.count"))
