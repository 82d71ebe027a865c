"""Every request that must be refused, as data: used against the interface alone and against the whole service."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
MIB = 1024 * 1024
UNKNOWN_ID = "00" + "7" * 25 + "0"


@dataclass(frozen=True, slots=True)
class Facts:
    """What exists while the requests are made. The ids are of transactions of `group` in those states."""

    topic: str
    group: str
    prepared: str
    committed: str


@dataclass(frozen=True, slots=True)
class BadRequest:
    """A request and its problem. `{…}` in path and body stand for a fact; `pointer`: what `errors` must name."""

    name: str
    status: int
    code: str
    body: bytes | None = None
    path: str = "/v1/transactions"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: dict(JSON))
    pointer: str | None = None
    has: Mapping[str, str] = field(default_factory=dict)

    def fill_path(self, facts: Facts) -> str:
        """The path with facts in place."""
        return _fill(self.path, facts)

    def fill_body(self, facts: Facts) -> bytes | None:
        """The body with facts in place."""
        return None if self.body is None else _fill(self.body.decode("latin-1"), facts).encode("latin-1")


def _fill(text: str, facts: Facts) -> str:
    for name in ("topic", "group", "prepared", "committed"):
        text = text.replace(f"<{name}>", getattr(facts, name))
    return text.replace("<unknown>", UNKNOWN_ID)


def make_prepare(message: Mapping[str, Any] | None = None, **members: Any) -> bytes:
    """A prepare that is right but for what is given."""
    messages = [{"topic": "<topic>", **(message or {})}]
    return json.dumps({"producer_group": "<group>", "messages": messages, **members}).encode()


def _text(member: str) -> bytes:
    """A prepare with a member of its message as it stands."""
    return b'{"producer_group":"<group>","messages":[{"topic":"<topic>",' + member.encode() + b"}]}"


GOOD = make_prepare()
_BATCH = "/v1/transactions/batch"
_RESOLVE = "/v1/resolutions"
_END = "/v1/transactions/<prepared>/commit"


def _malformed(name: str, body: bytes, **other: Any) -> BadRequest:
    return BadRequest(name, 400, "malformed-json", body, **other)


def _invalid(name: str, pointer: str, body: bytes, **other: Any) -> BadRequest:
    return BadRequest(name, 422, "invalid-request", body, pointer=pointer, **other)


def _media(name: str, headers: Mapping[str, str], **other: Any) -> BadRequest:
    return BadRequest(name, 415, "unsupported-media-type", other.pop("body", GOOD), headers=headers, **other)


MALFORMED = [
    _malformed("an empty body", b""),
    _malformed("a word that is not JSON", b"hello"),
    _malformed("an object cut off", GOOD[:-1]),
    _malformed("a second value behind the first", GOOD + b"{}"),
    _malformed("a byte order mark", b"\xef\xbb\xbf" + GOOD),
    _malformed("bytes that are not UTF-8", _text('"key":"\xff"').decode().encode("latin-1")),
    _malformed("a surrogate encoded as UTF-8", _text('"key":"?"').replace(b"?", b"\xed\xa0\x80")),
    _malformed("UTF-16", GOOD.decode().encode("utf-16")),
    _malformed("NaN", _text('"value":NaN')),
    _malformed("minus infinity inside a value", _text('"value":[-Infinity]')),
    _malformed("a name given twice", _text('"topic":"other"')),
    _malformed("a name given twice inside a value", _text('"value":{"a":1,"a":2}')),
    _malformed("a name given twice, once escaped", _text('"value":{"a":1,"\\u0061":2}')),
    _malformed("33 levels", _text('"value":' + "[" * 30 + "]" * 30)),
    _malformed("100,000 open brackets", b"[" * 100_000),
    _malformed("100,000 open braces", b'{"a":' * 100_000),
    _malformed("a control byte in a text", _text('"key":"a\x01b"')),
    _malformed("a leading zero", _text('"value":01')),
    _malformed("a trailing comma", _text('"value":[1,]')),
    _malformed("single quotes", _text("'key':'a'")),
    _malformed("a comment", _text('"key":"a" /* why */')),
    _malformed("a batch that is not JSON", b'{"transactions":[', path=_BATCH),
    _malformed("an end with a body that is not JSON", b"{", path=_END),
]

MEDIA = [
    _media("no content type", {}),
    _media("plain text", {"Content-Type": "text/plain"}),
    _media("another charset", {"Content-Type": "application/json; charset=iso-8859-1"}),
    _media("a form", {"Content-Type": "application/x-www-form-urlencoded"}, body=b"a=b"),
    _media("multipart", {"Content-Type": "multipart/form-data; boundary=x"}, body=b"--x--\r\n"),
    _media("a compressed body", {**JSON, "Content-Encoding": "gzip"}),
    _media("a body encoded as identity", {**JSON, "Content-Encoding": "identity"}),
    _media("lines where one document is meant", NDJSON),
    _media("an end with a body but no type", {}, path=_END, body=b"{}"),
    _media("a batch of another type", {"Content-Type": "application/json-seq"}, path=_BATCH),
]

SHAPES = [
    _invalid("a list", "", b"[]"),
    _invalid("null", "", b"null"),
    _invalid("no group", "/producer_group", b'{"messages":[{"topic":"<topic>"}]}'),
    _invalid("no messages", "/messages", b'{"producer_group":"<group>"}'),
    _invalid("an empty list of messages", "/messages", b'{"producer_group":"<group>","messages":[]}'),
    _invalid(
        "101 messages",
        "/messages",
        json.dumps({"producer_group": "<group>", "messages": [{"topic": "<topic>"}] * 101}).encode(),
    ),
    _invalid("an unknown field", "/colour", make_prepare(colour="red")),
    _invalid("an unknown field of a message", "/messages/0/colour", make_prepare({"colour": "red"})),
    _invalid("a misspelt field of a message", "/messages/0/Key", make_prepare({"Key": "a"})),
    _invalid("a message without a topic", "/messages/0/topic", b'{"producer_group":"<group>","messages":[{}]}'),
    _invalid("a topic that is a number", "/messages/0/topic", make_prepare({"topic": 7})),
    _invalid("a key that is a number", "/messages/0/key", make_prepare({"key": 42})),
    _invalid("a group with a space", "/producer_group", make_prepare(producer_group="my group")),
    _invalid("a group with a line end", "/producer_group", make_prepare(producer_group="group\n")),
    _invalid("a group of 121 characters", "/producer_group", make_prepare(producer_group="g" * 121)),
    _invalid("an empty group", "/producer_group", make_prepare(producer_group="")),
    _invalid("a partition below 0", "/messages/0/partition", make_prepare({"partition": -1})),
    _invalid("a partition that is a fraction", "/messages/0/partition", make_prepare({"partition": 1.5})),
    _invalid("a partition that is true", "/messages/0/partition", make_prepare({"partition": True})),
    _invalid("a partition of 30 digits", "/messages/0/partition", make_prepare({"partition": 10**29})),
    _invalid("a timestamp of 30 digits", "/messages/0/timestamp_ms", make_prepare({"timestamp_ms": 10**29})),
    _invalid("an immunity below -1", "/check_immunity_seconds", make_prepare(check_immunity_seconds=-2)),
    _invalid("no checks at all", "/max_checks", make_prepare(max_checks=0)),
    _invalid("1,001 checks", "/max_checks", make_prepare(max_checks=1001)),
    _invalid("a life above a week", "/max_lifetime_seconds", make_prepare(max_lifetime_seconds=604_801)),
    _invalid("no batch", "/transactions", b"{}", path=_BATCH),
    _invalid("an empty batch", "/transactions", b'{"transactions":[]}', path=_BATCH),
    _invalid(
        "1,001 in a batch", "/transactions", b'{"transactions":[' + b",".join([b"{}"] * 1001) + b"]}", path=_BATCH
    ),
    _invalid("no resolutions", "/resolutions", b"{}", path=_RESOLVE),
    _invalid("an end with an unknown field", "/group", b'{"group":"g"}', path=_END),
    _invalid("an end with an illegal group", "/producer_group", b'{"producer_group":"a b"}', path=_END),
    _invalid("a field name of 1 MiB", "/" + "x" * 200, make_prepare(**{"x" * MIB: 1})),
]

TEXTS = [
    _invalid("key in both forms", "/messages/0/key_base64", make_prepare({"key": "a", "key_base64": "YQ=="})),
    _invalid("null key in both forms", "/messages/0/key_base64", make_prepare({"key": None, "key_base64": "YQ=="})),
    _invalid("value in both forms", "/messages/0/value_base64", make_prepare({"value": None, "value_base64": "YQ=="})),
    _invalid(
        "headers in both forms",
        "/messages/0/headers_base64",
        make_prepare({"headers": [["a", "b"]], "headers_base64": [["a", "Yg=="]]}),
    ),
    _invalid("base64 without padding", "/messages/0/value_base64", make_prepare({"value_base64": "YQ"})),
    _invalid("base64 of the URL kind", "/messages/0/key_base64", make_prepare({"key_base64": "_-8="})),
    _invalid("base64 with a line end", "/messages/0/value_base64", make_prepare({"value_base64": "YQ==\n"})),
    _invalid("base64 that is not ASCII", "/messages/0/value_base64", make_prepare({"value_base64": "ä==="})),
    _invalid("base64 in a header", "/messages/0/headers_base64/0", make_prepare({"headers_base64": [["h", "?"]]})),
    _invalid("a reserved header", "/messages/0/headers", make_prepare({"headers": [["properties", "x"]]})),
    _invalid(
        "a reserved header in an object", "/messages/0/headers", make_prepare({"headers": {"transaction-id": "x"}})
    ),
    _invalid(
        "a reserved header in base64",
        "/messages/0/headers_base64",
        make_prepare({"headers_base64": {"properties": None}}),
    ),
    _invalid("a header name with 0x00", "/messages/0/headers", make_prepare({"headers": [["properties\x00", "x"]]})),
    _invalid("a header name of 0x00", "/messages/0/headers_base64", make_prepare({"headers_base64": {"\x00": None}})),
    _invalid("a header that is a number", "/messages/0/headers/0/1", make_prepare({"headers": [["a", 1]]})),
    _invalid("a header without a value", "/messages/0/headers/0", make_prepare({"headers": [["a"]]})),
    _invalid("65 headers", "/messages/0/headers", make_prepare({"headers": [["a", "b"]] * 65})),
    _invalid("a lone surrogate in a key", "/messages/0/key", _text('"key":"\\ud800"')),
    _invalid("a lone low surrogate in a value", "/messages/0/value", _text('"value":"x\\uDC00y"')),
    _invalid("a lone surrogate inside a value", "/messages/0/value/a/1", _text('"value":{"a":[1,"\\ud8ff"]}')),
    _invalid("a lone surrogate in a name", "/messages/0/value", _text('"value":{"\\udfff":1}')),
    _invalid("a lone surrogate in the group", "/producer_group", make_prepare(producer_group="\ud800")),
    _invalid("an ordering key with 0x00", "/ordering_key", make_prepare(ordering_key="a\x00b")),
    _invalid("an ordering key with 0x01", "/ordering_key", make_prepare(ordering_key="a\x01b")),
    _invalid("an ordering key with 0x02", "/ordering_key", make_prepare(ordering_key="a\x02b")),
    _invalid("an empty ordering key", "/ordering_key", make_prepare(ordering_key="")),
    _invalid("an idempotency key with a line end", "/idempotency_key", make_prepare(idempotency_key="a\n")),
    _invalid("an idempotency key that is not ASCII", "/idempotency_key", make_prepare(idempotency_key="ä")),
    _invalid("an idempotency key of 201 characters", "/idempotency_key", make_prepare(idempotency_key="k" * 201)),
    _invalid(
        "two idempotency keys",
        "/idempotency_key",
        make_prepare(idempotency_key="a"),
        headers={**JSON, "Idempotency-Key": "b"},
    ),
    _invalid(
        "a reason with 0x01",
        "/reason",
        b'{"resolution":"COMMIT","reason":"a\\u0001b"}',
        path="/v1/transactions/<prepared>/force",
    ),
    _invalid(
        "a reason with 0x00",
        "/reason",
        b'{"resolution":"COMMIT","reason":"a\\u0000b"}',
        path="/v1/transactions/<prepared>/force",
    ),
    _invalid(
        "a redrive of a topic with 0x00",
        "/filter/topic",
        b'{"action":"commit","filter":{"topic":"a\\u0000b"},"reason":"x"}',
        path="/v1/parked/redrive",
    ),
    _invalid("no reason", "/reason", b'{"resolution":"COMMIT"}', path="/v1/transactions/<prepared>/force"),
    _invalid(
        "a blank reason", "/reason", b'{"resolution":"COMMIT","reason":"  "}', path="/v1/transactions/<prepared>/force"
    ),
    _invalid(
        "force without a decision",
        "/resolution",
        b'{"resolution":"UNKNOWN","reason":"x"}',
        path="/v1/transactions/<prepared>/force",
    ),
    _invalid("resume without a reason", "/reason", b"{}", path="/v1/transactions/<prepared>/resume"),
    _invalid("abandon without a reason", "/reason", b"{}", path="/v1/transactions/<committed>/abandon"),
    _invalid(
        "abandon for a blank reason", "/reason", b'{"reason":" \\n"}', path="/v1/transactions/<committed>/abandon"
    ),
    _invalid(
        "abandon with a resolution",
        "/resolution",
        b'{"reason":"x","resolution":"COMMIT"}',
        path="/v1/transactions/<committed>/abandon",
    ),
    BadRequest(
        "a timestamp of 0",
        422,
        "invalid-timestamp",
        make_prepare({"timestamp_ms": 0}),
        pointer="/messages/0/timestamp_ms",
    ),
    BadRequest("a timestamp below 0", 422, "invalid-timestamp", make_prepare({"timestamp_ms": -1})),
]

PATHS = [
    BadRequest("no such path", 404, "not-found", path="/v2/transactions", method="GET"),
    BadRequest("a path with a slash too many", 404, "not-found", GOOD, path="/v1/transactions/"),
    BadRequest(
        "a method that the path has not", 405, "method-not-allowed", GOOD, method="PUT", has={"Allow": "GET, POST"}
    ),
    BadRequest(
        "reading what is only written",
        405,
        "method-not-allowed",
        path="/v1/resolutions",
        method="GET",
        has={"Allow": "POST"},
    ),
    BadRequest(
        "reading all of a batch",
        405,
        "method-not-allowed",
        path="/v1/transactions/batch",
        method="GET",
        has={"Allow": "POST"},
    ),
    BadRequest("OPTIONS", 405, "method-not-allowed", path="/v1/messages", method="OPTIONS", has={"Allow": "POST"}),
    BadRequest("CSV wanted", 406, "not-acceptable", GOOD, headers={**JSON, "Accept": "text/csv"}),
    BadRequest(
        "JSON refused", 406, "not-acceptable", GOOD, headers={**JSON, "Accept": "application/json;q=0, text/html"}
    ),
    BadRequest(
        "not an id", 422, "invalid-request", path="/v1/transactions/nonsense", method="GET", pointer="?transaction_id"
    ),
    BadRequest("an id with a line end", 422, "invalid-request", path="/v1/transactions/<prepared>%0A", method="GET"),
    BadRequest("an id in capitals", 422, "invalid-request", b"{}", path="/v1/transactions/" + "A" * 28 + "/commit"),
    BadRequest(
        "an unknown parameter",
        422,
        "invalid-request",
        path="/v1/transactions/<prepared>?colour=red",
        method="GET",
        pointer="?colour",
    ),
    BadRequest(
        "an unknown inclusion",
        422,
        "invalid-request",
        path="/v1/transactions/<prepared>?include=all",
        method="GET",
        pointer="?include",
    ),
    BadRequest(
        "a wait that is no number",
        422,
        "invalid-request",
        b"{}",
        path=_END + "?wait_seconds=soon",
        pointer="?wait_seconds",
    ),
    BadRequest(
        "a wait of an hour", 422, "invalid-request", b"{}", path=_END + "?wait_seconds=3600", pointer="?wait_seconds"
    ),
    BadRequest(
        "a wait below 0", 422, "invalid-request", b"{}", path=_END + "?wait_seconds=-1", pointer="?wait_seconds"
    ),
    BadRequest("two waits", 422, "invalid-request", b"{}", path=_END + "?wait_seconds=1&wait_seconds=2"),
    BadRequest("a parameter that prepare has not", 422, "invalid-request", GOOD, path="/v1/transactions?dry_run=1"),
    BadRequest(
        "a key for a whole batch",
        422,
        "invalid-request",
        b'{"transactions":[]}',
        path=_BATCH,
        headers={**JSON, "Idempotency-Key": "a"},
    ),
]

SIZES = [
    BadRequest(
        "a message of 1 MiB and a byte",
        413,
        "message-too-large",
        make_prepare({"value": "x" * (MIB + 1)}),
        pointer="/messages/0",
    ),
    BadRequest("a body of 8 MiB and a byte", 413, "body-too-large", GOOD + b" " * (8 * MIB + 1 - len(GOOD))),
    BadRequest("a batch of 8 MiB and a byte", 413, "body-too-large", b" " * (8 * MIB + 1), path=_BATCH),
]

FACTS = [
    BadRequest("an unknown transaction", 404, "unknown-transaction", path="/v1/transactions/<unknown>", method="GET"),
    BadRequest(
        "the timeline of an unknown transaction",
        404,
        "unknown-transaction",
        path="/v1/transactions/<unknown>/timeline",
        method="GET",
    ),
    BadRequest(
        "the end of an unknown transaction", 404, "unknown-transaction", b"", path="/v1/transactions/<unknown>/commit"
    ),
    BadRequest("an end by another group", 409, "producer-group-mismatch", b'{"producer_group":"another"}', path=_END),
    BadRequest("a contradicting end", 409, "already-resolved", b"", path="/v1/transactions/<committed>/rollback"),
    BadRequest(
        "resuming what is not parked",
        409,
        "not-parked",
        b'{"reason":"why not"}',
        path="/v1/transactions/<prepared>/resume",
    ),
    BadRequest(
        "abandoning what is undecided",
        409,
        "not-blocked",
        b'{"reason":"why not"}',
        path="/v1/transactions/<prepared>/abandon",
    ),
    BadRequest(
        "abandoning what nobody knows",
        404,
        "unknown-transaction",
        b'{"reason":"why not"}',
        path="/v1/transactions/<unknown>/abandon",
    ),
    BadRequest(
        "abandoning what is not blocked",
        409,
        "not-blocked",
        b'{"reason":"why not"}',
        path="/v1/transactions/<committed>/abandon",
    ),
]

BAD_REQUESTS = [*MALFORMED, *MEDIA, *SHAPES, *TEXTS, *PATHS, *SIZES, *FACTS]
