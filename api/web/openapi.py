"""How one route is described: what goes in, what comes out, and every problem it can answer with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import Struct
from starlette.responses import JSONResponse, PlainTextResponse

from api.web.guard import MARK
from api.web.problems import PROBLEM_MEDIA_TYPE, PROBLEMS, Problem, problem_members

Json = dict[str, Any]

COMPONENT = "#/components/schemas/{name}"
NDJSON = "application/x-ndjson"
_INT32 = 2**31 - 1

HEALTH, OPERATORS, GROUPS = "health", "operators", "producer groups"  # tags of operations

# Of any request; of any but those about health; of any with a body.
_EVERY = (
    "malformed-request",
    "unauthenticated",
    "forbidden",
    "request-timeout",
    "uri-too-long",
    "headers-too-large",
    "invalid-request",
    "internal",
)
_SERVED = ("not-acceptable", "rate-limited", "unavailable")
_BODY = ("malformed-json", "unsupported-media-type", "body-too-large")

# What a message can be refused for.
MESSAGE_PROBLEMS = (
    "illegal-topic",
    "reserved-topic",
    "unknown-topic",
    "unknown-partition",
    "invalid-timestamp",
    "message-too-large",
    "unknown-producer-group",
    "idempotency-key-reused",
    "given-up",
    "outcome-unknown",
)
END_PROBLEMS = (
    "unknown-transaction",
    "producer-group-mismatch",
    "already-resolved",
    "body-expired",
    "given-up",
    "outcome-unknown",
)


@dataclass(frozen=True, slots=True)
class Body:
    """A request body. `lines`: the struct of one line, where NDJSON is taken too."""

    struct: type[Struct]
    is_required: bool = True
    examples: Mapping[str, object] = field(default_factory=dict)
    lines: type[Struct] | None = None


class Merged(NamedTuple):
    """One schema for answers that differ, of which each has the members in `required`. Most generated clients read all
    successful answers of a call as that of its lowest status, and would refuse the others."""

    name: str
    meaning: str
    structs: Sequence[type[Struct]]
    required: Sequence[str]

    def make_schema(self, schemas: Json) -> Json:
        """The members of all, of which the first that has one describes it."""
        properties: Json = {}
        for struct in reversed(self.structs):
            properties |= schemas[struct.__name__]["properties"]
        return {
            "title": self.name,
            "description": self.meaning,
            "type": "object",
            "properties": properties,
            "required": list(self.required),
        }


@dataclass(frozen=True, slots=True)
class Operation:
    """A route's description. `answers`: what and why by status; a struct, several as one, or plain text."""

    tag: str
    answers: Mapping[int, tuple[type[Struct] | Merged | None, str]]
    problems: Sequence[str] = ()
    body: Body | None = None
    parameters: Sequence[Json] = ()
    media_types: Sequence[str] = ("application/json",)
    headers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def arguments(self) -> Json:
        """Arguments of FastAPI's routes."""
        return {
            "tags": [self.tag],
            "status_code": min(self.answers),
            "responses": self._answer_responses() | self._problem_responses(),
            "openapi_extra": self._extra(),
            "response_class": JSONResponse if "application/json" in self.media_types else PlainTextResponse,
        }

    def slugs(self) -> list[str]:
        """Every problem it can answer with."""
        if self.tag == HEALTH:
            return list(_EVERY)
        return [*self.problems, *_EVERY, *_SERVED, *(_BODY if self.body else ())]

    def _extra(self) -> Json:
        extra: Json = {"parameters": [*self.parameters, _REQUEST_ID]}
        if self.body is not None:
            if not self.body.is_required:
                extra["parameters"].append(_MARK)
            content: Json = {"application/json": {"schema": reference(self.body.struct)}}
            if self.body.examples:
                content["application/json"]["examples"] = {
                    name: {"value": value} for name, value in self.body.examples.items()
                }
            if self.body.lines is not None:
                content[NDJSON] = {"schema": reference(self.body.lines)}
            extra["requestBody"] = {"required": self.body.is_required, "content": content}
        return extra

    def _answer_responses(self) -> dict[int | str, Json]:
        found: dict[int | str, Json] = {}
        for status, (struct, meaning) in self.answers.items():
            schema = _answer_schema(struct)
            content = {kind: {"schema": schema} for kind in self.media_types}
            if self.body is not None and self.body.lines is not None:
                content[NDJSON] = {"schema": {"$ref": COMPONENT.format(name="BatchItem")}}
            headers = {"X-Request-Id": _header("Id of the request."), **_headers(self.headers.get(status, {}))}
            found[status] = {"description": meaning, "content": content, "headers": headers}
        return found

    def _problem_responses(self) -> dict[int | str, Json]:
        by_status: dict[int | str, Json] = {}
        for slug in dict.fromkeys(self.slugs()):
            kind = PROBLEMS[slug]
            known = by_status.setdefault(kind.status, _problem_response())
            known["content"][PROBLEM_MEDIA_TYPE]["examples"][slug] = {"summary": kind.title, "value": _example(slug)}
            known["description"] += f"{'; ' if known['description'] else ''}`{slug}`: {kind.title}. {kind.remedy}"
            if kind.status in {429, 503}:
                known["headers"]["Retry-After"] = _header("Seconds.")
        return by_status


def reference(struct: type[Struct]) -> Json:
    """A reference to a struct's schema."""
    return {"$ref": COMPONENT.format(name=struct.__name__)}


def path_parameter(name: str, meaning: str, example: str, pattern: str) -> Json:
    """A part of the path."""
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "description": meaning, "schema": schema, "example": example}


def query_parameter(name: str, meaning: str, schema: Json) -> Json:
    """A parameter after the question mark."""
    return {"name": name, "in": "query", "required": False, "description": meaning, "schema": schema}


def header_parameter(name: str, meaning: str, schema: Json) -> Json:
    """A header of the request."""
    return {"name": name, "in": "header", "required": False, "description": meaning, "schema": schema}


TRANSACTION_ID = path_parameter(
    "transaction_id", "Id of a transaction.", "0206k8e9s5ta7vo3q1m4c8b2h6dg", "^[0-9a-v]{27}[048cgkos]$"
)
GROUP = path_parameter("group", "Name of a producer group.", "orders", "^[A-Za-z0-9._-]{1,120}$")
WAIT = query_parameter(
    "wait_seconds", "How long to wait.", {"type": "number", "minimum": 0, "maximum": 10, "default": 10}
)
PREFER = header_parameter(
    "Prefer", "`respond-async`: 202 as soon as the end is durable.", {"type": "string", "examples": ["respond-async"]}
)
IDEMPOTENCY_KEY = header_parameter(
    "Idempotency-Key", "The same as `idempotency_key` in the body.", {"type": "string", "maxLength": 202}
)
FIRST_TRY = header_parameter(
    "Outbox-First-Try",
    "Says that the idempotency keys were made for this very request, which is not a repeat: then nothing is looked up. "
    "Its value: the last `Outbox-Kafka-Time` of this bridge, plus the milliseconds since that answer by a clock that "
    "is never set, as of before this request is sent; 0 if there is none. Any successful answer to such a request "
    "has that header.",
    {"type": "integer", "minimum": 0},
)
TRACE = header_parameter(
    "traceparent",
    "The trace (W3C) that consumers and check endpoints go on with, with `tracestate`: kept as headers of all messages "
    "that have none. What is not valid is dropped.",
    {"type": "string", "examples": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]},
)
KAFKA_TIME = "With `Outbox-First-Try`: Kafka's time in milliseconds."
LIMIT = query_parameter("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 500, "default": 100})
CURSOR = query_parameter("cursor", "`next` of the page before.", {"type": "string", "minLength": 1})

_MARK = header_parameter(
    MARK,
    "Any value. Takes the place of `Content-Type: application/json` where there is no body: a page of another site "
    "cannot send either of them.",
    {"type": "string", "examples": ["1"]},
)
_REQUEST_ID = header_parameter(
    "X-Request-Id",
    "Becomes the id of the request if it is 1..200 characters of A-Z a-z 0-9 . _ : -; otherwise the bridge makes one.",
    {"type": "string"},
)


def for_clients(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same, said so that generators of clients make good code of it.

    Integers have a size: Java's are of 32 bits otherwise, and offsets are larger. Defaults are told in words:
    TypeScript takes a member that has one as always there, and asks for it in requests. Pairs have a schema for any of
    their members: half of the generators do not know `prefixItems`, and stop at `items: false`. Of a list or an object
    only the list is told, and of words or numbers the words: Java's code for both cannot be compiled, or not run.
    """
    if isinstance(schema, list):
        return [for_clients(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: for_clients(value) for name, value in schema.items()}
    if shown.get("type") == "integer":
        shown.setdefault("format", "int32" if shown.get("maximum", _INT32 + 1) <= _INT32 else "int64")
    words = [word for word in shown.get("enum", ()) if isinstance(word, str)]
    if words:
        shown |= {"type": "string", "enum": words}
    kinds = {one.get("type"): one for one in shown.get("anyOf", ())}
    if kinds.keys() >= {"array", "object"}:
        shown |= kinds["array"]
        del shown["anyOf"]
    if "prefixItems" in shown:
        shown["items"] = next(one for one in shown["prefixItems"] if "anyOf" in one)  # the other one is part of it
    default = shown.pop("default", None)
    if isinstance(default, str | int | float):
        text = f"Default: `{json.dumps(default)}`."
        shown["description"] = f"{shown['description']} {text}" if "description" in shown else text
    return shown


def _answer_schema(struct: type[Struct] | Merged | None) -> Json:
    if struct is None:
        return {"type": "string"}
    return {"$ref": COMPONENT.format(name=struct.name)} if isinstance(struct, Merged) else reference(struct)


def _header(meaning: str) -> Json:
    return {"description": meaning, "schema": {"type": "string"}}


def _headers(meanings: Mapping[str, str]) -> Json:
    return {name: _header(meaning) for name, meaning in meanings.items()}


def _problem_response() -> Json:
    return {
        "description": "",
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": COMPONENT.format(name="ProblemAnswer")}, "examples": {}}},
        "headers": {"X-Request-Id": _header("Id of the request.")},
    }


def _example(slug: str) -> Json:
    kind = PROBLEMS[slug]
    errors = (("/messages/0/topic", "expected `string`, got `integer`"),) if slug == "invalid-request" else ()
    retry_after_s = 1 if kind.status in {429, 503} else None
    return problem_members(
        Problem(kind, kind.title, errors=errors, retry_after_s=retry_after_s), "6f1c0f5e0a8b4c55a1f0d7a5b2f3c4d5"
    )
