"""`acl`: what each role must be allowed in Kafka."""

import shlex
from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Annotated

import typer

from api.cli.local import ConfigOption, load
from api.cli.output import Output, OutputOption, Row, encode, print_line, say, show_documents, show_rows
from bridge.core.kafka_rights import KafkaRight, Role, least_rights
from bridge.core.topics import with_prefix


class AclFormat(StrEnum):
    """How rights are written."""

    ROWS = "rows"
    KAFKA_ACLS = "kafka-acls"


RoleOption = Annotated[list[Role], typer.Option("--role", help="Only of this role; repeatable. All if not given.")]
TopicOption = Annotated[
    list[str], typer.Option("--topic", "-t", help="Topic that messages go to; `shop.*`: all that begin so. Repeatable.")
]
PrincipalOption = Annotated[str, typer.Option("--principal", help="Kafka's name of a role's user.")]
FormatOption = Annotated[AclFormat, typer.Option("--format", help="`kafka-acls`: lines for Kafka's own command.")]


def acl(
    role: RoleOption = [],  # noqa: B006 - typer reads the default
    topic: TopicOption = [],  # noqa: B006
    principal: PrincipalOption = "User:outbox-bridge-{role}",
    form: FormatOption = AclFormat.ROWS,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The least that each role must be allowed in Kafka, with the topic prefix of the settings.

    Nobody else may write to the internal topics, and no producer needs any right in Kafka.
    """
    settings = load(config)
    topics = with_prefix(settings.topics.prefix, settings.topics.queues)
    if not topic:
        say("without --topic, rights to the topics that messages go to are left out")
    rights: dict[tuple[str, KafkaRight], Role] = {}
    for one in role or Role:
        for right in least_rights(one, topics, topic):
            rights.setdefault((principal.replace("{role}", one), right), one)
    if form is AclFormat.KAFKA_ACLS:
        for line in write_commands(list(rights), str(settings.kafka["bootstrap.servers"])):
            print_line(line)
        return
    rows = [_show(whose, right, role) for (whose, right), role in rights.items()]
    if output is not Output.TABLE:
        show_documents([encode(row) for row in rows], output)
        return
    members = ("role", "principal", "resource", "name", "pattern", "operation")
    show_rows(rows, [(member.upper(), itemgetter(member)) for member in members])


def write_commands(rights: list[tuple[str, KafkaRight]], servers: str) -> Iterator[str]:
    """A line for each resource of each principal."""

    def place(one: tuple[str, KafkaRight]) -> tuple[str, str, str, bool]:
        whose, right = one
        return whose, right.resource, right.name, right.is_prefix

    for (whose, resource, name, is_prefix), alike in groupby(sorted(rights, key=place), place):
        words = ["kafka-acls.sh", "--bootstrap-server", servers, "--add", "--allow-principal", whose]
        for _, right in alike:
            words += ["--operation", right.operation]
        words += [f"--{resource}", name, *(["--resource-pattern-type", "prefixed"] if is_prefix else [])]
        yield shlex.join(words)


def _show(principal: str, right: KafkaRight, role: Role) -> Row:
    return {
        "role": role.value,
        "principal": principal,
        "resource": right.resource.value,
        "name": right.name,
        "pattern": "prefixed" if right.is_prefix else "literal",
        "operation": right.operation.value,
    }
