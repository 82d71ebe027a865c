"""`topic`: create, list, delete, and read along as a `read_committed` consumer."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.connect import ConfigOption, YesOption, with_kafka
from api.cli.output import (
    Column,
    CommandFailed,
    Exit,
    Output,
    OutputOption,
    Row,
    WholeSentences,
    print_line,
    printable,
    say,
    show_rows,
)
from bridge.core.message import Message, MessageQueue, StoredMessage, show_message, write_json
from bridge.core.topics import InternalTopics, TopicDescription, is_legal_topic, is_reserved_topic, with_prefix
from bridge.core.transaction import show_time

if TYPE_CHECKING:
    from api.settings import Settings
    from api.wiring import KafkaParts

topic = typer.Typer(cls=WholeSentences, no_args_is_help=True, help="Topics: create, list, delete, read along.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic.")]
SettingOption = Annotated[
    list[str], typer.Option("--setting", "-s", metavar="NAME=VALUE", help="Kafka's own; repeatable.")
]
_MAX_READ = 500
_WAIT_MS = 200


@topic.command(epilog="Example: outbox-bridge topic create orders.created --partitions 3")
def create(
    name: NameArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=10_000)] = 1,
    replication: Annotated[int, typer.Option("--replication", help="Copies; -1: the cluster's default.")] = -1,
    setting: SettingOption = [],  # noqa: B006 - typer reads the default
    config: ConfigOption = None,
) -> None:
    """Create a topic. Messages never create one: a typing error would."""

    async def act(parts: "KafkaParts", settings: "Settings") -> bool:
        _check_name(name, with_prefix(settings.topics.prefix, settings.topics.queues))
        return await parts.admin.create_topic(name, partitions, replication, _parse(setting))

    if not with_kafka(config, act):
        raise CommandFailed(
            Exit.CONFLICT, f"there is a topic {name} already", "See it with `outbox-bridge topic list`."
        )
    say(f"created {name} with {partitions} partition{'s' if partitions > 1 else ''}", "green")


@topic.command(epilog="Example: outbox-bridge topic delete orders.tried")
def delete(name: NameArgument, yes: YesOption = False, config: ConfigOption = None) -> None:
    """Delete a topic with all its messages, for ever.

    Transactions with messages for it stay. Their commits are blocked until there is a topic of this name again.
    """

    async def act(parts: "KafkaParts", settings: "Settings") -> bool:
        _check_name(name, with_prefix(settings.topics.prefix, settings.topics.queues))
        described = (await parts.admin.describe_topics([name]))[name]
        if described is None:
            return False
        queues = [MessageQueue(name, queue_id) for queue_id in range(described.queues)]
        offsets = [await parts.store.get_offsets(queue) for queue in queues]
        count = sum(each.maximum - each.minimum for each in offsets)
        if not yes:
            typer.confirm(f"delete {name} and its {count:,} offsets for ever?", abort=True, err=True)
        return await parts.admin.delete_topic(name)

    if not with_kafka(config, act):
        raise CommandFailed(Exit.NOT_FOUND, f"there is no topic {name}", "See `outbox-bridge topic list`.")
    say(f"deleted {name}", "green")


@topic.command("list", epilog="Example: outbox-bridge topic list -o json")
def list_topics(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Topics that messages can be sent to, and the bridge's own."""

    async def act(parts: "KafkaParts", settings: "Settings") -> list[Row]:
        internal = with_prefix(settings.topics.prefix, settings.topics.queues)
        found = await parts.admin.describe_topics(await parts.admin.list_topics())
        return [_describe(one, internal) for _, one in sorted(found.items()) if one is not None]

    rows = with_kafka(config, act)
    columns: list[Column] = [
        ("TOPIC", "topic"),
        ("PARTITIONS", "partitions"),
        ("REPLICATION", "replication_factor"),
        ("LEADERLESS", lambda row: row["leaderless"] or None),
        ("MAX MESSAGE", "max_message_bytes"),
        ("RESERVED", "reserved"),
    ]
    show_rows(rows, columns, output)


@topic.command(epilog="Example: outbox-bridge topic tail orders.created --from-beginning -o jsonl")
def tail(
    name: NameArgument,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", "-b", help="From the oldest message on.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for new messages at the end.")] = True,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print messages as they become visible to `read_committed` consumers. Ctrl-C ends."""

    async def act(parts: "KafkaParts", _: "Settings") -> None:
        if (await parts.admin.describe_topics([name]))[name] is None:
            raise CommandFailed(Exit.NOT_FOUND, f"there is no topic {name}", "See `outbox-bridge topic list`.")
        await _Tail(parts, name, count, output).run(from_beginning, follow)

    with contextlib.suppress(KeyboardInterrupt):
        with_kafka(config, act)


class _Tail:
    """Reads all queues of a topic at once and prints what comes."""

    def __init__(self, parts: "KafkaParts", name: str, count: int | None, output: Output) -> None:
        self._parts = parts
        self._name = name
        self._left = count
        self._output = output
        self._enough = asyncio.Event()

    async def run(self, from_beginning: bool, follow: bool) -> None:
        """Ends when enough was printed, or without `follow` at the end of each queue as it is now."""
        described = (await self._parts.admin.describe_topics([self._name]))[self._name]
        queues = [MessageQueue(self._name, queue_id) for queue_id in range(described.queues if described else 0)]
        reading = asyncio.ensure_future(_gather([self._read(queue, from_beginning, follow) for queue in queues]))
        enough = asyncio.ensure_future(self._enough.wait())
        await asyncio.wait({reading, enough}, return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        if self._left == 0:
            reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading

    async def _read(self, queue: MessageQueue, from_beginning: bool, follow: bool) -> None:
        offsets = await self._parts.store.get_offsets(queue)
        position = offsets.minimum if from_beginning else offsets.stable
        reader = self._parts.owners.open_reader(queue, position)
        try:
            while follow or position < offsets.stable:
                result = await reader.get(_MAX_READ, _WAIT_MS)
                position = result.next_begin_offset
                for stored in result.messages:
                    self._print(queue, stored)
        finally:
            await reader.close()

    def _print(self, queue: MessageQueue, stored: StoredMessage) -> None:
        if self._left == 0:
            return
        shown = show_record(queue, stored)
        print_line(_line_of(shown) if self._output is Output.TABLE else write_json(shown))
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._enough.set()


async def _gather(reads: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*reads)


def show_record(queue: MessageQueue, stored: StoredMessage) -> dict[str, object]:
    """A record as JSON shows it, with its place and time."""
    members = show_message(Message(queue.topic, stored.key, stored.value, stored.headers))
    place = {"topic": queue.topic, "partition": queue.queue_id, "offset": stored.queue_offset}
    return {**place, "timestamp_ms": stored.stored_ms, **members}


def _line_of(shown: Mapping[str, object]) -> str:
    place = f"{show_time(int(str(shown['timestamp_ms'])))}  [{shown['partition']}]@{shown['offset']}"
    names = [
        name for name in shown if name.startswith(("key", "value")) or (name.startswith("headers") and shown[name])
    ]
    return "  ".join([place, *[f"{name}={_word(shown[name])}" for name in names]])


def _word(value: object) -> str:
    return "null" if value is None else printable(str(value) if isinstance(value, str) else value)


def _describe(one: "TopicDescription", internal: InternalTopics) -> Row:
    return {
        "topic": one.name,
        "partitions": one.queues,
        "replication_factor": one.replication_factor,
        "leaderless": sorted(one.leaderless),
        "max_message_bytes": one.max_message_bytes,
        "reserved": is_reserved_topic(one.name, internal),
    }


def _check_name(name: str, internal: InternalTopics) -> None:
    if not is_legal_topic(name):
        raise CommandFailed(Exit.USAGE, f"{name!r} is no name of a topic", "Use 1..249 of A-Z a-z 0-9 . _ -")
    if is_reserved_topic(name, internal):
        raise CommandFailed(Exit.USAGE, f"{name} is reserved", "Choose another name; `migrate` makes the bridge's own.")


def _parse(settings: list[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    wrong = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if wrong is not None:
        raise CommandFailed(Exit.USAGE, f"--setting {wrong!r} is not NAME=VALUE", "Example: -s retention.ms=86400000")
    return {name: value for name, _, value in pairs}
