"""`demo`: a shop that is killed, and the bridge that rescues its message; its script and its verdict."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import httpx2
import typer
from rich.text import Text

from api.cli.connect import call, client_for, find_all, sigterm_as_ctrl_c, with_kafka
from api.cli.demo_environment import DemoEnvironment, DemoProcess, Steps, find_shop
from api.cli.output import CommandFailed, Exit, result_console, say
from bridge.broker.jars import fetch_jars
from bridge.broker.ports import choose_free_port, find_java
from bridge.core.errors import StoreError

if TYPE_CHECKING:
    from api.settings import Settings
    from api.wiring import KafkaParts


class VerdictLine(NamedTuple):
    """An order, as somebody holds it."""

    order_id: str
    cents: int


class DemoVerdict(NamedTuple):
    """Orders by what is wrong with them. `altered`: the consumer's content is not the producer's."""

    lost: Collection[str]
    invented: Collection[str]
    twice: Collection[str]
    altered: Collection[str]

    @property
    def is_clean(self) -> bool:
        """Whether each order was read exactly once, as it is, and nothing else was."""
        return not any(self)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        text = f"{len(self.lost)} lost, {len(self.invented)} invented, {len(self.twice)} twice"
        return text + (f", {len(self.altered)} altered" if self.altered else "")


def judge(orders: Mapping[str, int], *holdings: Sequence[VerdictLine]) -> DemoVerdict:
    """`orders`: cents by id, as the producer's database holds them; `holdings`: what was read, what came of it."""
    each = [_judge_one(orders, facts) for facts in holdings]
    return DemoVerdict(*(sorted(set().union(*column)) for column in zip(*each, strict=True)))


def _judge_one(orders: Mapping[str, int], facts: Sequence[VerdictLine]) -> DemoVerdict:
    times = Counter(fact.order_id for fact in facts)
    return DemoVerdict(
        lost=orders.keys() - times.keys(),
        invented=times.keys() - orders.keys(),
        twice={order_id for order_id, count in times.items() if count > 1},
        altered={fact.order_id for fact in facts if orders.get(fact.order_id, fact.cents) != fact.cents},
    )


GROUP = "shop"
TOPIC = "orders.created"
DOOR_TOPIC = "orders-paid"  # RocketMQ knows no dots
_DOOR_PORT = 9876
_BRIDGE_TIMEOUT_S = 120.0
_TIMEOUT_S = 30.0
_PORT_TRIES = 5
_CHECK = {"transaction_timeout_seconds": 1, "interval_seconds": 1, "call_timeout_seconds": 2}
_DIED = -signal.SIGKILL


class DemoScript:
    """Plays on a stage and comments. `is_broken`: the consumer overlooks the rescued order.

    `kafka`: a cluster that is there already, where all topics get `prefix`; None: the demo starts one. `door`: the
    port for RocketMQ's clients, if there is one.
    """

    def __init__(
        self,
        stage: DemoEnvironment,
        *,
        is_broken: bool,
        kafka: str | None = None,
        prefix: str = "",
        door: int | None = None,
    ) -> None:
        self._stage = stage
        self._door = door
        self._is_broken = is_broken
        self._kafka = kafka
        self._prefix = prefix
        self._topic = f"{prefix}{TOPIC}"
        self._console = result_console()
        self._start = time.time()
        self._database = stage.folder / "shop.db"
        self._journal = stage.folder / "reads.jsonl"
        self._secret = stage.folder / "secret"
        self._wrong: list[str] = []

    def tell(self) -> bool:
        """Whether everything is as promised."""
        self._console.print(Text("\noutbox-bridge demo: a real Kafka, a real shop, a real SIGKILL\n", style="bold"))
        self._open()
        self._tell_committed()
        self._tell_rolled_back()
        self._tell_rescued()
        return self._close()

    def _open(self) -> None:
        self._say("demo", f"starts {'' if self._kafka else 'Kafka, '}the bridge, a shop and a consumer")
        kafka = self._open_doors()
        self._say("bridge", f"is ready: {self._url}/docs, Kafka at {kafka}")
        group = {"endpoints": [{"url": f"{self._shop_url}/check"}], "check": _CHECK}
        self._secret.write_text(call(self._url, "PUT", f"/v1/producer-groups/{GROUP}", body=group).members["secret"])
        places = ["--kafka", kafka, "--topic", self._topic]
        files = ["--database", str(self._database), "--journal", str(self._journal)]
        hide = ["--hide", "A-3"] if self._is_broken else []
        self._consumer = self._stage.start("consumer", [str(find_shop() / "consumer.py"), *places, *files, *hide])
        self._consumer.until(lambda: self._has_read_to(0), _TIMEOUT_S, "the consumer's first look")
        self._say("demo", f"shop and consumer are ready: {self._shop_url}/docs")

    def _open_doors(self, tries: int = _PORT_TRIES) -> str:
        """Bridge and shop, anew on other ports if somebody took one that was chosen; where Kafka is."""
        self._url, self._shop_url = (f"http://127.0.0.1:{choose_free_port()}" for _ in range(2))
        bridge, self._shop = self._start_bridge(), self._start_shop()
        try:
            ready = bridge.until(bridge.first_line, _BRIDGE_TIMEOUT_S, "starting the bridge")
            self._await_shop()
        except CommandFailed:
            if tries == 1 or not (bridge.found_port_taken or self._shop.found_port_taken):
                raise
            self._stage.stop(bridge, self._shop)
            return self._open_doors(tries - 1)
        return str(ready["kafka"])

    def _start_bridge(self) -> DemoProcess:
        kafka = ["--kafka", self._kafka] if self._kafka else ["--kafka-port", "0"]
        places = ["--port", self._url.rpartition(":")[2], *kafka, "--topic", self._topic]
        if self._door is not None:
            places += ["--rocketmq-port", str(self._door), "--topic", DOOR_TOPIC]
        own = {"OUTBOX_BRIDGE_TOPICS__PREFIX": self._prefix}
        return self._stage.start("bridge", ["-m", "api", "dev", "--ephemeral", *places, "-o", "json"], own)

    def _start_shop(self) -> DemoProcess:
        settings = {
            "SHOP_DATABASE": str(self._database),
            "SHOP_BRIDGE": self._url,
            "SHOP_TOPIC": self._topic,
            "SHOP_SECRET_FILE": str(self._secret),
        }
        port = self._shop_url.rpartition(":")[2]
        command = ["-m", "uvicorn", "shop:app", "--app-dir", str(find_shop()), "--port", port, "--log-level", "warning"]
        return self._stage.start("shop", command, settings)

    def _await_shop(self) -> None:
        self._shop.until(lambda: self._shop.answers(f"{self._shop_url}/health"), _TIMEOUT_S, "starting the shop")

    def _tell_committed(self) -> None:
        self._title(1, "An order goes through")
        answer = self._place("A-1", {"cents": 1990})
        self._expect(answer is not None and answer.status_code == 201, "the shop took order A-1")
        transaction = self._follow("A-1")
        self._expect(transaction["state"] == "COMMITTED", "A-1 is COMMITTED")
        self._await_reader(transaction, "A-1")
        again = call(self._url, "POST", f"/v1/transactions/{transaction['transaction_id']}/commit").members
        self._expect(again["receipts"] == transaction["receipts"], "a repeated commit of A-1 changes nothing")
        self._say("shop", "repeats its commit, as after a lost answer: no effect")
        self._link(transaction)

    def _tell_rolled_back(self) -> None:
        self._title(2, "A card is declined")
        answer = self._place("A-2", {"cents": 4900, "card": "declined"})
        self._expect(answer is not None and answer.status_code == 402, "the shop refused order A-2")
        transaction = self._follow("A-2")
        self._expect(transaction["state"] == "ROLLED_BACK", "A-2 is ROLLED_BACK")
        self._say("consumer", "will never see it")
        self._link(transaction)

    def _tell_rescued(self) -> None:
        self._title(3, "The shop is killed after its local commit")
        answer = self._place("A-3", {"cents": 2500, "die": "after-local-commit"})
        self._expect(answer is None and self._shop.process.wait(_TIMEOUT_S) == _DIED, "the shop died of SIGKILL")
        died_at, seen = time.time(), set[str]()
        self._wait_for("A-3", seen, lambda _: "prepared" in seen, _TIMEOUT_S)
        self._say("shop", "is dead (SIGKILL): the order is in its database alone", "red", at=died_at)
        self._wait_for("A-3", seen, lambda t: "check_unanswered" in seen or _is_ended(t), _TIMEOUT_S)
        self._expect("check_unanswered" in seen, "the bridge asked the dead shop in vain")
        self._say("shop", "starts again")
        self._shop = self._start_shop()
        self._await_shop()
        transaction = self._follow("A-3", seen)
        self._expect(transaction["state"] == "COMMITTED", "A-3 is COMMITTED")
        self._expect(transaction["resolved_by"] == "check", "A-3 was committed by a back-check")
        self._await_reader(transaction, "A-3")
        self._link(transaction)

    def _close(self) -> bool:
        """Lets the consumer read to the end, then compares what it read with the shop's database."""
        self._consumer.process.terminate()
        self._expect(self._consumer.process.wait(_TIMEOUT_S) == 0, "the consumer read to the end of the topic")
        orders, credits_ = self._read_database()
        reads = [VerdictLine(line["order_id"], line["cents"]) for line in self._read_journal() if "order_id" in line]
        verdict = judge(orders, reads, credits_)
        self._console.print(Text("\nVerdict", style="bold"))
        self._console.print(f"  orders in the shop's database   {len(orders)}   {', '.join(sorted(orders))}")
        self._console.print(f"  messages the consumer read      {len(reads)}   {', '.join(f.order_id for f in reads)}")
        self._console.print(f"  credits handed out              {len(credits_)}")
        is_so = verdict.is_clean and not self._wrong
        self._console.print(Text(f"\n  {verdict.summary}", style="bold green" if is_so else "bold red"))
        for text in [*_name_orders(verdict), *(f"not so: {text}" for text in self._wrong)]:
            self._console.print(Text(f"  {text}", style="red"))
        self._console.print()
        return is_so

    def _place(self, order_id: str, order: Mapping[str, object]) -> httpx2.Response | None:
        """The shop's answer; None if it died."""
        self._say("shop", f"takes order {order_id}")
        try:
            body = {"order_id": order_id, **order}
            return client_for(self._shop_url).post(f"{self._shop_url}/orders", json=body, timeout=_TIMEOUT_S)
        except httpx2.TransportError:
            return None

    def _follow(self, order_id: str, seen: set[str] | None = None) -> dict[str, Any]:
        """Tells the timeline of the order's transaction until it has ended."""
        transaction = self._wait_for(order_id, set() if seen is None else seen, _is_ended, _TIMEOUT_S)
        self._expect(_is_ended(transaction), f"{order_id} ended")
        return transaction

    def _wait_for(
        self, order_id: str, seen: set[str], is_enough: Callable[[dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            found, _ = find_all(
                self._url, "/v1/transactions", "transactions", {"producer_group": GROUP, "key": order_id}, 1
            )
            if found:
                transaction: dict[str, Any] = json.loads(bytes(found[0]))
                self._tell_new(transaction, seen)
                if is_enough(transaction) or time.monotonic() > deadline:
                    return transaction
            elif time.monotonic() > deadline:
                raise CommandFailed(Exit.FAILED, f"the bridge does not list the transaction of {order_id}")
            time.sleep(0.05)

    def _tell_new(self, transaction: Mapping[str, Any], seen: set[str]) -> None:
        for event in call(self._url, "GET", f"/v1/transactions/{transaction['transaction_id']}/timeline").members[
            "events"
        ]:
            text = describe(event)
            if event["type"] not in seen and text is not None:
                self._say("bridge", text, at=datetime.fromisoformat(event["at"]).timestamp())
            seen.add(event["type"])

    def _await_reader(self, transaction: Mapping[str, Any], order_id: str) -> None:
        """Until the consumer has read beyond what the receipts say."""
        offsets = [receipt["offset"] for receipt in transaction["receipts"]] or [0]
        self._consumer.until(lambda: self._has_read_to(max(offsets) + 1), _TIMEOUT_S, f"reading order {order_id}")
        line = next((line for line in self._read_journal() if line.get("order_id") == order_id), None)
        if line is None:
            self._say("consumer", f"has read to the end without seeing order {order_id}", "red")
        else:
            self._say("consumer", f"reads order {order_id} and hands out a credit", "green", at=line["at"])

    def _has_read_to(self, offset: int) -> bool | None:
        return True if any(line.get("end", -1) >= offset for line in self._read_journal()) else None

    def _read_journal(self) -> list[dict[str, Any]]:
        if not self._journal.exists():
            return []
        whole, _, _ = self._journal.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def _read_database(self) -> tuple[dict[str, int], list[VerdictLine]]:
        with closing(sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True)) as database:
            orders = dict(database.execute("SELECT order_id, cents FROM orders"))
            return orders, [VerdictLine(*row) for row in database.execute("SELECT order_id, cents FROM credits")]

    def _expect(self, is_so: bool, text: str) -> None:
        if not is_so:
            self._wrong.append(text)

    def _title(self, number: int, text: str) -> None:
        self._console.print(Text(f"\n{number}  {text}", style="bold"))

    def _say(self, who: str, text: str, style: str = "", at: float | None = None) -> None:
        seconds = max(0.0, (at or time.time()) - self._start)
        self._console.print(Text.assemble((f"  {seconds:6.2f} s  ", "dim"), (f"{who:8}  ", "cyan"), (text, style)))

    def _link(self, transaction: Mapping[str, Any]) -> None:
        link = f"{self._url}/v1/transactions/{transaction['transaction_id']}/timeline"
        self._console.print(Text(f"  {link}", style="dim"), soft_wrap=True)


_WHY_ENDED = {"producer": "as its producer asked", "check": "as the shop answered", "operator": "as an operator said"}


def describe(event: Mapping[str, Any]) -> str | None:
    """An event of a timeline in words; None for one that belongs to another."""
    if event["type"] == "check_unanswered":
        return f"asks the shop what became of it: no answer ({event['failure']})"
    if event["type"] == "check_answered":
        return f"asks the shop what became of it: {event['answer']}"
    words = {
        "prepared": "has the message stored in Kafka, where nobody sees it",
        "end": f"records {event.get('resolution')}, {_WHY_ENDED.get(str(event['by']), '')}",
        "published": "has published it: consumers can read it",
    }
    return words.get(event["type"])


def _is_ended(transaction: Mapping[str, Any]) -> bool:
    return transaction["state"] in {"COMMITTED", "ROLLED_BACK"} and not transaction["blocked"]


def _name_orders(verdict: DemoVerdict) -> list[str]:
    return [f"{name}: {', '.join(orders)}" for name, orders in verdict._asdict().items() if orders]


BreakOption = Annotated[
    bool, typer.Option("--break", help="Hide one message from the consumer, to see that the verdict notices.")
]
StayOption = Annotated[
    bool, typer.Option("--stay", help="Keep everything running at the end, until Ctrl-C: for the links it shows.")
]
KafkaOption = Annotated[
    str | None,
    typer.Option("--kafka", metavar="HOST:PORT", help="Use this cluster; what it makes there is removed at the end."),
]
DoorOption = Annotated[
    bool,
    typer.Option(
        "--rocketmq", help=f"Keep running at the end too, with a door for RocketMQ's clients at {_DOOR_PORT}."
    ),
]

_NEXT = """What next:
  {command} demo --stay    the same, and the links above can be followed
  {command} dev            a Kafka and a bridge for a service of yours; docs/start.md rescues an order of its own
"""


def _name_command() -> str:
    """As it can be typed here: an environment that is not active is on nobody's path."""
    own = Path(sys.argv[0])
    if shutil.which(own.name) or own.name != "outbox-bridge":
        return "outbox-bridge"
    return os.path.relpath(own)


def demo(
    is_broken: BreakOption = False, stay: StayOption = False, kafka: KafkaOption = None, rocketmq: DoorOption = False
) -> None:
    """A committed order, one rolled back, and one rescued after its producer was killed. On a real Kafka.

    Exit code 1 if the consumer did not get each order of the shop's database exactly once.
    """
    find_shop()
    if rocketmq and kafka is not None:
        raise CommandFailed(
            Exit.USAGE, "--rocketmq needs the demo's own Kafka: leave --kafka out, or use `dev --kafka`"
        )
    if kafka is None:
        find_java()
        with Steps() as steps:
            steps.begin("Kafka")
            fetch_jars(report=steps.report_jars)
    with sigterm_as_ctrl_c(), ExitStack() as stack:
        prefix = "" if kafka is None else f"demo-{secrets.token_hex(4)}."
        if kafka is not None:
            with_kafka(None, lambda parts, _: parts.admin.ping(), {"kafka": {"bootstrap.servers": kafka}})
            stack.callback(_remove_topics, kafka, prefix)
        stage = stack.enter_context(DemoEnvironment())
        door = _DOOR_PORT if rocketmq else None
        is_so = DemoScript(stage, is_broken=is_broken, kafka=kafka, prefix=prefix, door=door).tell()
        if stay or rocketmq:
            _stay(door)
        else:
            say(_NEXT.format(command=_name_command()))
    if not is_so:
        raise typer.Exit(Exit.FAILED)


def _remove_topics(kafka: str, prefix: str) -> None:
    """The demo's own, when nothing uses them any more."""

    async def remove(parts: "KafkaParts", _: "Settings") -> None:
        for name in await parts.admin.list_topics():
            if name.startswith(prefix):
                await parts.admin.delete_topic(name)

    try:
        with_kafka(None, remove, {"kafka": {"bootstrap.servers": kafka}})
    except StoreError as error:
        say(f"topics that begin with {prefix} may be left on {kafka}: {error}", "red")


def _stay(door: int | None) -> None:
    """Until Ctrl-C. A signal just before a wait without end would be heard with the next one only."""
    with contextlib.suppress(KeyboardInterrupt):
        if door is not None:
            say(f"RocketMQ's clients: namesrvAddr 127.0.0.1:{door}, topic {DOOR_TOPIC}, as in examples/rocketmq-java")
        say("everything keeps running; Ctrl-C ends it")
        while True:
            time.sleep(1)
