"""Calls of commands to a running bridge, with the key and the certificates that the environment names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any
from urllib.parse import quote

import httpx2
import msgspec
import typer

from api.cli.output import CommandFailed, Exit
from outbox.client.config import HttpConfig

DEFAULT_URL = "http://127.0.0.1:8780"
_TIMEOUT_S = 20.0  # an end waits 10 s at most
_PAGE = 100

UrlOption = Annotated[str, typer.Option("--url", envvar="OUTBOX_BRIDGE_URL", help="Where the bridge listens.")]

_START = "Start it with `outbox-bridge dev`, or name another address with --url or OUTBOX_BRIDGE_URL."
_OF_TLS = {
    "CERTIFICATE_VERIFY_FAILED": "Call it as its certificate does; OUTBOX_BRIDGE_CA_FILE names who signed that.",
    "_CERTIFICATE_REQUIRED": "It wants one: set OUTBOX_BRIDGE_CLIENT_CERT_FILE and OUTBOX_BRIDGE_CLIENT_KEY_FILE.",
}
_EXITS = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT, 415: Exit.USAGE, 503: Exit.UNREACHABLE}


def client_for(url: str) -> httpx2.Client:
    """A client kept for the life of the process; one that needs no certificates is made much faster."""
    return _make_client(not url.startswith("http:"))


@cache
def _make_client(is_secured: bool) -> httpx2.Client:
    return httpx2.Client(timeout=_TIMEOUT_S, verify=HttpConfig().make_tls() if is_secured else False)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer that is no error. `raw`: the document as it came."""

    status: int
    raw: bytes

    @property
    def members(self) -> dict[str, Any]:
        """The document, read."""
        read: dict[str, Any] = msgspec.json.decode(self.raw) if self.raw else {}
        return read

    def items(self, name: str) -> list[msgspec.Raw]:
        """A member that is an array, each item as it came."""
        return msgspec.json.decode(
            msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw])[name], type=list[msgspec.Raw]
        )


def call(  # noqa: PLR0913 - what a request has
    url: str,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> HttpReply:
    """One request. Raises CommandFailed for everything that is not a success."""
    params = {name: str(value) for name, value in (query or {}).items() if value is not None}
    content = None if body is None else msgspec.json.encode(body)
    kind = {} if method == "GET" else {"Content-Type": "application/json"}
    sent = {**kind, **HttpConfig().proof, **(headers or {})}
    try:
        answer = client_for(url).request(
            method, url.rstrip("/") + path, params=params, content=content, headers=sent, timeout=timeout_s
        )
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise _unreachable(url, error) from error
    if answer.is_success:
        return HttpReply(answer.status_code, answer.content)
    raise _refused(answer)


def find_all(
    url: str, path: str, name: str, filters: Mapping[str, object], limit: int
) -> tuple[list[msgspec.Raw], str | None]:
    """At most `limit` items, page by page, and the cursor behind them if there are more."""
    found: list[msgspec.Raw] = []
    cursor = filters.get("cursor")
    while True:
        query = {**filters, "cursor": cursor, "limit": min(limit - len(found), _PAGE)}
        page = call(url, "GET", path, query=query)
        found += page.items(name)
        cursor = page.members["next"]
        if cursor is None or len(found) >= limit:
            return found, cursor


def quoted(segment: str) -> str:
    """A name as one segment of a path, whatever was typed."""
    return quote(segment, safe="") or "-"


def _unreachable(url: str, error: Exception) -> CommandFailed:
    reason = str(error) or type(error).__name__
    remedy = next((remedy for words, remedy in _OF_TLS.items() if words in reason), _START)
    return CommandFailed(Exit.UNREACHABLE, f"no bridge answers at {url}: {reason}", remedy)


def _refused(answer: httpx2.Response) -> CommandFailed:
    try:
        problem = answer.json()
        slug = str(problem["type"]).rpartition("/")[2]
        reason = f"{problem['detail'] or problem['title']} ({slug})"
    except (ValueError, KeyError, TypeError):
        remedy = "Is this a bridge? Check --url."
        return CommandFailed(Exit.FAILED, f"{answer.url.host} answered {answer.status_code}", remedy)
    code = _EXITS.get(answer.status_code, Exit.USAGE if slug == "invalid-request" else Exit.FAILED)
    places = [str(error.get("pointer") or error.get("parameter")) for error in problem.get("errors", [])]
    return CommandFailed(code, reason + (f" at {', '.join(places)}" if places else ""), _remedy_of(slug))


def _remedy_of(slug: str) -> str:
    """The table of problems knows what to do about each."""
    from api.web.problems import PROBLEMS  # noqa: PLC0415  # slow to import, needed for errors only

    row = PROBLEMS.get(slug)
    return row.remedy if row is not None else ""
