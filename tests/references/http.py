"""docs/reference/http.md: every call, from the OpenAPI document."""

from typing import Any

from api.web.app import create_app
from tests.references.markdown import MADE, code, table
from tests.support.api_fakes import FakeTransactions, make_services

_INTRODUCTION = """# HTTP interface

A running bridge shows the same with every schema and examples at `/docs` and `/redoc`, and as OpenAPI at
`/openapi.json` (`outbox-bridge openapi`). Errors are [problems](../problems.md).
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
