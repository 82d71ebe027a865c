"""The trace that the caller is in, put into the headers of his messages. Source: W3C Trace Context, level 1."""

import sys
from collections.abc import Sequence

TraceHeaders = tuple[tuple[str, bytes | None], ...]
_PARENT, _STATE = "traceparent", "tracestate"


def add_trace(headers: Sequence[tuple[str, bytes | None]]) -> TraceHeaders:
    """The headers and, where they name no trace, OpenTelemetry's present span.

    It is not imported here: who has a span has done so.
    """
    given = tuple(headers)
    api = sys.modules.get("opentelemetry.trace")
    if api is None or any(name in {_PARENT, _STATE} for name, _ in given):
        return given
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return given
    given += ((_PARENT, f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}".encode()),)
    state: str = span.trace_state.to_header()
    return (*given, (_STATE, state.encode())) if state else given
