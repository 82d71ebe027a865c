"""docs/reference/http.md: every call, from the OpenAPI document."""

from typing import Any

from api.web.app import create_app
from tests.references.markdown import MADE, code, table
from tests.support.api_fakes import FakeTransactions, make_services

_INTRODUCTION = """# HTTP interface

A running bridge shows the same with every schema and examples at `/docs` and `/redoc`, and as OpenAPI at
`/openapi.json` (`outbox-bridge openapi`). Errors are [problems](../problems.md).

## Generated clients

OpenAPI Generator (Java), oapi-codegen (Go), openapi-typescript, hey-api, orval and openapi-python-client make working
code of that document. All successful answers of a call are of one type; members that only some of them have are
optional. Three things are for you:

* Calls without a body need `Content-Type: application/json` or the header `Outbox-Bridge-Request: 1`, which a page of
  another site cannot send. Most generated clients send the former; give those on `fetch` the header for all calls:
  `createClient({ baseUrl, headers: { "Outbox-Bridge-Request": "1" } })`.
* Answers gain members from release to release. OpenAPI Generator's Java refuses what it does not know, unless it is
  told not to: `--additional-properties=disallowAdditionalPropertiesIfNotPresent=false`.
* The document names one form where the bridge takes two: headers as a list of pairs (an object is taken too), and
  resolutions as words (RocketMQ's 8, 12 and 0 are taken too). A gateway that checks requests by it lets only those in.
"""


def make_http() -> str:
    """The page."""
    document: dict[str, Any] = create_app(make_services(FakeTransactions())).openapi()
    parts = [MADE, _INTRODUCTION]
    for tag in document["tags"]:
        rows = [
            (code(f"{method.upper()} {path}"), _text_of(operation), _answers_of(operation))
            for path, item in document["paths"].items()
            for method, operation in item.items()
            if tag["name"] in operation["tags"]
        ]
        if rows:
            parts.append(f"\n## {tag['name'].capitalize()}\n\n{tag['description']}\n\n")
            parts.append(table(("call", "what it does", "answers"), rows))
    return "".join(parts)


def _text_of(operation: dict[str, Any]) -> str:
    parameters = [code(each["name"]) for each in operation.get("parameters", []) if each["in"] == "query"]
    return operation["description"] + (f" Parameters: {', '.join(parameters)}." if parameters else "")


def _answers_of(operation: dict[str, Any]) -> str:
    """Those of success; a problem can come from every call."""
    return ", ".join(sorted(status for status in operation["responses"] if status < "300"))
