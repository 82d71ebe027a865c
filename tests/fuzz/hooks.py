"""What schemathesis cannot know by itself: how NDJSON is written and read."""

import json
from typing import Any

import schemathesis

NDJSON = "application/x-ndjson"


@schemathesis.serializer(NDJSON)
def write_lines(ctx: Any, value: Any) -> bytes:
    """The document of one line, twice."""
    return 2 * (json.dumps(value).encode() + b"\n")


@schemathesis.deserializer(NDJSON)
def read_lines(ctx: Any, response: Any) -> Any:
    """The last line; the schema is that of one."""
    lines = response.content.splitlines()
    if not lines:
        raise ValueError("no line at all")
    return json.loads(lines[-1])


@schemathesis.hook
def filter_case(ctx: Any, case: Any) -> bool:
    """Not those that are wrong only because of a header nobody knows: HTTP lets everybody send such (RFC 9110, 5.1)."""
    return "x-schemathesis-unknown-property" not in (case.headers or {})
