"""OpenTelemetry spans of what a sampled trace belongs to. Imported where they are exported only: it has an extra.

A request is part of its caller's trace. What follows later, perhaps minutes later, is linked to it.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from api.web.request import Asked
from bridge.core.message import Header
from bridge.core.transaction import TRACEPARENT, find_trace, is_sampled, read_trace
from bridge.store.message_store import LoadedHalf
from checker.call import CheckCaller, EndpointCall, EndpointReply

_FLUSH_S = 2.0
_MOST_LINKS = 128  # of a span, by OpenTelemetry's own limit


class Tracing:
    """SettleTracer and RequestTracer that make spans, which a thread of OpenTelemetry's exports and drops when late."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("outbox-bridge")

    def answered(self, route: str, method: str, status: int, seconds: float, asked: Asked) -> None:
        """A span of the caller's trace. Source: OpenTelemetry's conventions for HTTP servers."""
        trace = asked.find_trace()
        if not is_sampled(trace):
            return
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": route,
            "outbox_bridge.request_id": asked.request_id,
        }
        if status:
            attributes["http.response.status_code"] = status
        end_ns = time.time_ns()
        span = self._tracer.start_span(
            f"{method} {route}",
            set_span_in_context(NonRecordingSpan(_context_of(trace))),
            SpanKind.SERVER,
            attributes,
            start_time=end_ns - round(seconds * 1e9),
        )
        if status == 0 or status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def published(self, queue_id: int, halves: Sequence[LoadedHalf], duration_ms: int) -> None:
        """A span for the Kafka transaction, with one below it for each half message that has a sampled trace.

        Source: OpenTelemetry's conventions for messaging, producers that send in batches.
        """
        traced = [(half, trace) for half in halves if (trace := _trace_of(half))]
        if not traced:
            return
        end_ns = time.time_ns()
        start_ns = end_ns - duration_ms * 1_000_000
        links = [Link(_context_of(trace)) for _, trace in traced]
        settle = self._tracer.start_span(
            "settle",
            Context(),
            attributes={
                "messaging.system": "kafka",
                "messaging.batch.message_count": sum(half.half.message_count for half in halves),
                "outbox_bridge.queue_id": queue_id,
            },
            links=links[:_MOST_LINKS],
            start_time=start_ns,
        )
        within = set_span_in_context(settle, Context())
        for (half, _), link in zip(traced, links, strict=True):
            topics = sorted(half.topics)
            attributes = {
                "messaging.system": "kafka",
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.destination.name": ",".join(topics),
                "outbox_bridge.transaction_id": half.half.transaction_id,
                "outbox_bridge.producer_group": half.half.group,
            }
            name, kind = f"publish {topics[0]}" if len(topics) == 1 else "publish", SpanKind.PRODUCER
            self._tracer.start_span(name, within, kind, attributes, [link], start_ns).end(end_ns)
        settle.end(end_ns)

    def called(self, call: EndpointCall, reply: EndpointReply) -> None:
        """A span for a call of an endpoint. Source: OpenTelemetry's conventions for HTTP clients."""
        trace = read_trace([call.headers.get(TRACEPARENT, "").encode()])
        if not is_sampled(trace):
            return
        end_ns = time.time_ns()
        attributes: dict[str, str | int] = {"http.request.method": "POST", "url.full": reply.endpoint}
        if reply.status:
            attributes["http.response.status_code"] = reply.status
        if reply.failure is not None:
            attributes["error.type"] = reply.failure.value
        start_ns = end_ns - reply.latency_ms * 1_000_000
        links = [Link(_context_of(trace))]
        span = self._tracer.start_span("check", Context(), SpanKind.CLIENT, attributes, links, start_ns)
        if reply.failure is not None:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def follow(self, caller: CheckCaller) -> CheckCaller:
        """The same, with a span for each call."""
        return _TracedCaller(caller, self)

    async def close(self) -> None:
        """Exports what is left, for two seconds at most: a collector that hangs holds up nobody."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(done.set)

        Thread(target=shut_down, name="last-spans", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _FLUSH_S)


class _TracedCaller(CheckCaller):
    def __init__(self, caller: CheckCaller, tracing: Tracing) -> None:
        self._caller = caller
        self._tracing = tracing

    async def call(self, call: EndpointCall) -> EndpointReply:
        """As the caller does."""
        reply = await self._caller.call(call)
        self._tracing.called(call, reply)
        return reply

    async def close(self) -> None:
        """Closes the caller."""
        await self._caller.close()


def open_tracing() -> Tracing:
    """To the collector that the environment names, as OpenTelemetry's own variables say."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "outbox-bridge"}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def _trace_of(half: LoadedHalf) -> Sequence[Header]:
    """The trace of its first message that has one, if that is sampled. Headers are read as stored: most have none."""
    for message in [half.stored] if half.framed is None else half.framed:
        if trace := find_trace(message.headers):
            return trace if is_sampled(trace) else ()
    return ()


def _context_of(trace: Sequence[Header]) -> SpanContext:
    parent = trace[0][1] or b""
    return SpanContext(int(parent[3:35], 16), int(parent[36:52], 16), is_remote=True, trace_flags=TraceFlags(1))
