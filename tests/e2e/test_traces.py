"""The trace of whoever prepares reaches consumers and check endpoints: real processes on a real Kafka."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentelemetry import context, trace

from outbox import AsyncBridge, Bridge, Message
from outbox.hand_over import HttpHandOver
from outbox.relay import RelayConfig
from tests.support.bridge_process import check_endpoint, read_committed
from tests.support.outbox_world import OutboxWorld, Sent
from tests.support.running_service import Json, RunningService
from tests.support.sdk_twins import AwaitedSession, Session
from tests.support.user_database import UserDatabase

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT, STATE = f"00-{TRACE_ID:032x}-b7ad6b7169203331-00", "rojo=1,congo=2"
GIVEN = {"traceparent": PARENT, "tracestate": STATE}
KEPT = (("traceparent", PARENT.encode()), ("tracestate", STATE.encode()))


@contextmanager
def present_span() -> Iterator[None]:
    """The caller is inside this span."""
    state = trace.TraceState([("rojo", "1"), ("congo", "2")])
    span = trace.SpanContext(TRACE_ID, 0xB7AD6B7169203331, is_remote=False, trace_state=state)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
    try:
        yield
    finally:
        context.detach(token)


def prepare(service: RunningService, group: str, path: str = "/v1/transactions", **members: object) -> Json:
    """A call with the headers of a trace; twice, so that the second one goes the short way."""
    body = {"producer_group": group, "messages": [service.message(key="k", value="v")], **members}
    item = {"transactions": [body]} if path.endswith("batch") else body
    for _ in range(2):
        answer = service.api.post(path, item, headers=GIVEN)
        assert answer.status_code in {200, 201}, answer.text
    members_of: Json = answer.json()
    return members_of["results"][0] if path.endswith("batch") else members_of


def test_trace_is_published_and_asked_about(service: RunningService) -> None:
    """By each road, and with the check call of a transaction that nobody ends."""
    group = service.new_group("traced")
    with check_endpoint("COMMIT") as endpoint:
        service.put_known_group(group, [endpoint.url], transaction_timeout_seconds=1, interval_seconds=1, batch_size=1)
        ended = prepare(service, group)["transaction_id"]
        service.end(ended, "commit")
        ids = [
            ended,
            prepare(service, group, "/v1/messages")["transaction_id"],
            prepare(service, group, "/v1/transactions/batch")["transaction_id"],
            prepare(service, group, messages=[service.message(key="k", value=v) for v in "ab"])["transaction_id"],
        ]
        for transaction_id in ids:
            service.wait_state(transaction_id, "COMMITTED")
    records = service.read(ids)
    assert {record.headers[:2] for record in records} == {KEPT}
    assert len(records) == 5
    asked = [call.headers for call in endpoint.received]
    assert asked
    assert {(headers.get("traceparent"), headers.get("tracestate")) for headers in asked} == {(PARENT, STATE)}


def test_trace_of_the_message_itself_wins_and_what_is_invalid_is_dropped(service: RunningService) -> None:
    """And nothing is refused."""
    group, own = service.new_group("own"), [["traceparent", PARENT.replace("b7", "c7")]]
    first = service.prepare(group, service.message(key="k", value="v", headers=own))
    body = {"producer_group": group, "messages": [service.message(key="k", value="v")]}
    wrong = service.api.post("/v1/transactions", body, headers={"traceparent": PARENT.upper(), "tracestate": "a=1"})
    second = wrong.json()["transaction_id"]
    for transaction_id in (first, second):
        service.end(transaction_id, "commit")
    headers = {r.headers[:-1] for r in service.read([first, second])}
    assert headers == {(("traceparent", own[0][1].encode()),), ()}


async def test_span_of_the_caller_goes_with_what_he_sends(service: RunningService) -> None:
    """Of threads and of tasks; many in one request keep each their own."""
    group = service.new_group("span")
    with Bridge(service.api.url, group, record=Session()) as face, present_span():
        with face.transaction(Session()) as transaction:
            transaction.send(service.topics.orders, key="k", value="v")
        published = face.publish(Message(service.topics.orders, key="k", value="v"))
    async with AsyncBridge(service.api.url, group, record=AwaitedSession()) as waiting:
        with present_span():
            async with waiting.transaction(AwaitedSession()) as awaited:
                awaited.send(service.topics.orders, key="k", value="v")
        outside = await waiting.publish(Message(service.topics.orders, key="k", value="v"))
    assert transaction.result is not None
    assert awaited.result is not None
    traced = [transaction.result.transaction_id, published.transaction_id, awaited.result.transaction_id]
    assert {record.headers[:-1] for record in service.read(traced)} == {KEPT}
    assert {record.headers[:-1] for record in service.read([outside.transaction_id])} == {()}


def test_row_keeps_the_span_that_wrote_it(service: RunningService, tmp_path: Path) -> None:
    """The relay publishes later, elsewhere, in no span."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    world = OutboxWorld(UserDatabase("sqlite", url, url.replace("sqlite", "sqlite+aiosqlite", 1)))
    group = service.new_group("row")
    service.put_known_group(group)
    with present_span():
        world.enqueue(Sent(service.topics.line, b"traced", b"v", [("h", b"1")]))
    hand_over = HttpHandOver(service.api.url, group)
    relay = world.relay(hand_over, RelayConfig(min_delay_ms=1))
    while world.count()[0]:
        relay.run_once()
    hand_over.close()
    (record,) = [r for r in read_committed(service.bridge.kafka, [service.topics.line]) if r.key == b"traced"]
    assert record.headers[:3] == (("h", b"1"), *KEPT)


def test_message_that_fits_only_without_its_trace_goes_without(service: RunningService) -> None:
    """Its topic takes 1,048,588 bytes: tracing a caller must not make his calls fail."""
    group, large = service.new_group("full"), service.message(key="k", value="v" * 1_048_400)
    ids = [
        prepare(service, group, path, messages=[large])["transaction_id"]
        for path in ("/v1/transactions", "/v1/messages")
    ]
    service.end(ids[0], "commit")
    assert {record.headers[:-1] for record in service.read(ids)} == {()}
