"""Spans of a bridge that runs, as a collector gets them: OTLP over HTTP, decoded by OpenTelemetry's own schema."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.bridge_process import Bridge, BridgeProcess, check_endpoint, create_topics, wait_until

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID[::-1]}-{SPAN_ID}-00"}
SOON = {"transaction_timeout_seconds": 1, "interval_seconds": 1}


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """Its address, and all spans that came."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """No line for each."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()


def transact(process: BridgeProcess, topic: str, trace: dict[str, str], *, is_committed: bool = True) -> str:
    """One transaction; the other half of it too, or it is left to a check."""
    body = {"producer_group": "shop", "messages": [{"topic": topic, "key": "k", "value": "v"}]}
    prepared = process.http.post("/v1/transactions", json=body, headers=trace)
    assert prepared.status_code == 201, prepared.text
    transaction_id = str(prepared.json()["transaction_id"])
    if is_committed:
        path = f"/v1/transactions/{transaction_id}/commit"
        assert process.http.post(path, json={}, headers=trace).status_code == 200
    return transaction_id


def test_collector_gets_what_sampled_transactions_went_through(kafka: str, tmp_path: Path) -> None:
    """Requests in the caller's trace; what followed is linked to it. The last ones come as the process ends."""
    with collector() as (url, spans), check_endpoint() as endpoint:
        settings = {"OUTBOX_BRIDGE_TRACES__EXPORT": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        bridge = Bridge.create(kafka, tmp_path, **settings)
        topic = f"{bridge.prefix}orders"
        create_topics(kafka, {topic: 1})
        with bridge.serve() as process:
            group = {"endpoints": [{"url": endpoint.url}], "check": SOON}
            assert process.http.put("/v1/producer-groups/shop", json=group).status_code == 201
            committed = transact(process, topic, SAMPLED)
            transact(process, topic, UNSAMPLED)
            rescued = transact(process, topic, SAMPLED, is_committed=False)
            endpoint.answers[rescued] = "COMMIT"
            path = f"/v1/transactions/{rescued}"
            wait_until(lambda: process.get(path).json()["state"] == "COMMITTED", 60, "it is rescued")
            assert process.stop() == 0
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    requests = by_name["POST /v1/transactions"] + by_name["POST /v1/transactions/{transaction_id}/commit"]
    assert len(requests) == 3
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in requests} == {(TRACE_ID, SPAN_ID)}
    later = by_name["settle"] + by_name[f"publish {topic}"] + by_name["check"]
    assert {(link.trace_id.hex(), link.span_id.hex()) for span in later for link in span.links} == {(TRACE_ID, SPAN_ID)}
    published = [
        attribute.value.string_value
        for span in by_name[f"publish {topic}"]
        for attribute in span.attributes
        if attribute.key == "outbox_bridge.transaction_id"
    ]
    assert sorted(published) == sorted([committed, rescued])


def test_collector_that_hangs_holds_up_nobody(kafka: str, tmp_path: Path) -> None:
    """It takes connections and says nothing; spans are dropped, and the process ends when it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {
            "OUTBOX_BRIDGE_TRACES__EXPORT": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BSP_MAX_QUEUE_SIZE": "16",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        }
        bridge = Bridge.create(kafka, tmp_path, **settings)
        topic = f"{bridge.prefix}orders"
        create_topics(kafka, {topic: 1})
        with bridge.serve() as process:
            for _ in range(50):
                transact(process, topic, SAMPLED)
            assert process.stop() == 0
