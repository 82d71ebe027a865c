"""Relays beside each other: a backlog is committed at once, and the clock stops when a consumer has all of it.

All are counted alike, at a `read_committed` consumer. Each is a process that has published some rows before; the bridge
that ours needs runs beside all of them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import psutil
import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.consumer import await_visible
from benchmarks.outcome import tell
from benchmarks.producers.shop import GROUP, OUTBOX, PLAIN_OUTBOX, Order, Shop, make_orders
from benchmarks.rounds import Note
from benchmarks.stage import QUEUES_OF_A_TOPIC, Stage
from outbox.client.message import Message
from outbox.enqueue import enqueue
from tests.support.bridge_process import create_topics
from tests.support.source_tree import ROOT

_WARM_ROWS = 600
_CHUNK = 1_000
_STOP_S = 30


class Way(NamedTuple):
    """A way from the database to Kafka. `commit`: of a backlog for a topic; gives the moment. `command`: of a topic."""

    name: str
    commit: Callable[[Sequence[Order], str], float]
    command: Callable[[str], Sequence[str]]
    processes: int = 1


class Race:
    """The relay, the loop that many services write themselves, and faststream-outbox if it is installed."""

    def __init__(self, stage: Stage, shop: Shop, rows: int) -> None:
        self._stage = stage
        self._shop = shop
        self._rows = rows
        self._ways = [
            Way("relay", self._commit_outbox, self._relay_command),
            Way("plain", self._commit_plain, self._plain_command),
        ]
        if find_spec("faststream_outbox") is None:
            tell("without faststream-outbox: it is not installed")
        else:
            self._ways += _make_faststream_ways(stage, shop)

    @staticmethod
    def topics(rounds: int) -> Sequence[str]:
        """Of the relay: in each of them every row must be visible once."""
        return [_topic_of("relay", number) for number in range(rounds)]

    def measure_round(self, number: int, note: Note) -> None:
        """Each way once, in another order each time."""
        turn = number % len(self._ways)
        for way in self._ways[turn:] + self._ways[:turn]:
            topic = _topic_of(way.name, number)
            if way.name != "relay":
                create_topics(self._stage.kafka, {topic: QUEUES_OF_A_TOPIC})
            self._shop.vacuum()
            rate, cpu_us = self._measure(way, topic)
            tell(f"{way.name} {rate:,.0f}/s")
            note(f"{way.name}_tps", rate)
            note(f"{way.name}_us", cpu_us)
        self._stage.settled += _WARM_ROWS + self._rows
        self._stage.await_projection()

    def _measure(self, way: Way, topic: str) -> tuple[float, float]:
        """Rows a second, and microseconds of its own processes for each."""
        orders = make_orders(0, _WARM_ROWS + self._rows)
        with _running(way, topic) as processes:
            way.commit(orders[:_WARM_ROWS], topic)
            await_visible(self._stage.kafka, topic, _WARM_ROWS)
            before = _cpu_seconds(processes)
            committed_at = way.commit(orders[_WARM_ROWS:], topic)
            seconds = await_visible(self._stage.kafka, topic, len(orders)) - committed_at
            used = _cpu_seconds(processes) - before
        return self._rows / seconds, used / self._rows * 1e6

    def _commit_outbox(self, orders: Sequence[Order], topic: str) -> float:
        return _commit_rows(self._shop.engine, OUTBOX, orders, topic)

    def _commit_plain(self, orders: Sequence[Order], topic: str) -> float:
        return _commit_rows(self._shop.engine, PLAIN_OUTBOX, orders, topic)

    def _relay_command(self, _: str) -> Sequence[str]:
        bridge = f"http://127.0.0.1:{self._stage.ports[0]}"
        return ["api", "relay", "--database-url", self._shop.url, "--bridge", bridge, "--producer-group", GROUP]

    def _plain_command(self, topic: str) -> Sequence[str]:
        database = self._shop.url.replace("+psycopg", "")
        return ["benchmarks.peers.plain_relay", database, self._stage.kafka, topic]


def _make_faststream_ways(stage: Stage, shop: Shop) -> Sequence[Way]:
    """The fastest that is known of it, with one process and with one for each processor; in order; as it comes."""
    from benchmarks.peers import faststream_relay  # noqa: PLC0415 - only where it is installed

    faststream_relay.create_tables(shop.engine)
    database = shop.url.replace("+psycopg", "+asyncpg")

    def commit(orders: Sequence[Order], _: str) -> float:
        return faststream_relay.publish_all(database, [order.value for order in orders])

    def command(tuning: str, topic: str) -> Sequence[str]:
        return ["benchmarks.peers.faststream_relay", database, stage.kafka, topic, tuning]

    fastest = partial(command, faststream_relay.FASTEST)
    return [
        Way("faststream", commit, fastest),
        Way("faststreams", commit, fastest, os.cpu_count() or 1),
        Way("faststream_ordered", commit, partial(command, faststream_relay.IN_ORDER)),
        Way("faststream_defaults", commit, partial(command, faststream_relay.AS_IT_COMES)),
    ]


def _commit_rows(engine: sa.Engine, table: sa.Table, orders: Sequence[Order], topic: str) -> float:
    with Session(engine) as session:
        for first in range(0, len(orders), _CHUNK):
            chunk = orders[first : first + _CHUNK]
            enqueue(session, *[Message(topic, key=order.key, value=order.value) for order in chunk], table=table)
        session.commit()
    return time.time()


def _topic_of(name: str, number: int) -> str:
    return f"bench.{name}.{number}"


@contextmanager
def _running(way: Way, topic: str) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Told to stop at the end, as an operator would."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", *way.command(topic)]
    with ExitStack() as stack:
        processes = []
        for _ in range(way.processes):
            process = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(_stop, process)
            processes.append(process)
        yield processes


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)


def _cpu_seconds(processes: Sequence["subprocess.Popen[bytes]"]) -> float:
    return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)
