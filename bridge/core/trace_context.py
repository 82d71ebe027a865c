"""The trace that a prepare belongs to, kept as two headers of its messages. Source: W3C Trace Context, level 1.

What is invalid is dropped, never an error.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bridge.core.message import Header, Message

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
NO_TRACE: Sequence[Header] = ()
TRACE_HEADERS = frozenset({TRACEPARENT, TRACESTATE})
_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,100})?")
_PARENT_BYTES = 55  # of version 00, which has no more parts
_MEMBER = re.compile(
    rb"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=[ -+\--<>-~]{1,256}"
)
_MOST_MEMBERS, _MOST_STATE_BYTES, _LONG_MEMBER_BYTES = 32, 512, 128


def read_trace(parents: Sequence[bytes], states: Sequence[bytes] = ()) -> Sequence[Header]:
    """The headers of a trace, from the values that were given; none if they are not valid."""
    parent = parents[0].strip(b" \t") if len(parents) == 1 else b""
    if _PARENT.fullmatch(parent) is None or (parent.startswith(b"00") and len(parent) > _PARENT_BYTES):
        return ()
    state = _read_state(b",".join(states)) if states else b""
    return ((TRACEPARENT, parent), (TRACESTATE, state)) if state else ((TRACEPARENT, parent),)


def find_trace(headers: Sequence[Header]) -> Sequence[Header]:
    """The trace that a message's headers name, if it can be passed on as it is."""
    if not headers:
        return ()
    parents, states = (
        [value or b"" for name, value in headers if name == wanted] for wanted in (TRACEPARENT, TRACESTATE)
    )
    return read_trace(parents, states)


def find_common_trace(traces: Sequence[Sequence[Header]]) -> Mapping[str, str]:
    """The trace as headers of a call, if all that it is about have the same one."""
    first = traces[0] if traces else ()
    if not first or any(trace != first for trace in traces):
        return {}
    return {name: (value or b"").decode() for name, value in first}


def add_trace(messages: Sequence[Message], trace: Sequence[Header]) -> list[Message]:
    """The messages with these headers, behind their own; one that names a trace itself stays as it is."""
    return [
        message
        if any(name == TRACEPARENT for name, _ in message.headers)
        else replace(message, headers=[*[h for h in message.headers if h[0] != TRACESTATE], *trace])
        for message in messages
    ]


def _read_state(raw: bytes) -> bytes:
    members = [member for part in raw.split(b",") if (member := part.strip(b" \t"))]
    keys = {member.partition(b"=")[0] for member in members}
    is_valid = len(keys) == len(members) <= _MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))
    if is_valid and len(b",".join(members)) > _MOST_STATE_BYTES:  # the long ones go first, then the oldest
        members = [member for member in members if len(member) <= _LONG_MEMBER_BYTES]
        while len(b",".join(members)) > _MOST_STATE_BYTES:
            members.pop()
    return b",".join(members) if is_valid else b""
