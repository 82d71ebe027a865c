"""A run from its first broker to its verdict."""

import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import msgspec
import sqlalchemy as sa

from bridge.broker.jars import KAFKA_VERSION
from bridge.broker.ports import choose_free_port
from tests.chaos.collect import read_bugs, read_unrest
from tests.chaos.dump import read_topic
from tests.chaos.fleet import ClientProcess, Fleet, running_fleet, stop_all
from tests.chaos.guard import guarded
from tests.chaos.report import read_versions
from tests.kills.checks import PATH
from tests.kills.judge import Announced, Kind, Order, Way, judge
from tests.kills.report import Report
from tests.kills.run_file import GROUP, LEASES, METADATA, ORDERS, OUTBOX, PUBLISHED, TOPICS, Outcome, RunFile
from tests.kills.schedule import COPIES, Act, Target, make_acts
from tests.support.bridge_process import Bridge, create_topics, wait_until
from tests.support.broker import running_broker
from tests.support.history.lines import LineReader
from tests.support.postgres import PostgresServer
from tests.support.source_tree import read_commit

_QUEUES = 2
_CHECKS = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "call_timeout_seconds": 2}
_CLIENTS = ("checks", "relay", "producer")
_ORDERS_EACH = 10  # at least so many for each kill
_TELL_S = 10.0
_CLIENTS_S = 60.0
_REST_S = 120.0
_LOOK_S = 0.1
_PROGRESS, _PATIENCE_S = 15, 5.0
_MOST_SHOWN = 20
_FORTH, _BACK, _FORTH_AGAIN = 1 / 3, 2 / 3, 5 / 6  # of the kills

Tell = Callable[[str], None]


class Size(msgspec.Struct, frozen=True):
    """`minutes`: over which the kills are spread."""

    kills: int
    minutes: float


class Stage(NamedTuple):
    """All that can be killed, and the shop's database."""

    fleet: Fleet
    clients: dict[Target, ClientProcess]
    shop: sa.Engine
    bridge: Bridge

    def carry_out(self, act: Act) -> None:
        """SIGKILL, or the start after it."""
        target = act.target
        if target in self.clients:
            client = self.clients[target]
            (client.kill if act.is_kill else client.start)()
            return
        slot = [slot for slot in self.fleet.slots if slot.role == target.role][target.number]
        (self.fleet.kill if act.is_kill else self.fleet.start)(slot)


class Run:
    """One run. `stopping` ends the kills and the load early; what there is by then is judged all the same."""

    def __init__(self, size: Size, seed: int, planted: str, tell: Tell, python: str = sys.executable) -> None:
        """`python`: has the release installed that the run begins with."""
        self.stopping = threading.Event()
        self._size = size
        self._seed = seed
        self._planted = planted
        self._tell = tell
        self._python = python
        self._began = time.monotonic()
        self._killed: Counter[str] = Counter()
        self._killed_at, self._orders = 0.0, 0  # the last kill, and how many orders there were
        self._claimed = 0  # rows, when relays were killed
        self._replaced = 0  # processes of the release before, that no kill has met
        self._exits = 0  # of the bridge's processes, by themselves
        self._broken: list[str] = []
        self._is_bad = False

    def run(self) -> Report:
        """Everything, to the verdict."""
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="kills-run-"))
            stack.callback(self._remove_unused, folder)
            stack.enter_context(guarded(str(folder)))
            kafka = stack.enter_context(running_broker(is_long_lived=True)).bootstrap
            sql = PostgresServer()
            stack.callback(sql.close)
            report = self._run_on(kafka, sql, folder)
            self._is_bad = not report.is_good
        if not report.is_good:
            self._tell(f"logs and outcomes are kept in {folder}")
        return report

    def _remove_unused(self, folder: Path) -> None:
        """What shows why a run was bad stays."""
        if not self._is_bad:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_on(self, kafka: str, sql: PostgresServer, folder: Path) -> Report:
        create_topics(kafka, TOPICS)
        bridge = Bridge.create(kafka, folder, queues=_QUEUES, database_url=sql.create(), python=self._python)
        shop = sa.create_engine(sql.create(), poolclass=sa.NullPool)
        METADATA.create_all(shop)
        self._tell("Kafka, PostgreSQL, topics and tables are there")
        self._end_if_stopped()
        with running_fleet(bridge, kafka, _QUEUES) as fleet, httpx2.Client(base_url=fleet.urls[0], timeout=30) as http:
            self._end_if_stopped()
            ports = [choose_free_port() for _ in range(COPIES)]
            run = self._write_run(fleet.urls, _put_group(http, ports), shop, folder)
            stage = Stage(fleet, _start_clients(run, ports), shop, bridge)
            try:
                wait_until(lambda: _count(shop, ORDERS) > 0 or self.stopping.is_set(), 60, "a first order")
                self._tell("the load is running")
                self._kill_things(stage)
                self._replace_the_rest(stage)
                at_rest_after_s = self._come_to_rest(stage, http)
                self._exits = fleet.exits
                self._broken += fleet.hung
            finally:
                stop_all(list(stage.clients.values()), 5)
            self._tell("reading everything")
            return self._judge(run, kafka, shop, bridge.database_url, at_rest_after_s)

    # --- the parts of a run, in their order ---

    def _end_if_stopped(self) -> None:
        """Before the load is running there is nothing to judge. Raises KeyboardInterrupt."""
        if self.stopping.is_set():
            raise KeyboardInterrupt

    def _write_run(self, urls: tuple[str, ...], secret: str, shop: sa.Engine, folder: Path) -> RunFile:
        run = RunFile(
            place=str(folder),
            seed=self._seed,
            urls=urls,
            database_url=shop.url.render_as_string(hide_password=False),
            secret=secret,
            planted=self._planted,
        )
        run.write()
        return run

    def _kill_things(self, stage: Stage) -> None:
        """All acts at their times; at an early end what is down is started before it returns."""
        began = told_at = time.monotonic()
        down: set[Target] = set()
        for act in make_acts(self._size.kills, 60 * self._size.minutes, self._seed):
            while self._is_too_early(act, began, stage) and not self.stopping.wait(_LOOK_S):
                if time.monotonic() > told_at + _TELL_S:
                    told_at = time.monotonic()
                    self._tell(f"{self._killed.total()} kills, {_count(stage.shop, ORDERS):,} orders")
            if self.stopping.is_set() and act.target not in down:
                continue
            if act.is_kill:
                self._note_kill(act.target, stage)
            self._choose_release(stage)
            stage.carry_out(act)
            (down.add if act.is_kill else down.discard)(act.target)

    def _choose_release(self, stage: Stage) -> None:
        """What starts from now on is of this release after a third of the kills, again of the one before after another,
        and of this one towards the end. Tables are made under the load, and stay."""
        share = self._killed.total() / self._size.kills
        self._go_over(stage, sys.executable if _FORTH <= share < _BACK or share >= _FORTH_AGAIN else self._python)

    def _go_over(self, stage: Stage, python: str) -> None:
        if stage.bridge.python != python:
            stage.bridge.python = python
            stage.bridge.run("migrate")
            word = "upgrade" if python == sys.executable else "roll-back"
            self._tell(f"{self._killed.total()} kills, and the {word} begins")

    def _replace_the_rest(self, stage: Stage) -> None:
        """What no kill has replaced ends in peace, one after the other."""
        self._go_over(stage, sys.executable)
        for slot in stage.fleet.slots:
            if slot.process.popen.args[0] != sys.executable:
                stage.fleet.replace(slot)
                self._replaced += 1

    def _is_too_early(self, act: Act, began: float, stage: Stage) -> bool:
        """A kill waits for some orders after the one before: where a machine is slow, all would be down for ever."""
        if time.monotonic() < began + act.at_s:
            return True
        is_patient = act.is_kill and time.monotonic() < self._killed_at + _PATIENCE_S
        return is_patient and _count(stage.shop, ORDERS) < self._orders + _PROGRESS

    def _note_kill(self, target: Target, stage: Stage) -> None:
        self._killed_at, self._orders = time.monotonic(), _count(stage.shop, ORDERS)
        self._killed[target.role] += 1
        if target.role == "relay":
            self._claimed += _count(stage.shop, LEASES, LEASES.c.token.is_not(None))
        if target in stage.clients:
            self._note_ended(target, stage.clients[target])

    def _note_ended(self, target: Target, client: ClientProcess) -> None:
        if not client.lives:
            self._broken.append(f"{target} had ended by itself")

    def _come_to_rest(self, stage: Stage, http: httpx2.Client) -> float:
        """Producers end, relays hand over what is left, back-checks decide what is open; seconds that it took."""
        for target, client in stage.clients.items():
            self._note_ended(target, client)
        stop_all([client for target, client in stage.clients.items() if target.role == "producer"], _CLIENTS_S)
        for slot in stage.fleet.slots:
            slot.process.wait_ready(_REST_S)
        self._tell("no more orders; waiting for rest")
        began = time.monotonic()
        while left := {table.name: count for table in (OUTBOX, LEASES) if (count := _count(stage.shop, table))}:
            if time.monotonic() > began + _REST_S:
                self._broken.append(f"still there after {_REST_S:.0f} s: {left}")
                break
            time.sleep(_LOOK_S)
        unrest = read_unrest(http, _REST_S)
        if unrest:
            self._broken.append(f"not at rest after {_REST_S:.0f} s: {unrest}")
        return time.monotonic() - began

    def _judge(self, run: RunFile, kafka: str, shop: sa.Engine, bridge_url: str, at_rest_after_s: float) -> Report:
        orders = _read_orders(shop)
        outcomes = list(LineReader[Outcome](Outcome, *sorted(run.folder.glob("*.outcomes.jsonl"))))
        announced = list(_read_announced(kafka))
        violations = judge(orders, announced, {each.order_id for each in outcomes if each.word == PUBLISHED})
        ended = _read_ended(bridge_url)
        reached = {
            "kills": (self._size.kills, self._killed.total()),
            "orders in the database": (_ORDERS_EACH * self._size.kills, len(orders)),
            "of these by transaction": (1, sum(order.way is Way.TRANSACTION for order in orders)),
            "of these by outbox": (1, sum(order.way is Way.OUTBOX for order in orders)),
            "messages in Kafka": (len(orders), len(announced)),
            "rows claimed when relays were killed": (self._size.kills // 50, self._claimed),
            "commits decided by a check": (1, ended["COMMITTED by check"]),
            "rollbacks decided by a check": (1, ended["ROLLED_BACK by check"]),
        }
        counts = Counter(violation.kind for violation in violations)
        return Report(
            seed=self._seed,
            planted=self._planted,
            commit=read_commit(),
            versions=read_versions(KAFKA_VERSION),
            seconds=round(time.monotonic() - self._began, 1),
            at_rest_after_s=round(at_rest_after_s, 1),
            reached=reached,
            killed={
                **dict(sorted(self._killed.items())),
                "bridge, which ended by itself": self._exits,
                "bridge, replaced by this release in peace": self._replaced,
            },
            outcomes=dict(Counter(each.word for each in outcomes).most_common()),
            ended=dict(sorted(ended.items())),
            violations={kind.value: counts[kind] for kind in Kind},
            broken=[
                *self._broken,
                *[f"log of {line}" for line in read_bugs(run.folder)[:_MOST_SHOWN]],
                *map(str, violations[:_MOST_SHOWN]),
                *[f"{name}: {got} of {wanted}" for name, (wanted, got) in reached.items() if got < wanted],
            ],
        )


def _put_group(http: httpx2.Client, ports: list[int]) -> str:
    """The secret that signs its checks."""
    urls = [{"url": f"http://127.0.0.1:{port}{PATH}"} for port in ports]
    answer = http.put(f"/v1/producer-groups/{GROUP}", json={"endpoints": urls, "check": _CHECKS})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


def _start_clients(run: RunFile, ports: list[int]) -> dict[Target, ClientProcess]:
    clients = {}
    for role in _CLIENTS:
        for number in range(COPIES):
            target = Target(role, number)
            argument = ports[number] if role == "checks" else number
            clients[target] = ClientProcess(f"tests.kills.{role}", run.path, str(target), str(argument))
    return clients


def _count(shop: sa.Engine, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    with shop.connect() as conn:
        return conn.scalar(sa.select(sa.func.count()).select_from(table).where(*conditions)) or 0


def _read_orders(shop: sa.Engine) -> list[Order]:
    with shop.connect() as conn:
        rows = conn.execute(sa.select(ORDERS.c.order_id, ORDERS.c.customer, ORDERS.c.number, ORDERS.c.way)).tuples()
        return [Order(order_id, customer, number, Way(way)) for order_id, customer, number, way in rows]


def _read_announced(kafka: str) -> Iterator[Announced]:
    for topic in TOPICS:
        for partition, message in read_topic(kafka, topic):
            body = json.loads(message.value or b"{}")
            customer = (message.key or b"").decode()
            yield Announced(body["order_id"], customer, body["number"], topic, partition, message.queue_offset)


def _read_ended(bridge_url: str) -> Counter[str]:
    """The bridge's transactions, read past its code."""
    query = sa.text("SELECT state, resolved_by, count(*) FROM transactions GROUP BY state, resolved_by")
    with sa.create_engine(bridge_url, poolclass=sa.NullPool).connect() as conn:
        return Counter({f"{state} by {by}": count for state, by, count in conn.execute(query)})
