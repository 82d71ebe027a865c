"""Section 2 of the contract: prepare, end, publish, and their repeats, on the real service."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.bad_requests import UNKNOWN_ID
from tests.support.problems import check_problem
from tests.support.running_service import NDJSON, Json, RunningService, lines_of

RFC3339_MS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PREPARED_MEMBERS = {
    "transaction_id", "producer_group", "state", "born_time", "first_check_at", "queue_id", "queue_offset",
}  # fmt: skip


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """The results of so many calls in threads of their own."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def results_of(answer: Any) -> list[Json]:
    """Of a batch, or of NDJSON."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/x-ndjson"):
        return [json.loads(line) for line in answer.text.splitlines()]
    results: list[Json] = answer.json()["results"]
    return results


def slug(problem: Json) -> str:
    """The code of a problem."""
    return str(problem["type"]).rpartition("/")[2]


# --- prepare ---


def test_prepare_answers_as_documented_and_stays_invisible(service: RunningService) -> None:
    """201, the documented members, a Location that leads to it; no consumer sees it before its commit (P)."""
    group = service.new_group("prepare")
    body = {"producer_group": group, "messages": [service.message(key="42", value={"n": 1})]}
    answer = service.api.post("/v1/transactions", body)
    prepared = answer.json()
    assert (answer.status_code, set(prepared)) == (201, PREPARED_MEMBERS)
    assert re.fullmatch("[0-9a-z]{28}", prepared["transaction_id"])
    assert (prepared["producer_group"], prepared["state"]) == (group, "PREPARED")
    assert RFC3339_MS.fullmatch(prepared["born_time"])
    assert RFC3339_MS.fullmatch(prepared["first_check_at"])
    found = service.other.get(answer.headers["location"]).json()
    for name in ("transaction_id", "producer_group", "state", "first_check_at", "queue_id", "queue_offset"):
        assert found[name] == prepared[name]
    assert service.read([prepared["transaction_id"]]) == []
    (receipt,) = service.end(prepared["transaction_id"], "commit")["receipts"]
    (record,) = service.read([prepared["transaction_id"]])
    assert (record.topic, record.partition, record.offset) == tuple(receipt.values())


def test_check_settings_of_a_message_are_its_own(service: RunningService) -> None:
    """`check_immunity_seconds` moves the first check; the group's timeout is the least."""
    group = service.new_group("immunity")
    service.put_known_group(group, transaction_timeout_seconds=60)
    late = service.get(service.prepare(group, check_immunity_seconds=3_600))
    usual = service.get(service.prepare(group, check_immunity_seconds=7))
    assert seconds_until_check(late) == pytest.approx(3_600, abs=5)
    assert seconds_until_check(usual) == pytest.approx(60, abs=5)


def seconds_until_check(transaction: Json) -> float:
    """From its birth to its first check."""
    born, first = [
        int(h) * 3600 + int(m) * 60 + float(s)
        for h, m, s in [transaction[name][11:-1].split(":") for name in ("born_time", "first_check_at")]
    ]
    return (first - born) % 86_400


@pytest.mark.parametrize("path", ["/v1/transactions/batch", "/v1/messages/batch"])
def test_batch_decides_each_transaction_on_its_own(service: RunningService, path: str) -> None:
    """Results in order; what is wrong is told with its place, and the others are done."""
    group = service.new_group("batch")
    good = {"producer_group": group, "messages": [service.message(key="a")]}
    transactions = [
        good,
        {"producer_group": group, "messages": [{"topic": "no.such.topic"}]},
        {"producer_group": group, "messages": [service.message(colour="red")]},
        {"producer_group": group, "messages": [service.message(partition=77)]},
        good,
    ]
    results = results_of(service.api.post(path, {"transactions": transactions}))
    expected = 201 if "transactions" in path else 200
    assert [result["status"] for result in results] == [expected, 422, 422, 422, expected]
    assert [slug(r["problem"]) for r in results[1:4]] == ["unknown-topic", "invalid-request", "unknown-partition"]
    places = [result["problem"]["errors"][0]["pointer"] for result in results[1:4]]
    assert places == [
        "/transactions/1/messages/0/topic",
        "/transactions/2/messages/0/colour",
        "/transactions/3/messages/0/partition",
    ]
    assert len({results[0]["transaction_id"], results[4]["transaction_id"]}) == 2
    assert service.counts(group)["prepared"] == 2


def test_ndjson_is_answered_line_by_line(service: RunningService) -> None:
    """More lines than a batch may have, a bad one among them, empty ones skipped; then ended the same way."""
    group = service.new_group("lines")
    good = {"producer_group": group, "messages": [{"topic": service.topics.line, "value": "n"}]}
    body = lines_of([good] * 1_500) + b"{oops\n\r\n" + lines_of([good] * 10)
    results = results_of(service.api.http.post("/v1/transactions/batch", content=body, headers=NDJSON))
    assert [result["status"] for result in results] == [201] * 1_500 + [400] + [201] * 10
    assert slug(results[1_500]["problem"]) == "malformed-json"
    ids = [result["transaction_id"] for result in results if result["status"] == 201]
    ends = lines_of([{"transaction_id": i, "resolution": "ROLLBACK" if n % 2 else 8} for n, i in enumerate(ids)])
    ended = results_of(service.other.http.post("/v1/resolutions", content=ends, headers=NDJSON))
    assert [result["transaction_id"] for result in ended] == ids
    assert [result["state"] for result in ended] == ["COMMITTED", "ROLLED_BACK"] * 755
    assert {r.transaction_id for r in service.read(ids, service.topics.line)} == set(ids[::2])


# --- idempotency ---


def test_same_key_at_once_at_two_processes_is_one_transaction(service: RunningService) -> None:
    """20 callers, two processes: one id, everywhere 201, and one record after the commit (D)."""
    group = service.new_group("keyed")
    body = {
        "producer_group": group,
        "messages": [service.message(key="k", value={"order": 7}), {"topic": service.topics.credits, "value": "c"}],
        "idempotency_key": "order-7",
    }
    processes = (service.api, service.other)
    answers = at_once(20, lambda n: processes[n % 2].post("/v1/transactions", body))
    assert {answer.status_code for answer in answers} == {201}
    (transaction_id,) = {answer.json()["transaction_id"] for answer in answers}
    assert service.counts(group)["prepared"] == 1
    ends = at_once(20, lambda n: processes[n % 2].post(f"/v1/transactions/{transaction_id}/commit"))
    assert {answer.status_code for answer in ends} == {200}
    assert len({json.dumps(answer.json()["receipts"]) for answer in ends}) == 1
    assert len(service.read([transaction_id])) == 2


def test_published_with_one_key_at_once_is_one_record(service: RunningService) -> None:
    """A publish is repeatable like a prepare: the same receipts for all."""
    body = {"producer_group": service.new_group("once"), "messages": [service.message()], "idempotency_key": "once"}
    answers = at_once(20, lambda n: (service.api, service.other)[n % 2].post("/v1/messages", body))
    assert {answer.status_code for answer in answers} == {200}
    assert len({json.dumps([answer.json()[m] for m in ("transaction_id", "receipts")]) for answer in answers}) == 1
    assert len(service.read([answers[0].json()["transaction_id"]])) == 1


def test_repeat_of_a_prepare_tells_the_state_of_now(service: RunningService) -> None:
    """201 while it is PREPARED, 200 with the final state afterwards, always the same id; nothing new is made."""
    group = service.new_group("repeat")
    body = {"producer_group": group, "messages": [service.message(key="k")], "idempotency_key": "r"}
    first = service.api.post("/v1/transactions", body).json()
    again = service.other.post("/v1/transactions", body)
    assert (again.status_code, again.json()) == (201, first)
    service.end(first["transaction_id"], "rollback")
    for process in (service.api, service.other):
        after = process.post("/v1/transactions", body)
        assert (after.status_code, after.json()["state"]) == (200, "ROLLED_BACK")
        assert after.json()["transaction_id"] == first["transaction_id"]
    assert service.counts(group)["prepared"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"value": "other"},
        {"key": "other"},
        {"value": None},
        {"headers": [["h", "1"]]},
        {"partition": 1},
        {"timestamp_ms": 1_700_000_000_000},
        {"topic": "credits"},
    ],
    ids=lambda change: next(iter(change)) if change != {"value": None} else "tombstone",
)
def test_key_with_other_content_is_refused(service: RunningService, change: Json) -> None:
    """422 where the first was made, and elsewhere as soon as it is known; the first stays what it was."""
    group = service.new_group("reused")
    message = service.message(key="k", value="v")
    other = {**message, **change}
    if "topic" in change:
        other["topic"] = service.topics.credits
    first = service.prepare(group, message, idempotency_key="x")
    service.get(first, at=service.other)
    for process in (service.api, service.other):
        body = {"producer_group": group, "messages": [other], "idempotency_key": "x"}
        check_problem(process.post("/v1/transactions", body), 422, "idempotency-key-reused")
    assert service.counts(group)["prepared"] == 1
    service.end(first, "commit")
    (record,) = service.read([first])
    assert (record.topic, record.key, record.value) == (service.topics.orders, b"k", b"v")


def test_content_is_the_bytes_not_their_spelling(service: RunningService) -> None:
    """White space, base64 and check settings do not make other content; the group and the kind of call do."""
    group = service.new_group("spelling")
    head = f'{{"producer_group":"{group}","idempotency_key":"s","messages":[{{"topic":"{service.topics.orders}",'
    spellings = [
        '"key":"k","value":{"a":1.50}}]}',
        '"value" : { "a" : 1.50 } , "key" : "k", "headers": []}]}',
        '"key_base64":"aw==","value_base64":"eyJhIjoxLjUwfQ=="}]}',
        '"key":"\\u006b","value":"{\\"a\\":1.50}","partition":null}],"max_checks":3}',
    ]
    json_type = {"Content-Type": "application/json"}
    answers = [service.api.http.post("/v1/transactions", content=head + s, headers=json_type) for s in spellings]
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.json()["transaction_id"] for answer in answers}) == 1
    body = {"messages": [service.message(key="k", value_base64="eyJhIjoxLjUwfQ==")], "idempotency_key": "s"}
    elsewhere = service.api.post("/v1/transactions", {**body, "producer_group": service.new_group("spelling")})
    assert elsewhere.status_code == 201
    assert elsewhere.json()["transaction_id"] != answers[0].json()["transaction_id"]
    check_problem(service.api.post("/v1/messages", {**body, "producer_group": group}), 422, "idempotency-key-reused")


def test_key_may_come_in_body_or_header(service: RunningService) -> None:
    """Either, or both alike: the same transaction."""
    group = service.new_group("header")
    body = {"producer_group": group, "messages": [service.message()]}
    keyed = {**body, "idempotency_key": "h 1"}
    header = {"Idempotency-Key": "h 1"}
    answers = [
        service.api.post("/v1/transactions", keyed),
        service.api.post("/v1/transactions", body, headers=header),
        service.other.post("/v1/transactions", keyed, headers=header),
        service.other.post("/v1/transactions", body, headers={"Idempotency-Key": '"h 1"'}),
    ]
    assert [answer.status_code for answer in answers] == [201] * 4
    (transaction_id,) = {answer.json()["transaction_id"] for answer in answers}
    assert service.get(transaction_id)["idempotency_key"] == "h 1"


def test_repeats_inside_one_batch_are_one_transaction(service: RunningService) -> None:
    """And the one with other content under the same key is refused."""
    group = service.new_group("twins")
    good = {"producer_group": group, "messages": [service.message(key="k")], "idempotency_key": "t"}
    other = {**good, "messages": [service.message(key="other")]}
    results = results_of(service.api.post("/v1/transactions/batch", {"transactions": [good, good, other, good]}))
    assert [result["status"] for result in results] == [201, 201, 422, 201]
    assert len({result["transaction_id"] for result in results if result["status"] == 201}) == 1
    assert slug(results[2]["problem"]) == "idempotency-key-reused"
    assert service.counts(group)["prepared"] == 1


# --- end ---


def test_commit_gives_receipts_in_message_order_and_repeats_them(service: RunningService) -> None:
    """Messages to several topics become visible together; every repeat, anywhere, hears the same."""
    topics = service.topics
    messages = [
        {"topic": topics.credits, "value": "0"},
        {"topic": topics.orders, "value": "1"},
        {"topic": topics.line, "value": "2"},
        {"topic": topics.credits, "value": "3", "partition": 1},
        {"topic": topics.orders, "value": "4", "partition": 2},
    ]
    group = service.new_group("receipts")
    transaction_id = service.prepare(group, *messages)
    first = service.end(transaction_id, "commit")
    assert (first["state"], first["resolved_by"], first["blocked"]) == ("COMMITTED", "producer", False)
    assert RFC3339_MS.fullmatch(first["resolved_at"])
    for process in (service.api, service.other):
        assert service.end(transaction_id, "commit", at=process) == first
    found = service.get(transaction_id)
    for name in ("state", "resolved_by", "resolved_at", "receipts"):
        assert found[name] == first[name]
    places = {(r.topic, r.partition, r.offset): r.value for r in service.read([transaction_id])}
    assert [places[tuple(r.values())] for r in first["receipts"]] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(places) == 5


def test_answer_to_an_end_does_not_contradict_a_look(service: RunningService) -> None:
    """What it shows is what a GET shows; what the settlers do not know it leaves out instead of calling it null."""
    group = service.new_group("agree")
    members = {"idempotency_key": "agree", "ordering_key": "in order"}
    for transaction_id in (service.prepare(group), service.prepare(group, **members)):
        ended = service.end(transaction_id, "commit")
        found = service.get(transaction_id)
        assert {name: (value, found[name]) for name, value in ended.items() if value != found[name]} == {}
        assert {"transaction_id", "producer_group", "state", "resolved_by", "resolved_at", "receipts"} <= set(ended)


@pytest.mark.parametrize(
    ("word", "contrary", "state"), [("commit", "rollback", "COMMITTED"), ("rollback", "commit", "ROLLED_BACK")]
)
def test_first_resolution_wins(service: RunningService, word: str, contrary: str, state: str) -> None:
    """A contradiction is 409 with the recorded state, everywhere and always (F)."""
    transaction_id = service.prepare(service.new_group("first"))
    service.end(transaction_id, word)
    for process in (service.api, service.other, service.api):
        problem = check_problem(process.post(f"/v1/transactions/{transaction_id}/{contrary}"), 409, "already-resolved")
        assert (problem["state"], problem["outcome"]) == (state, "not_applied")
    assert service.end(transaction_id, word)["state"] == state
    assert len(service.read([transaction_id])) == (1 if state == "COMMITTED" else 0)


def test_commit_against_rollback_at_once_has_one_winner(service: RunningService) -> None:
    """20 callers at two processes disagree: all hear the same state, and the topic agrees with it (F, P, L)."""
    states = {}
    for _ in range(5):
        transaction_id = service.prepare(service.new_group("race"))

        def end(number: int, transaction_id: str = transaction_id) -> Any:
            process = (service.api, service.other)[number // 2 % 2]
            return process.post(f"/v1/transactions/{transaction_id}/{('commit', 'rollback')[number % 2]}")

        answers = at_once(20, end)
        assert {answer.status_code for answer in answers} == {200, 409}
        (states[transaction_id],) = {answer.json()["state"] for answer in answers}
    visible = [record.transaction_id for record in service.read(states, service.topics.orders)]
    assert sorted(visible) == sorted(i for i, state in states.items() if state == "COMMITTED")


def test_end_names_its_group_or_none(service: RunningService) -> None:
    """The right group may end it, and so may who says nothing."""
    group = service.new_group("mine")
    named, unnamed = service.prepare(group), service.prepare(group)
    path = f"/v1/transactions/{named}/commit"
    check_problem(service.api.post(path, {"producer_group": "other"}), 409, "producer-group-mismatch")
    assert service.api.post(path, {"producer_group": group}).json()["state"] == "COMMITTED"
    check_problem(service.api.post(path, {"producer_group": "other"}), 409, "producer-group-mismatch")
    assert service.api.post(f"/v1/transactions/{unnamed}/rollback", {}).json()["state"] == "ROLLED_BACK"


def test_resolutions_are_decided_each_on_its_own(service: RunningService) -> None:
    """Words and RocketMQ's numbers; UNKNOWN changes nothing; refusals stand in their places."""
    group = service.new_group("resolutions")
    a, b, c, d = [service.prepare(group) for _ in range(4)]
    entries = [
        {"transaction_id": a, "resolution": "COMMIT"},
        {"transaction_id": b, "resolution": 12},
        {"transaction_id": c, "resolution": "UNKNOWN"},
        {"transaction_id": d, "resolution": 0},
        {"transaction_id": a, "resolution": 8, "producer_group": group},
        {"transaction_id": a, "resolution": "ROLLBACK"},
        {"transaction_id": a, "resolution": "UNKNOWN"},
        {"transaction_id": c, "resolution": "COMMIT", "producer_group": "other"},
        {"transaction_id": UNKNOWN_ID, "resolution": "COMMIT"},
        {"transaction_id": "nonsense", "resolution": "COMMIT"},
        {"transaction_id": c, "resolution": "MAYBE"},
        {"transaction_id": c, "resolution": "COMMIT", "nonce": "forged"},
    ]
    results = results_of(service.api.post("/v1/resolutions", {"resolutions": entries}))
    assert [result["status"] for result in results] == [200] * 5 + [409, 200, 409, 404, 422, 422, 422]
    states = [result["state"] for result in results if result["status"] == 200]
    assert states == ["COMMITTED", "ROLLED_BACK", "PREPARED", "PREPARED", "COMMITTED", "COMMITTED"]
    codes = [slug(result["problem"]) for result in results if result["status"] != 200]
    assert codes == ["already-resolved", "producer-group-mismatch", "unknown-transaction"] + ["invalid-request"] * 3
    assert results[5]["problem"]["state"] == "COMMITTED"
    assert service.get(c)["check_times"] == 0


def test_respond_async_answers_when_the_end_is_durable(service: RunningService) -> None:
    """202 with id and resolution; the transaction is settled soon."""
    transaction_id = service.prepare(service.new_group("async"))
    path = f"/v1/transactions/{transaction_id}"
    answer = service.api.post(f"{path}/commit", headers={"Prefer": "respond-async, wait=5"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.json() == {"transaction_id": transaction_id, "resolution": "COMMIT"}
    assert service.wait_state(transaction_id, "COMMITTED")["receipts"]


def test_ends_while_the_engine_stands_still(service: RunningService) -> None:
    """Durable is 202, settled in time is not: 504 unknown, reads 503; when it goes on, all was kept (A, L)."""
    group = service.new_group("still")
    ended, asked = service.prepare(group), service.prepare(group)
    service.engine.pause()
    try:
        answer = service.api.post(f"/v1/transactions/{ended}/commit", headers={"Prefer": "respond-async"})
        assert answer.status_code == 202
        late = service.api.post(f"/v1/transactions/{asked}/rollback?wait_seconds=0.2")
        problem = check_problem(late, 504, "outcome-unknown")
        assert (problem["outcome"], problem["transaction_id"]) == ("unknown", asked)
        behind = check_problem(service.api.get(f"/v1/transactions/{ended}"), 503, "projection-behind")
        assert behind["retry_after"] >= 1
        unkeyed = service.api.post("/v1/transactions", {"producer_group": group, "messages": [service.message()]})
        assert unkeyed.status_code == 201, "a prepare needs no settler"
    finally:
        service.engine.resume()
    assert service.end(ended, "commit")["state"] == "COMMITTED"
    assert service.end(asked, "rollback")["state"] == "ROLLED_BACK"
    assert len(service.read([ended, asked])) == 1


# --- publish ---


def test_publish_is_prepare_and_commit_in_one_step(service: RunningService) -> None:
    """200 as a commit answers, and the records are there."""
    body = {"producer_group": service.new_group("publish"), "messages": [service.message(value=str(n)) for n in (1, 2)]}
    answer = service.api.post("/v1/messages", body)
    published = answer.json()
    assert (answer.status_code, published["state"], published["resolved_by"]) == (200, "COMMITTED", "producer")
    assert answer.headers["location"] == f"/v1/transactions/{published['transaction_id']}"
    assert len(published["receipts"]) == 2
    assert {record.value for record in service.read([published["transaction_id"]])} == {b"1", b"2"}


def test_publish_by_lines(service: RunningService) -> None:
    """NDJSON here too, with the receipts of each line."""
    group = service.new_group("publines")
    documents = [
        {"producer_group": group, "messages": [{"topic": service.topics.line, "value": str(n)}]} for n in range(300)
    ]
    answer = service.api.http.post("/v1/messages/batch", content=lines_of(documents), headers=NDJSON)
    results = results_of(answer)
    assert {result["status"] for result in results} == {200}
    records = service.read([result["transaction_id"] for result in results], service.topics.line)
    assert len(records) == 300
    by_id = {record.transaction_id: record for record in records}
    for number, result in enumerate(results):
        record = by_id[result["transaction_id"]]
        assert (record.value, record.offset) == (b"%d" % number, result["receipts"][0]["offset"])


# --- several processes ---


def test_prepared_here_and_ended_there_is_never_unknown(service: RunningService) -> None:
    """The API is stateless: at once, both ways, 100 times, never a 404."""

    def chain(number: int) -> list[int]:
        here, there = (service.api, service.other) if number % 2 else (service.other, service.api)
        statuses = []
        for _ in range(13):
            transaction_id = service.prepare("both-ways", at=here)
            statuses.append(there.get(f"/v1/transactions/{transaction_id}").status_code)
            statuses.append(there.post(f"/v1/transactions/{transaction_id}/commit").status_code)
            statuses.append(here.get(f"/v1/transactions/{transaction_id}").json()["state"])
        return statuses

    chains = at_once(8, chain)
    assert [status for statuses in chains for status in statuses] == [200, 200, "COMMITTED"] * 104


def test_group_made_here_is_known_there(service: RunningService) -> None:
    """A process that makes no groups knows at once those that others make."""
    for _ in range(5):
        group = service.new_group("spread")
        service.put_group(group)
        service.prepare(group, at=service.strict)
