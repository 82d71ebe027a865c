"""api.cli.transactions: commands as requests, answers as tables and JSON."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.canned_http import CannedServer
from tests.unit.cli.conftest import Cli

ID = "0206k8e9s5ta7vo3q1m4c8b2h6dg"
TRANSACTION = {
    "transaction_id": ID, "producer_group": "orders", "state": "COMMITTED", "blocked": False, "reason": None,
    "resolved_by": "check", "resolved_at": "2026-01-31T12:00:00.000Z",
    "receipts": [{"topic": "orders.created", "partition": 0, "offset": 7}],
    "born_time": "2026-01-31T11:59:00.000Z", "first_check_at": None, "next_check_at": None, "check_times": 1,
    "queue_id": 1, "queue_offset": 5, "ordering_key": None, "idempotency_key": None,
    "messages": [{"topic": "orders.created", "key": "42", "value_bytes": 11}, {"topic": "credits", "key": None}],
}  # fmt: skip


def test_list_sends_its_filters(cli: Cli, bridge: CannedServer) -> None:
    """Each option is the parameter of the HTTP interface."""
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [TRANSACTION], "next": None})
    ended = cli("tx", "list", "--state", "committed", "-g", "orders", "--key", "42", "--url", bridge.url)
    assert ended.code == 0
    assert bridge.asked[0].query == {"state": "COMMITTED", "producer_group": "orders", "key": "42", "limit": "50"}
    header, row = ended.out.splitlines()
    assert header.split()[:3] == ["TRANSACTION", "GROUP", "STATE"]
    assert row.split()[:6] == [ID, "orders", "COMMITTED", "orders.created", "+1", "42"]
    assert row.split()[-1] == "orders.created[0]@7"


@pytest.mark.parametrize("filter_name", ["blocked", "abandoned"])
def test_list_finds_what_needs_an_operator(cli: Cli, bridge: CannedServer, filter_name: str) -> None:
    """Commits that cannot be published, and those that were given up."""
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [], "next": None})
    assert cli("tx", "list", f"--{filter_name}", "--url", bridge.url).err == "none found\n"
    assert bridge.asked[0].query == {filter_name: "true", "limit": "50"}


def test_list_of_what_is_stuck_is_two_lists(cli: Cli, bridge: CannedServer) -> None:
    """What is pending for long, and what is blocked; it takes no filter that contradicts it."""
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [TRANSACTION], "next": None})
    ended = cli("tx", "list", "--stuck", "-g", "orders", "--url", bridge.url)
    assert (ended.code, len(ended.out.splitlines())) == (0, 3)
    pending, blocked = (asked.query for asked in bridge.asked)
    assert pending.pop("born_before").endswith("Z")
    assert pending == {"producer_group": "orders", "limit": "50", "state": "PREPARED"}
    assert blocked == {"producer_group": "orders", "limit": "50", "blocked": "true"}
    assert cli("tx", "list", "--stuck", "--state", "PARKED", "--url", bridge.url).code == 2


def test_limit_holds_for_what_is_stuck(cli: Cli, bridge: CannedServer) -> None:
    """At most so many of both lists together, newest first, and it is said that there may be more."""
    older, newer = (TRANSACTION | {"born_time": f"2026-01-31T11:0{n}:00.000Z"} for n in (1, 2))
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [older], "next": None})
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [newer], "next": None})
    ended = cli("tx", "list", "--stuck", "-n", "1", "-o", "json", "--url", bridge.url)
    assert [row["born_time"] for row in json.loads(ended.out)] == [newer["born_time"]]
    assert "--limit" in ended.err


def test_times_may_be_told_as_ages(cli: Cli, bridge: CannedServer) -> None:
    """And what is due is never shown as a time that is over."""
    due = TRANSACTION | {"state": "PREPARED", "next_check_at": "2026-01-31T12:00:30.000Z"}
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [due], "next": None})
    before = datetime.now(UTC) - timedelta(minutes=10)
    ended = cli("tx", "list", "--after", "10m", "--before", "2026-01-31T13:00:00Z", "--url", bridge.url)
    asked = bridge.asked[0].query
    assert timedelta(0) <= datetime.fromisoformat(asked["born_after"]) - before < timedelta(minutes=5)
    assert asked["born_before"] == "2026-01-31T13:00:00Z"
    assert " now " in ended.out


@pytest.mark.parametrize("option", ["--after", "--before"])
@pytest.mark.parametrize("said", ["tomorrow", "10 m", "2026-01-31", "2026-01-31T13:00:00"])
def test_what_is_no_time_is_refused_with_the_forms_there_are(
    cli: Cli, bridge: CannedServer, option: str, said: str
) -> None:
    """Under the option's own name, and without a call."""
    ended = cli("tx", "list", option, said, "--url", bridge.url)
    assert (ended.code, bridge.asked) == (2, [])
    assert option in ended.err
    assert "10m" in ended.err


def test_watch_follows_a_transaction_to_its_end(cli: Cli, bridge: CannedServer) -> None:
    """Each event once."""
    events = [
        {"at": "2026-01-31T11:59:00.000Z", "type": "prepared", "by": "producer"},
        {"at": "2026-01-31T12:00:00.000Z", "type": "published", "by": None, "receipts": []},
    ]
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, TRANSACTION)
    bridge.answer("GET", f"/v1/transactions/{ID}/timeline", 200, {"events": events})
    ended = cli("tx", "watch", ID, "--url", bridge.url)
    assert [line.split()[1] for line in ended.out.splitlines()] == ["prepared", "published"]


def test_list_says_how_to_go_on(cli: Cli, bridge: CannedServer) -> None:
    """The cursor is for people, so not among the results."""
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [TRANSACTION], "next": "abc"})
    ended = cli("tx", "list", "-n", "1", "-o", "jsonl", "--url", bridge.url)
    assert len(ended.out.splitlines()) == 1
    assert ended.err == "more: --cursor abc\n"


def test_json_is_what_the_bridge_said(cli: Cli, bridge: CannedServer) -> None:
    """Numbers inside values are not rewritten."""
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, b'{"messages":[{"value":{"amount":1.10}}]}')
    ended = cli("tx", "get", ID, "--messages", "-o", "jsonl", "--url", bridge.url)
    assert ended.out == '{"messages":[{"value":{"amount":1.10}}]}\n'
    assert bridge.asked[0].query == {"include": "messages"}


def test_get_says_why_and_what_comes_next(cli: Cli, bridge: CannedServer) -> None:
    """In the words of the HTTP interface; nothing is said of a step that there is not."""
    check = {"what": "check", "at": "2026-01-31T12:00:00.000Z"}
    pending = TRANSACTION | {"state": "PREPARED", "explanation": "Pending: not ended yet.", "next": check}
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, pending)
    rows = dict(line.split("  ", 1) for line in cli("tx", "get", ID, "--url", bridge.url).out.splitlines())
    assert rows["explanation"].strip() == "Pending: not ended yet."
    assert rows["next"].strip() == "check at 2026-01-31T12:00:00.000Z"
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, TRANSACTION | {"next": {"what": "nothing", "at": None}})
    assert "nothing" not in cli("tx", "get", ID, "--url", bridge.url).out


@pytest.mark.parametrize("command", ["get", "timeline", "watch"])
def test_beginning_of_an_id_is_enough(cli: Cli, bridge: CannedServer, command: str) -> None:
    """Written in any case, if it is one transaction's alone."""
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, TRANSACTION)
    bridge.answer("GET", f"/v1/transactions/{ID}/timeline", 200, {"events": []})
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [TRANSACTION], "next": None})
    assert cli("tx", command, ID[:9].upper(), "--url", bridge.url).code == 0
    assert bridge.asked[0].query == {"id_prefix": ID[:9], "limit": "5"}
    assert bridge.asked[1].path.startswith(f"/v1/transactions/{ID}")


@pytest.mark.parametrize("command", ["get", "timeline", "watch"])
def test_too_short_a_beginning_says_how_much_is_enough(cli: Cli, bridge: CannedServer, command: str) -> None:
    """Without a call."""
    ended = cli("tx", command, ID[:7], "--url", bridge.url)
    assert (ended.code, bridge.asked) == (2, [])
    assert "at least 8 characters" in ended.err


def test_beginning_of_several_ids_names_them(cli: Cli, bridge: CannedServer) -> None:
    """Nothing is chosen."""
    twin = TRANSACTION | {"transaction_id": ID[:27] + "0"}
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [TRANSACTION, twin], "next": None})
    ended = cli("tx", "get", ID[:9], "--url", bridge.url)
    assert (ended.code, f"{ID}, {ID[:27]}0" in " ".join(ended.err.split())) == (4, True)


def test_beginning_of_no_id_is_not_found(cli: Cli, bridge: CannedServer) -> None:
    """A whole id is asked for as it is."""
    bridge.answer("GET", "/v1/transactions", 200, {"transactions": [], "next": None})
    assert cli("tx", "get", ID[:9], "--url", bridge.url).code == 3
    bridge.answer("GET", f"/v1/transactions/{ID}", 200, TRANSACTION)
    assert cli("tx", "get", ID, "--url", bridge.url).code == 0


def test_audit_is_listed(cli: Cli, bridge: CannedServer) -> None:
    """Who, what, why; newest first."""
    entry = {
        "at": "2026-01-31T12:00:00.000Z", "actor": "ann", "action": "transaction.force", "target": ID,
        "reason": "paid", "before": None, "after": None,
    }  # fmt: skip
    bridge.answer("GET", "/v1/audit", 200, {"entries": [entry], "next": None})
    ended = cli("audit", "list", "-n", "20", "--url", bridge.url)
    assert ended.out.splitlines()[1].split() == [entry["at"], "ann", "transaction.force", ID, "paid"]
    assert bridge.asked[0].query == {"limit": "20"}
    assert cli("audit", "list", "-o", "jsonl", "--url", bridge.url).out.startswith('{"at"')


def test_timeline_is_a_line_an_event(cli: Cli, bridge: CannedServer) -> None:
    """With what belongs to the event's type."""
    events = [
        {"at": "2026-01-31T11:59:00.000Z", "type": "prepared", "by": "producer"},
        {"at": "2026-01-31T12:00:00.000Z", "type": "check_answered", "by": "check", "number": 1, "answer": "COMMIT"},
    ]
    bridge.answer("GET", f"/v1/transactions/{ID}/timeline", 200, {"events": events})
    lines = cli("tx", "timeline", ID, "--url", bridge.url).out.splitlines()
    assert lines[2].split() == ["2026-01-31T12:00:00.000Z", "check_answered", "check", "number=1", "answer=COMMIT"]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_ends_name_their_group_and_may_not_wait(cli: Cli, bridge: CannedServer, verb: str) -> None:
    """--async is the preference of RFC 7240."""
    bridge.answer("POST", f"/v1/transactions/{ID}/{verb}", 202, {"transaction_id": ID, "resolution": verb.upper()})
    ended = cli("tx", verb, ID, "--group", "orders", "--async", "--url", bridge.url)
    assert ended.code == 0
    assert bridge.asked[0].document == {"producer_group": "orders"}
    assert bridge.asked[0].headers["Prefer"] == "respond-async"


def test_operators_acts_carry_their_reason(cli: Cli, bridge: CannedServer) -> None:
    """Nothing is forced, resumed or abandoned without one."""
    bridge.answer("POST", f"/v1/transactions/{ID}/force", 200, TRANSACTION)
    bridge.answer("POST", f"/v1/transactions/{ID}/resume", 200, TRANSACTION)
    assert cli("tx", "force", ID, "commit", "--url", bridge.url).code == 2
    assert cli("tx", "force", ID, "commit", "--reason", "paid", "--url", bridge.url).code == 0
    assert cli("tx", "resume", ID, "--reason", "back", "--url", bridge.url).code == 0
    assert cli("tx", "abandon", ID, "--url", bridge.url).code == 2
    bridge.answer("POST", f"/v1/transactions/{ID}/abandon", 200, TRANSACTION | {"abandoned": True, "receipts": []})
    ended = cli("tx", "abandon", ID, "--reason", "gone", "--url", bridge.url)
    assert ["state", "COMMITTED, abandoned"] in [line.split(maxsplit=1) for line in ended.out.splitlines()]
    assert [asked.document for asked in bridge.asked] == [
        {"resolution": "COMMIT", "reason": "paid"},
        {"reason": "back"},
        {"reason": "gone"},
    ]


def test_check_asks_now(cli: Cli, bridge: CannedServer) -> None:
    """The answer comes later: the timeline shows it."""
    bridge.answer("POST", f"/v1/transactions/{ID}/check", 202, {"transaction_id": ID})
    ended = cli("tx", "check", ID, "--url", bridge.url)
    assert ended.code == 0
    assert f"tx timeline {ID}" in ended.err


def test_refusal_ends_with_its_code_and_says_why(cli: Cli, bridge: CannedServer) -> None:
    """On standard error; nothing on standard output."""
    bridge.refuse("POST", f"/v1/transactions/{ID}/rollback", 409, "already-resolved", "it is COMMITTED")
    ended = cli("tx", "rollback", ID, "--url", bridge.url)
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.splitlines() == [
        "error: it is COMMITTED (already-resolved)",
        "what to do: The recorded `state` stands for ever.",
    ]


def test_id_cannot_leave_its_place_in_the_path(cli: Cli, bridge: CannedServer) -> None:
    """What was typed is one segment, whatever it holds."""
    cli("tx", "get", "../stats?x=1", "--url", bridge.url)
    assert bridge.asked[0].path == "/v1/transactions/..%2Fstats%3Fx%3D1"
