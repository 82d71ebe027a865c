"""Spans as OpenTelemetry's own SDK records them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from api.tracing import Tracing
from bridge.core.message import Header, Message, StoredMessage
from bridge.core.record import HalfMessage
from bridge.core.record_codec import encode_half
from bridge.core.transaction import read_trace
from bridge.store.message_store import LoadedHalf
from checker.call import EndpointCall, EndpointReply, Failure

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01".encode()
UNSAMPLED = SAMPLED[:-2] + b"00"
OURS = (TRACE_ID, SPAN_ID)


@dataclass
class Request:
    """One whose trace is known."""

    parent: bytes
    request_id: str = "r1"

    def find_trace(self) -> Sequence[Header]:
        return read_trace([self.parent])


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


def loaded(number: int, *parents: bytes) -> LoadedHalf:
    """A half message with a message for each of these traces; an empty one is none."""
    topics = ["orders", "mails"]
    messages = [
        Message(t, b"k", b"v", [("traceparent", p)] if p else [], -1) for t, p in zip(topics, parents, strict=False)
    ]
    half = HalfMessage(f"t{number}", "shop", len(parents), 0, "orders" if len(parents) == 1 else "")
    record = encode_half(half, messages, "half", 0)
    return LoadedHalf.decode(half, StoredMessage(number, record.key, record.value, tuple(record.headers), 0))


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


@pytest.mark.parametrize(("status", "code"), [(201, StatusCode.UNSET), (503, StatusCode.ERROR), (0, StatusCode.ERROR)])
def test_request_is_a_span_below_its_callers(
    tracing: Tracing, exporter: InMemorySpanExporter, status: int, code: StatusCode
) -> None:
    """It took as long as the request did; one without an answer failed."""
    tracing.answered("/v1/transactions", "POST", status, 0.25, Request(SAMPLED))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == ("POST /v1/transactions", SpanKind.SERVER, code)
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == OURS
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time == 250_000_000
    assert (span.attributes or {})["outbox_bridge.request_id"] == "r1"
    assert (span.attributes or {}).get("http.response.status_code") == (status or None)


def test_what_is_published_is_linked_to_its_prepare(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    """Below one span for the Kafka transaction, in a trace of their own; whatever is not sampled has none."""
    several = loaded(4, b"", SAMPLED)
    tracing.published(3, [loaded(1, SAMPLED), loaded(2, UNSAMPLED), loaded(3, b""), several], 20)
    first, second, settle = exporter.get_finished_spans()
    assert (settle.name, settle.parent, links_of(settle)) == ("settle", None, {OURS})
    assert (settle.attributes or {})["messaging.batch.message_count"] == 5
    assert settle.context.trace_id != TRACE_ID
    for span, transaction_id in ((first, "t1"), (second, "t4")):
        assert span.parent == settle.context
        assert (span.kind, links_of(span)) == (SpanKind.PRODUCER, {OURS})
        assert (span.attributes or {})["outbox_bridge.transaction_id"] == transaction_id
    assert (first.name, second.name) == ("publish orders", "publish")
    assert (second.attributes or {})["messaging.destination.name"] == "mails,orders"


def test_check_is_linked_to_the_prepare_and_says_how_it_failed(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """As HTTP clients say it."""
    call = EndpointCall("http://shop/check?k=1", {"traceparent": SAMPLED.decode()}, b"", 1_000, 1_000)
    tracing.called(call, EndpointReply("http://shop/check", 30, 404, failure=Failure.STATUS))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent, links_of(span)) == ("check", SpanKind.CLIENT, None, {OURS})
    assert span.status.status_code is StatusCode.ERROR
    expected = {"url.full": "http://shop/check", "http.response.status_code": 404, "error.type": Failure.STATUS.value}
    assert expected.items() <= dict(span.attributes or {}).items()


@pytest.mark.parametrize("parent", [UNSAMPLED, b"", b"not a trace"])
def test_what_no_sampled_trace_belongs_to_has_no_spans(
    tracing: Tracing, exporter: InMemorySpanExporter, parent: bytes
) -> None:
    """Neither request nor publish nor check."""
    tracing.answered("/v1/transactions", "POST", 201, 0.1, Request(parent))
    tracing.published(0, [loaded(1, parent)], 1)
    call = EndpointCall("http://shop/check", {"traceparent": parent.decode()}, b"", 1_000, 1_000)
    tracing.called(call, EndpointReply("http://shop/check", 1, 200))
    assert exporter.get_finished_spans() == ()
