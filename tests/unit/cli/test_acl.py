"""`acl`: rights as rows, and as lines for Kafka's own command."""

import json
import shlex
from itertools import pairwise

from bridge.core.topics import Role, least_rights, with_prefix
from tests.unit.cli.conftest import Cli


def test_each_row_is_told_with_its_role(cli: Cli) -> None:
    """With the prefix of the settings; `*` at the end stands for all that begin so."""
    done = cli("acl", "--role", "settler", "--topic", "shop.*", "-o", "json")
    rows = json.loads(done.out)
    assert len(rows) == len(least_rights(Role.SETTLER, with_prefix(""), ["shop.*"]))
    assert {
        "role": "settler", "principal": "User:outbox-bridge-settler", "resource": "topic", "name": "shop.",
        "pattern": "prefixed", "operation": "Write",
    } in rows  # fmt: skip


def test_lines_for_kafkas_command_hold_the_same_rights(cli: Cli) -> None:
    """One principal for all has each right once."""
    done = cli("acl", "-t", "a b", "--principal", "User:x", "--format", "kafka-acls")
    told = set()
    for line in done.out.splitlines():
        words = shlex.split(line)
        assert words[:6] == [
            "kafka-acls.sh", "--bootstrap-server", "127.0.0.1:9092", "--add", "--allow-principal", "User:x",
        ]  # fmt: skip
        name = words[-3] if words[-1] == "prefixed" else words[-1]
        told |= {(name, word) for before, word in pairwise(words) if before == "--operation"}
    rights = [right for role in Role for right in least_rights(role, with_prefix(""), ["a b"])]
    assert told == {(right.name, right.operation.value) for right in rights}


def test_rights_to_real_topics_need_their_names(cli: Cli) -> None:
    """Without, they are left out, and that is said."""
    done = cli("acl", "--role", "api")
    assert "without --topic" in done.err
    assert "DescribeConfigs" in done.out
    assert done.out.count("Describe") == 4
