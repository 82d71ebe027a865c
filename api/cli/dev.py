"""`dev`: a real Kafka and the whole bridge on this machine, with one command in one terminal."""

import asyncio
import importlib
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.connect import (
    DEFAULT_URL,
    DEV_KAFKA,
    ConfigOption,
    call,
    load,
    quoted,
    read_seconds,
    run_loop,
    sigterm_as_ctrl_c,
)
from api.cli.demo_environment import Keeper, Steps
from api.cli.output import (
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    encode,
    print_line,
    printable,
    result_console,
    say,
)
from api.cli.transactions import has_ended
from bridge.broker.dev_broker import DevBroker
from bridge.broker.ports import FileLock, check_port
from bridge.core.check_rules import CheckMode
from bridge.core.errors import StoreTimeout, StoreUnavailable
from bridge.core.transaction import TransactionState
from checker.endpoint_guard import is_loopback

if TYPE_CHECKING:
    from api.settings import Settings


# --- what `dev` says about transactions while it runs: a line for what a newcomer would otherwise look for ---

_EVENTS_INTERVAL_S = 1.0
_NEWEST = 100  # so many are followed; in `dev` people try things one by one
_REMEDIES = {
    "no-endpoint": "nobody is asked: outbox-bridge group put {group} --endpoint URL",
    "no-secret": "it cannot be asked: outbox-bridge group rotate-secret {group}",
    "not-claimed": "nobody fetches its checks: is a pull worker running?",
    "refused": "nothing listens there: is the service running?",
    "status 401": "the signature was refused: has the endpoint the secret of group {group}?",
}


class DevEvents:
    """Looks at the newest transactions of a bridge, and tells what is new of them.

    `tell`: takes the members of an event, among them `text`, a line.
    """

    def __init__(self, url: str, tell: Callable[[Row], None]) -> None:
        self._url = url
        self._tell = tell
        self._open: dict[str, set[str]] = {}  # what was told of each
        self._seen: set[str] = set()  # ended, and told
        self._silences: set[str] = set()  # told of a group until it answers
        self._groups: set[str] = set()

    async def run_forever(self) -> None:
        """Until it is cancelled. Not a word of a bridge that does not answer: it says so itself."""
        while True:
            with suppress(CommandFailed):
                await asyncio.to_thread(self.look)
            await asyncio.sleep(_EVENTS_INTERVAL_S)

    def look(self) -> None:
        """Once. Raises CommandFailed."""
        listed = call(self._url, "GET", "/v1/transactions", query={"limit": _NEWEST}).members["transactions"]
        for row in reversed(listed):
            if row["producer_group"] not in self._groups:
                self._look_at_group(row["producer_group"])
            if row["transaction_id"] not in self._seen:
                self._look_at(row)
        newest = {row["transaction_id"] for row in listed}
        self._open = {id_: told for id_, told in self._open.items() if id_ in newest}
        self._seen &= newest

    def _look_at_group(self, name: str) -> None:
        """One that its first prepare has made is no other than one with a typing error in its name."""
        try:
            found = call(self._url, "GET", f"/v1/producer-groups/{quoted(name)}").members
        except CommandFailed as error:
            if error.code is Exit.NOT_FOUND:  # it is gone, and what it has ended is still listed
                return
            raise
        self._groups.add(name)
        if not found["endpoints"] and CheckMode(found["check"]["mode"]) is CheckMode.PUSH:
            remedy = f"is the name right? outbox-bridge group put {name} --endpoint URL"
            text = f"{name}: a group without an endpoint, so nobody can be asked about its transactions; {remedy}"
            self._tell({"event": "group", "producer_group": name, "text": text})

    def _look_at(self, row: Row) -> None:
        id_ = row["transaction_id"]
        told = self._open.setdefault(id_, set())
        if row["resolved_by"] == "producer" and not row["blocked"]:  # as it should be
            self._close(id_)
            return
        events = call(self._url, "GET", f"/v1/transactions/{quoted(id_)}/timeline").members["events"]
        for key, text in describe(row["producer_group"], events):
            if key in told:
                continue
            told.add(key)
            if key.startswith("silence"):
                if f"{row['producer_group']} {key}" in self._silences:
                    continue
                self._silences.add(f"{row['producer_group']} {key}")
            elif key.startswith("answer"):
                self._silences = {one for one in self._silences if not one.startswith(f"{row['producer_group']} ")}
            named = {"event": key.split()[0], "transaction_id": id_, "producer_group": row["producer_group"]}
            self._tell({**named, "text": f"{row['producer_group']} {id_}: {text}"})
        if has_ended(row) and row["state"] != TransactionState.PARKED:
            self._close(id_)

    def _close(self, id_: str) -> None:
        self._open.pop(id_, None)
        self._seen.add(id_)


def describe(group: str, events: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What is worth a line, in the order of the timeline: a key by which it is known again, and the line."""
    answer = ""
    for event in events:
        match event["type"]:
            case "check_unanswered":
                failure, where = str(event["failure"]), event.get("endpoint")
                asked = f"asked {where}: {failure}" if where else failure
                remedy = _REMEDIES.get(failure, "").format(group=group)
                yield f"silence {failure} {where}", f"check not answered, {asked}" + (f"; {remedy}" if remedy else "")
            case "check_answered":
                answer = str(event["answer"])
                yield f"answer {event['number']}", f"check answered {answer} by {event.get('endpoint') or 'its group'}"
            case "parked":
                yield f"parked {event['at']}", f"parked ({event['why']}): outbox-bridge parked list"
            case "blocked":
                yield f"blocked {event['at']}", f"committed, and cannot be published now: {event['why']}"
            case "published" if answer == "COMMIT":
                yield "rescued", "rescued: its producer did not end it, and its messages are published"


# --- `dev` ---

LOOPBACK = ("127.0.0.0/8", "::1/128")
_CHATTY = {"bridge.store.kafka.options"}  # Kafka's clients log each retry; the file has them
_LOG_BYTES = 10_000_000
_LOOK_INTERVAL_S = 0.5
_BEGIN_TRIES = 40

PortOption = Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="Of the API; 0: any free one.")]
KafkaPortOption = Annotated[int, typer.Option("--kafka-port", min=0, max=65_535, help="Of Kafka; 0: any free one.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="Folder for all data. [default: .outbox-bridge]")]
EphemeralOption = Annotated[bool, typer.Option("--ephemeral", help="Empty data, removed at the end.")]
KafkaOption = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Use this cluster instead of starting a broker.")
]

TopicOption = Annotated[
    list[str], typer.Option("--topic", metavar="NAME", help="Create this topic if it is not there.")
]
RocketMqPortOption = Annotated[
    int | None,
    typer.Option("--rocketmq-port", min=0, max=65_535, help="Open the door for clients of RocketMQ here, as on 9876."),
]


CheckAfterOption = Annotated[
    float | None,
    typer.Option("--check-after", metavar="TIME", parser=read_seconds, help="Ask so soon, like 1s, not after 6 s."),
]


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What was asked for on the command line."""

    port: int | None
    kafka_port: int
    kafka: str | None
    topics: Sequence[str]
    config: Path | None
    output: Output
    rocketmq_port: int | None = None
    check_after_s: float | None = None
    has_usual_data: bool = True  # commands look for the Kafka of a `dev` there

    @property
    def roles(self) -> str:
        """What the process does."""
        return "api,settler,projector" + ("" if self.rocketmq_port is None else ",remoting")


def dev(  # noqa: PLR0913, PLR0917 - a wish is an option
    port: PortOption = None,
    kafka_port: KafkaPortOption = 9092,
    data: DataOption = None,
    ephemeral: EphemeralOption = False,
    kafka: KafkaOption = None,
    topic: TopicOption = [],  # noqa: B006 - typer reads the default
    rocketmq_port: RocketMqPortOption = None,
    check_after: CheckAfterOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a real Kafka and the whole bridge on this machine; Ctrl-C stops both.

    Data stay in .outbox-bridge. The first start downloads Kafka (45 MB).
    """
    is_usual = data is None and not ephemeral and config is None
    wishes = DevOptions(port, kafka_port, kafka, topic, config, output, rocketmq_port, check_after, is_usual)
    with sigterm_as_ctrl_c(), ExitStack() as stack:
        try:
            folder = _open_folder(stack, data, ephemeral, config)
            keeper = Keeper(folder) if ephemeral else None
            if keeper is not None:
                stack.callback(keeper.close)
            _run(wishes, folder, stack, keeper)
        except KeyboardInterrupt:
            say("interrupted; stopping")
            raise typer.Exit(Exit.FAILED) from None


def _run(wishes: DevOptions, folder: Path, stack: ExitStack, keeper: Keeper | None) -> None:
    """The bridge ends first, then, with `stack`, the broker, then the data if they are not to be kept."""
    settings = _make_settings(wishes, folder, wishes.kafka or "")
    if settings.kafka.keys() - {"bootstrap.servers"}:
        from api.wiring import check_kafka_options  # noqa: PLC0415  # slow to import

        check_kafka_options(settings)  # before a Kafka is fetched and started
    if settings.http.port:
        check_port(settings.http.port, "Stop that process, or choose another port with --port.")
    steps = stack.enter_context(Steps())
    broker = None if wishes.kafka else _start_broker(wishes, folder, steps, stack)
    if broker is not None:
        settings = _make_settings(wishes, folder, broker.bootstrap)
        if keeper is not None and broker.pid is not None:
            keeper.keep(broker.pid)
    _configure_logs(settings, folder)
    steps.begin("bridge")
    try:
        run_loop(_serve(settings, broker, wishes, steps))
        say("bridge stopped" if broker is None else "bridge stopped; stopping Kafka")
    finally:
        steps.close()
    if broker is not None and not broker.is_running:
        raise CommandFailed(Exit.FAILED, "Kafka ended by itself", f"Read {broker.output_file}, then start again.")


async def _serve(settings: "Settings", broker: DevBroker | None, wishes: DevOptions, steps: Steps) -> None:
    from api.migration import migrate  # noqa: PLC0415  # slow to import
    from api.wiring import parse_roles, run_roles  # noqa: PLC0415  # slow to import

    if broker is None:
        await migrate(settings)
    else:
        await begin_when_led(lambda: migrate(settings))
    await _create_topics(settings, wishes.topics)
    stop = asyncio.Event()
    beside = [asyncio.create_task(_stop_with(broker, stop))] if broker is not None else []

    def begin(url: str) -> None:
        _welcome(url, settings, wishes, steps)
        if settings.insecure_no_auth:
            beside.append(asyncio.create_task(DevEvents(url, partial(_tell_event, wishes.output)).run_forever()))

    try:
        await run_roles(settings, parse_roles(wishes.roles), on_ready=begin, stop=stop)
    finally:
        for task in beside:
            task.cancel()


async def begin_when_led(begin: Callable[[], Awaitable[object]], pause_s: float = 0.5) -> None:
    """A broker that has just started again does not lead its partitions at once. Raises what the last try raises."""
    for _ in range(_BEGIN_TRIES):
        try:
            await begin()
        except (StoreUnavailable, StoreTimeout):
            await asyncio.sleep(pause_s)
        else:
            return
    await begin()


async def _create_topics(settings: "Settings", names: Sequence[str]) -> None:
    from api.wiring import KafkaParts  # noqa: PLC0415  # slow to import

    parts = KafkaParts(settings)
    try:
        for name in names:
            await parts.admin.create_topic(name, 1, -1, {})
    finally:
        await parts.close()


async def _stop_with(broker: DevBroker, stop: asyncio.Event) -> None:
    while broker.is_running:  # noqa: ASYNC110 - a process does not report its end
        await asyncio.sleep(_LOOK_INTERVAL_S)
    stop.set()


def _make_settings(wishes: DevOptions, folder: Path, bootstrap: str) -> "Settings":
    """The user's settings, with what `dev` decides; callbacks to this machine are allowed."""
    own = load(wishes.config)
    networks = tuple(dict.fromkeys((*own.callbacks.allow_networks, *LOOPBACK)))
    from api.settings import Origin  # noqa: PLC0415  # slow to import

    flags: dict[str, Any] = {
        "kafka": {"bootstrap.servers": bootstrap or None},
        "data_dir": folder,
        "http": {"port": wishes.port},
        "remoting": {"port": wishes.rocketmq_port},
        "callbacks": {"allow_networks": networks},
        "check_after_seconds": wishes.check_after_s,
        "insecure_no_auth": is_loopback(own.http.host) or None,
        "auto_create_groups": True if own.origin("auto_create_groups") is Origin.DEFAULT else None,
    }
    return load(wishes.config, flags)


def _open_folder(stack: ExitStack, data: Path | None, ephemeral: bool, config: Path | None) -> Path:
    """The data folder, ours alone until `stack` ends."""
    if ephemeral and data is not None:
        raise CommandFailed(Exit.USAGE, "--ephemeral and --data exclude each other", "Leave one of them out.")
    if ephemeral:
        return Path(tempfile.mkdtemp(prefix="outbox-bridge-"))
    folder = (data or load(config).data_dir).absolute()
    lock = FileLock(folder / "dev.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_ours = lock.take(wait=False)
        (folder / ".gitignore").write_text("*\n")  # it is in the user's own project
    except OSError as error:
        remedy = "Choose another folder with --data, or give yourself the right to write there."
        raise CommandFailed(Exit.FAILED, f"{folder} cannot be used: {error.strerror}", remedy) from error
    if not is_ours:
        raise CommandFailed(
            Exit.CONFLICT,
            f"`outbox-bridge dev` runs already on the data in {folder}{_read_note(folder)}",
            "Use that one, or start another with --data FOLDER --port 0 --kafka-port 0.",
        )
    stack.callback(lock.free)
    (folder / "dev.url").unlink(missing_ok=True)
    forget = partial((folder / DEV_KAFKA).unlink, missing_ok=True)
    forget()
    stack.callback(forget)
    return folder


def _read_note(folder: Path) -> str:
    """Where the other one is, if it has come so far."""
    try:
        return f": {(folder / 'dev.url').read_text().strip()}"
    except OSError:
        return ""


def _start_broker(wishes: DevOptions, folder: Path, steps: Steps, stack: ExitStack) -> DevBroker:
    broker = DevBroker(folder / "kafka", port=wishes.kafka_port or None)
    stack.callback(_stop_undisturbed, broker)
    threading.Thread(
        target=importlib.import_module, args=("api.migration",), daemon=True
    ).start()  # slow; Kafka is slower
    steps.begin("Kafka")
    broker.start(steps.report_jars)
    steps.end(f"Kafka at {broker.bootstrap}")
    return broker


def _stop_undisturbed(broker: DevBroker) -> None:
    """A second Ctrl-C must not leave Kafka behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        broker.stop()
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _configure_logs(settings: "Settings", folder: Path) -> None:
    """Everything to a file, warnings to the terminal too."""
    from api.process import configure_logging  # noqa: PLC0415  # slow to import

    path = folder / "bridge.log"
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    configure_logging(settings.log.level, settings.log.format)
    (terminal,) = logging.getLogger().handlers
    terminal.setLevel(logging.WARNING)
    terminal.addFilter(lambda record: record.name not in _CHATTY)
    configure_logging(settings.log.level, "json", path.open("a", buffering=1), requests=settings.log.requests)
    logging.getLogger().addHandler(terminal)


def _tell_event(output: Output, event: Row) -> None:
    """A line of what happens to transactions."""
    if output is not Output.TABLE:
        print_line(encode(event).decode())
        return
    print_line(f"{time.strftime('%H:%M:%S')}  {printable(event['text'])}")


def _welcome(url: str, settings: "Settings", wishes: DevOptions, steps: Steps) -> None:
    """Says that it is ready, and where everything is."""
    steps.end(f"bridge at {url}")
    steps.close()
    bootstrap = str(settings.kafka["bootstrap.servers"])
    (settings.data_dir / "dev.url").write_text(f"{url}\n")
    (settings.data_dir / DEV_KAFKA).write_text(f"{bootstrap}\n")
    if wishes.output is not Output.TABLE:
        ready = {"event": "ready", "url": url, "kafka": bootstrap, "data": str(settings.data_dir), "pid": os.getpid()}
        print_line(encode(ready).decode())
        return
    place = "" if wishes.has_usual_data else f"OUTBOX_BRIDGE_DATA_DIR={settings.data_dir} "
    bridge = "" if url == DEFAULT_URL else f" --url {url}"
    lines = {
        "API": url,
        "docs": f"{url}/docs",
        "Kafka": bootstrap,
        "data": str(settings.data_dir),
        "topics": ", ".join(wishes.topics) or f"{place}outbox-bridge topic create NAME makes one",
        "next": f"outbox-bridge group put GROUP --endpoint URL{bridge}, in another terminal: "
        "whom to ask when a producer died",
        "stop": "Ctrl-C",
    }
    if wishes.rocketmq_port is not None:
        lines["RocketMQ"] = f"namesrvAddr {settings.remoting.host}:{settings.remoting.port}"
    console = result_console()
    console.print(f"\noutbox-bridge is ready ({steps.seconds:.1f} s)\n", style="bold")
    for name, text in lines.items():
        console.print(f"  {name:8} {text}", markup=False)
    console.print()
