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
