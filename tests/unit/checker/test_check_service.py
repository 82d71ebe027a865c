"""The checker as a whole: who is asked when, and what becomes of the answers."""

from datetime import UTC, datetime

import pytest
import structlog
from msgspec import structs
from standardwebhooks.webhooks import Webhook

from bridge.core.check_rules import CheckCalls, CheckTimes
from bridge.core.record import EndRecord, Resolution, Source
from bridge.core.transaction import MAX_CHECKS, MAX_LIFE, NO_ENDPOINT
from bridge.store.message_store import PutStatus
from checker.call import FIRST_BYTES, EndpointCall
from checker.service import add_notes
from tests.support.check_fakes import Response
from tests.unit.checker.world import FIRST_MS, SECRET, World, hanging, saying, sending

A, B, C = "https://a.example/", "https://b.example/", "https://c.example/"
HOUR = 3_600_000


async def test_answer_becomes_an_end_record_of_its_queue(world: World) -> None:
    """Asked when due, not before; the answer is in the journal with all that the timeline shows."""
    world.add_group("shop", A + "check?token=secret")
    transaction = world.prepare("shop")
    await world.pass_ms(FIRST_MS - 1)
    assert world.calls == []
    await world.pass_ms(1_000)
    (end,) = world.ends()
    assert end == EndRecord(
        transaction.transaction_id,
        Resolution.COMMIT,
        Source.CHECK,
        end.born_ms,
        group="shop",
        check_number=1,
        endpoint=A + "check",
        status=200,
        latency_ms=0,
    )
    assert world.service.counts.answered == {"COMMIT": 1}


async def test_answer_goes_to_the_queue_of_its_transaction(world: World) -> None:
    """One call may be about several queues."""
    world.add_group("shop", A)
    world.take_queue(3)
    for queue_id in (0, 3, 3):
        world.prepare("shop", queue_id)
    await world.pass_ms(7_000)
    partitions = world.memory.cluster.log.topics[world.memory.topics.half].partitions
    assert [len(p.records) for p in partitions] == [1, 0, 0, 2]
    assert len(world.calls) == 1


async def test_call_is_signed_and_has_the_body_of_the_contract(world: World) -> None:
    """Any receiver of the standard verifies it; the nonce carries the number."""
    world.add_group("shop", A)
    transaction = world.prepare("shop", value=b'{"total": 1.10}')
    await world.pass_ms(7_000)
    (seen,) = world.calls
    body = seen.body.decode()
    timestamp = int(seen.headers["webhook-timestamp"])
    signature = Webhook(SECRET).sign(seen.headers["webhook-id"], _utc(timestamp), body)
    assert seen.headers["webhook-signature"] == signature
    assert timestamp == seen.at_ms // 1000
    (check,) = seen.checks
    assert check["transaction_id"] == transaction.transaction_id
    assert check["check_number"] == 1
    assert str(check["nonce"]).startswith("1-")
    assert '"value":{"total": 1.10}' in body


async def test_hole_7_nothing_happens_inside_the_immunity_time(world: World) -> None:
    """No round, so no check is used up, however long the immunity."""
    world.add_group("shop", A)
    world.prepare("shop", delay_ms=HOUR)
    await world.pass_ms(HOUR - 1)
    assert (world.calls, world.ends(), world.directory.rounds) == ([], [], [])
    await world.pass_ms(1_000)
    assert world.calls[0].checks[0]["check_number"] == 1


async def test_hole_6_a_round_without_endpoint_uses_nothing_up(world: World) -> None:
    """Many rounds later the number is still 1; the first one is an alert, the others are not."""
    world.add_group("shop")
    with structlog.testing.capture_logs() as logs:
        transaction = world.prepare("shop")
        await world.pass_ms(5 * 30_000)
    assert world.ends() == []
    assert world.failures() == ["no-endpoint"] * 5
    assert world.service.counts.groups_without_endpoint == {"shop"}
    alerts = [log for log in logs if log["log_level"] == "error"]
    assert alerts == [{"event": "producer_group_without_endpoint", "group": "shop", "log_level": "error"}]
    world.add_group("shop", A)
    await world.pass_ms(30_000)
    assert [end.check_number for end in world.ends()] == [1]
    assert world.service.counts.groups_without_endpoint == set()
    assert world.directory.rounds[0].transaction_id == transaction.transaction_id


async def test_unknown_group_has_no_endpoint(world: World) -> None:
    """A group nobody created is asked nothing and forgotten nothing."""
    world.prepare("nobody")
    await world.pass_ms(7_000)
    assert world.failures() == ["no-endpoint"]


async def test_without_endpoint_parked_at_life_end(world: World) -> None:
    """After at least one round, with the reason."""
    world.add_group("shop", times=CheckTimes(max_lifetime_ms=60_000))
    transaction = world.prepare("shop")
    await world.pass_ms(59_999)
    assert world.owners[0].parked == {}
    await world.pass_ms(1_000)
    assert world.owners[0].parked == {transaction.transaction_id: NO_ENDPOINT}
    assert world.service.counts.parked == 1


async def test_old_ones_are_asked_once_before_they_are_parked(world: World) -> None:
    """All down for two days: nobody is parked unasked; MAX_LIFE, for there was an endpoint."""
    world.add_group("shop", A)
    world.serve(A, sending(500))
    old = world.make("shop")
    world.clock.shift_wall_clock(48 * HOUR)
    owner = world.take_queue(0, [old])
    await world.pass_ms(1_000)
    assert len(world.calls) == 1
    assert owner.parked == {old.transaction_id: MAX_LIFE}


async def test_old_ones_that_are_answered_are_not_parked(world: World) -> None:
    """The answer decides."""
    world.add_group("shop", A)
    old = world.make("shop")
    world.clock.shift_wall_clock(48 * HOUR)
    owner = world.take_queue(0, [old])
    await world.pass_ms(1_000)
    world.end(old)
    await world.pass_ms(HOUR)
    assert (len(world.ends()), owner.parked) == (1, {})


async def test_after_the_maximum_of_answers_it_is_parked(world: World) -> None:
    """15 answers UNKNOWN, numbered 1 to 15; then MAX_CHECKS, without a further call."""
    world.add_group("shop", A)
    world.serve(A, saying("UNKNOWN"))
    transaction = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 300)
    for _ in range(15):
        transaction = world.count(transaction)
        await world.pass_ms(30_300)
    assert [end.check_number for end in world.ends()] == list(range(1, 16))
    assert {end.resolution for end in world.ends()} == {Resolution.UNKNOWN}
    assert len(world.calls) == 15
    assert world.owners[0].parked == {transaction.transaction_id: MAX_CHECKS}


async def test_nobody_is_asked_while_the_settler_lags(world: World) -> None:
    """The queue is read to its end as noted after the due time, or nothing happens."""
    world.add_group("shop", A)
    world.owners[0].is_lagging = True
    world.prepare("shop")
    await world.pass_ms(60_000)
    assert world.calls == []
    assert world.owners[0].notes > 0
    world.owners[0].is_lagging = False
    await world.pass_ms(1_000)
    assert len(world.calls) == 1


async def test_wait_for_the_reader_begins_anew_once_the_queue_was_read(world: World) -> None:
    """A long wait that ended with a parking makes no later check late."""
    world.add_group("shop", A)
    world.owners[0].is_lagging = True
    old = world.prepare("shop")
    world.service.prepared(0, [structs.replace(old, check_times=15)], world.clock.monotonic_ms())
    await world.pass_ms(60_000)
    world.owners[0].is_lagging = False
    await world.pass_ms(1_000)
    assert world.owners[0].parked == {old.transaction_id: MAX_CHECKS}
    world.end(old)
    due_ms = world.prepare("shop").next_due_ms
    await world.pass_ms(2 * FIRST_MS)
    assert [seen.at_ms - due_ms for seen in world.calls] == [20]


async def test_no_check_after_a_resolution(world: World) -> None:
    """What ended before its time is never asked about."""
    world.add_group("shop", A)
    first, second = world.prepare("shop"), world.prepare("shop")
    await world.pass_ms(FIRST_MS - 1)
    world.end(first)
    await world.pass_ms(1_000)
    assert [seen.ids for seen in world.calls] == [[second.transaction_id]]


async def test_next_endpoint_in_the_same_round(world: World) -> None:
    """Round robin, the next one on failure; the id is the round's, the timestamp the attempt's."""
    world.add_group("shop", A, B, C)
    world.serve(A, hanging)
    world.serve(B, sending(503))
    world.prepare("shop")
    await world.pass_ms(12_000)
    assert [seen.url for seen in world.calls] == [A, B, C]
    assert len({seen.headers["webhook-id"] for seen in world.calls}) == 1
    times = [int(seen.headers["webhook-timestamp"]) for seen in world.calls]
    assert times[1] - times[0] == 5
    assert [end.endpoint for end in world.ends()] == [C]
    assert world.directory.rounds == []


async def test_turns_go_round(world: World) -> None:
    """Rounds begin with one endpoint after the other, each with an id of its own."""
    world.add_group("shop", A, B)
    for _ in range(4):
        world.prepare("shop")
        await world.pass_ms(7_000)
    assert [seen.url for seen in world.calls] == [A, B, A, B]
    assert len({seen.headers["webhook-id"] for seen in world.calls}) == 4


async def test_first_bytes_of_an_answer_without_success_are_kept_for_people(world: World) -> None:
    """As text that a database and a terminal take; of those that may quote messages nothing is shown."""
    world.add_group("shop", A)
    world.serve(A, sending(404, b"no\x00\x1b[2J such\r\n\xffpath" + b"!" * 1_000))
    world.prepare("shop")
    await world.pass_ms(8_000)
    (told,) = world.directory.rounds
    assert (told.failure, told.said[:20]) == ("status 404", "no [2J such \ufffdpath!!!")
    assert len(told.said) <= FIRST_BYTES
    for status, failure in ((200, "bad-answer"), (500, "status 500"), (422, "status 422")):
        world.serve(A, sending(status, b"<html>"))
        await world.pass_ms(60_000)
        assert {one.said for one in world.directory.rounds if one.failure == failure} == {""}


async def test_answer_that_may_quote_the_query_of_its_url_is_not_shown(world: World) -> None:
    """Where nothing is found, some frameworks say for what, whole or cut off; a query is shown nowhere."""
    secret = f"{A}?token=s3cret"
    world.add_group("shop", secret)
    world.serve(secret, sending(404, b'{"message":"Route POST:/checks?token=s3cret not found"}'))
    world.prepare("shop")
    await world.pass_ms(8_000)
    (told,) = world.directory.rounds
    assert (told.endpoint, told.failure, told.said) == (A, "status 404", "")


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (500, b"", "status 500"),
        (404, b"", "status 404"),
        (204, b"", "status 204"),
        (302, b"", "redirect 302"),
        (410, b"", "gone"),
        (429, b"", "rate-limited"),
        (200, b"<html>", "bad-answer"),
        (200, b"", "bad-answer"),
        (200, b'{"resolutions":[]}', "left-out"),
        (200, b" " * 65_737, "too-large"),
    ],
)
async def test_anything_but_an_answer_uses_nothing_up(world: World, status: int, body: bytes, word: str) -> None:
    """Written down with its word and status; asked again an interval later with the same number."""
    world.add_group("shop", A)
    world.serve(A, sending(status, body))
    world.prepare("shop")
    await world.pass_ms(8_000)
    assert world.failures() == [word]
    assert world.service.counts.unanswered == {word.partition(" ")[0]: 1}
    world.serve(A, saying("COMMIT"))
    world.add_group("shop", A)
    await world.pass_ms(90_000)
    assert {end.check_number for end in world.ends()} == {1}


async def test_gone_endpoint_is_left_alone_before_the_directory_has_heard(world: World) -> None:
    """At once, though the directory hears of it only when its database is back."""
    world.add_group("shop", A, B)
    world.serve(A, sending(410))
    world.serve(B, sending(500))
    world.directory.is_down = True
    world.prepare("shop")
    await world.pass_ms(45_000)
    assert [call.url for call in world.calls] == [A, B, B]
    world.directory.is_down = False
    await world.pass_ms(60_000)
    reasons = {endpoint.url: endpoint.disabled_reason for endpoint in world.directory.groups["shop"].endpoints}
    assert reasons == {A: "410 Gone", B: None}
    assert [call.url for call in world.calls].count(A) == 1


async def test_end_of_a_check_says_how_long_the_answer_took(world: World) -> None:
    """Operators see it in the timeline."""
    answer = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(250)
        return await answer(call)

    world.add_group("shop", A)
    world.serve(A, slow)
    world.prepare("shop")
    await world.pass_ms(8_000)
    assert [end.latency_ms for end in world.ends()] == [250]


async def test_left_out_are_asked_about_at_the_next_endpoint(world: World) -> None:
    """Only they; what was answered stays answered."""
    world.add_group("shop", A, B)
    world.serve(A, saying("COMMIT", only=2))
    world.serve(B, saying("ROLLBACK", only=1))
    transactions = [world.prepare("shop") for _ in range(4)]
    await world.pass_ms(8_000)
    assert [len(seen.ids) for seen in world.calls] == [4, 2]
    assert [end.resolution.name for end in world.ends()] == ["COMMIT", "COMMIT", "ROLLBACK"]
    (missing,) = world.directory.rounds
    assert (missing.failure, missing.endpoint) == ("left-out", B)
    assert missing.transaction_id in {t.transaction_id for t in transactions}


async def test_next_try_after_the_interval_with_jitter(world: World) -> None:
    """What failed together does not come back together."""
    world.add_group("shop", A)
    world.serve(A, sending(500))
    world.jitter = 0.5
    world.prepare("shop")
    await world.pass_ms(120_000)
    gaps = [later.at_ms - seen.at_ms for seen, later in zip(world.calls, world.calls[1:], strict=False)]
    assert all(33_000 <= gap <= 33_300 for gap in gaps)
    assert len(gaps) == 3


async def test_unknown_is_an_answer(world: World) -> None:
    """It is in the journal and asks again when the settler says, with the next number."""
    world.add_group("shop", A)
    world.serve(A, saying("UNKNOWN"))
    transaction = world.prepare("shop")
    await world.pass_ms(7_000)
    world.count(transaction)
    await world.pass_ms(29_000)
    assert len(world.calls) == 1
    await world.pass_ms(1_500)
    assert [end.check_number for end in world.ends()] == [1, 2]


async def test_answered_is_not_asked_again_before_the_settler_speaks(world: World) -> None:
    """But it is not forgotten either if it never does."""
    world.add_group("shop", A)
    world.prepare("shop")
    await world.pass_ms(FIRST_MS + 29_000)
    assert len(world.calls) == 1
    await world.pass_ms(2_000)
    assert [seen.checks[0]["check_number"] for seen in world.calls] == [1, 1]


@pytest.mark.parametrize("failure", [PutStatus.REFUSED, PutStatus.OUTCOME_UNKNOWN])
async def test_answer_that_was_not_appended_is_asked_for_again(world: World, failure: PutStatus) -> None:
    """With the same number, soon."""
    world.add_group("shop", A)
    world.store.fail_with = failure
    world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    assert world.ends() == []
    world.store.fail_with = None
    await world.pass_ms(6_000)
    assert [end.check_number for end in world.ends()] == [1]


async def test_late_answer_is_ignored(world: World) -> None:
    """After the deadline the connection is closed; the transaction is asked about again."""
    world.add_group("shop", A, calls=CheckCalls(call_timeout_ms=1_000))
    commit = saying("COMMIT")

    async def late(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(1_500)
        return await commit(call)

    world.serve(A, late)
    world.prepare("shop")
    await world.pass_ms(20_000)
    assert (world.ends(), world.failures()) == ([], ["timeout"])


async def test_ended_during_a_call_is_left_to_the_journal(world: World) -> None:
    """The answer is appended as usual: the first resolution in the queue wins."""
    world.add_group("shop", A)
    commit = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(1_000)
        return await commit(call)

    world.serve(A, slow)
    transaction = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    world.end(transaction)
    await world.pass_ms(1_000)
    assert len(world.ends()) == 1
    assert world.service.gauges() == (0, 0, 0, 0)


async def test_no_further_endpoint_is_asked_about_what_has_ended(world: World) -> None:
    """No check starts after a resolution, not within a round either."""
    world.add_group("shop", A, B)
    world.serve(A, hanging)
    ended, pending = world.prepare("shop"), world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    world.end(ended)
    await world.pass_ms(6_000)
    assert [seen.ids for seen in world.calls[1:]] == [[pending.transaction_id]]


async def test_in_flight_is_not_asked_twice(world: World) -> None:
    """Not even when the queue is taken anew, or an operator asks."""
    world.add_group("shop", A)
    world.serve(A, hanging)
    transaction = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    world.service.prepared(0, [transaction], world.clock.monotonic_ms())
    world.service.queue_released(0)
    world.take_queue(0, [transaction])
    await world.pass_ms(4_000)
    assert len(world.calls) == 1


async def test_released_queue_appends_what_was_in_flight(world: World) -> None:
    """And starts nothing more."""
    world.add_group("shop", A)
    commit = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(2_000)
        return await commit(call)

    world.serve(A, slow)
    world.prepare("shop")
    world.prepare("shop", delay_ms=20_000)
    await world.pass_ms(FIRST_MS + 500)
    world.service.queue_released(0)
    await world.pass_ms(60_000)
    assert (len(world.ends()), len(world.calls)) == (1, 1)
    assert world.service.gauges().pending == 0


def _utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def test_call_carries_the_trace_of_what_it_asks_about(world: World) -> None:
    """Where that is one trace; its headers hide none of the signature's."""
    world.add_group("shop", A)
    parents = [f"00-{n:032x}-{n:016x}-01".encode() for n in (1, 2)]
    world.prepare("shop", headers=(("traceparent", parents[0]), ("tracestate", b"a=1")))
    await world.pass_ms(7_000)
    for parent in parents:
        world.prepare("shop", headers=(("traceparent", parent),))
    await world.pass_ms(7_000)
    first, second = world.calls
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (parents[0].decode(), "a=1")
    assert first.headers.keys() - {"traceparent", "tracestate"} == second.headers.keys()


async def test_calls_of_several_processes_add_up(world: World) -> None:
    """As they note them for each other; what another version has noted otherwise is left out."""
    world.add_group("shop", A)
    world.serve(A, saying("COMMIT"))
    world.prepare("shop")
    await world.pass_ms(8_000)
    noted = world.service.note_calls()
    assert noted.keys() == {"shop"}
    together = add_notes([noted["shop"], [3, *noted["shop"][1:]], [7, 1, 2]])
    assert (together.in_flight, together.took.count) == (3, 2)
    assert together.took.counts == [2 * count for count in world.service.calls_of("shop").took.counts]
    assert add_notes([]).took.count == 0
