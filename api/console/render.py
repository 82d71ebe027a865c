"""Puts pages together: templates that escape everything, and headers that let a page load nothing from elsewhere."""

import json
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from api.console.text import cut, isolate, show_bytes, show_count, show_duration, show_size, spell, to_text
from api.web.request import ApiRequest
from api.web.road import HttpAnswer
from bridge.core.grants import Verb
from bridge.core.moment import show_time

PREFIX = "/console"
_FOLDER = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),  # with none, a form's Origin would be null, and refused
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
HTML = "text/html; charset=utf-8"
SESSION_COOKIE = "outbox-bridge-console"
LANGUAGE_COOKIE = "outbox-bridge-language"
LANGUAGES = ("en", "zh")
_CHINESE: Mapping[str, str] = json.loads((_FOLDER / "zh.json").read_text(encoding="utf-8"))


class Section(NamedTuple):
    """A page of the menu. `verb`: what its reader must have been granted; `is_for_all`: for all groups."""

    path: str
    name: str
    verb: Verb
    is_for_all: bool = False


MENU = (
    Section("", "Home", Verb.READ),
    Section("search", "Transactions", Verb.READ),
    Section("parked", "Parked", Verb.READ),
    Section("groups", "Groups", Verb.READ),
    Section("topics", "Topics", Verb.READ, is_for_all=True),
    Section("reports", "Reports", Verb.READ, is_for_all=True),
    Section("audit", "Audit", Verb.ADMIN, is_for_all=True),
    Section("settings", "Settings", Verb.READ),
)


def is_page(path: str) -> bool:
    """Whether the console answers there."""
    return path.startswith(PREFIX) and path[len(PREFIX) : len(PREFIX) + 1] in {"", "/"}


def base_of(path: str) -> str:
    """The way from a page to the first one, wherever a proxy has put them both."""
    below = path.partition(PREFIX)[2]
    return "../" * (below.count("/") - 1) or ("./" if below else PREFIX[1:] + "/")


def render(request: ApiRequest, template: str, status: int = 200, /, **members: object) -> HttpAnswer:
    """A page for whoever asks."""
    body = fragment(request, template, **members).encode("utf-8", "replace")
    return HttpAnswer(status, body, HEADERS, HTML)


def fragment(request: ApiRequest, template: str, **members: object) -> str:
    """A part of a page."""
    base, language = base_of(request.path), choose_language(request)
    query = request.scope["query_string"].decode("latin-1") if request.method == "GET" else ""
    return _environment.get_template(template).render(
        base=base,
        language="en" if language == "en" else "zh-Hans",
        _=partial(_translate, language),
        place=request.path.partition(PREFIX)[2].strip("/") + (f"?{query}" if query else ""),
        here=request.path.partition(PREFIX)[2].strip("/").partition("/")[0],
        menu=[section for section in MENU if _may_open(request, section)],
        caller=request.caller,
        has_session=_has_session(request),
        may=partial(_may_act, request),
        now_ms=request.services.now_ms(),
        link=partial(_link, base),
        version=version("outbox-bridge"),
        **members,
    )


def redirect(request: ApiRequest, path: str, **query: str) -> HttpAnswer:
    """To another page, which is asked for anew."""
    return HttpAnswer(303, b"", (*HEADERS, ("Location", _link(base_of(request.path), path, **query))), HTML)


def find_cookie(request: ApiRequest, name: str) -> str | None:
    """What the browser keeps under a name."""
    for header in request.values(b"cookie"):
        for pair in header.split(";"):
            found, _, value = pair.strip().partition("=")
            if found == name:
                return value
    return None


def choose_language(request: ApiRequest) -> str:
    """What the reader has chosen, else what his browser asks for first of what there is."""
    chosen = find_cookie(request, LANGUAGE_COOKIE)
    if chosen in LANGUAGES:
        return chosen
    wanted = [
        _read_wish(wish) for wish in request.fields.get(b"accept-language", b"").decode("latin-1").split(",")[:20]
    ]
    known = [(share, -place, name) for place, (name, share) in enumerate(wanted) if name in LANGUAGES and share > 0]
    return max(known)[2] if known else LANGUAGES[0]


def _read_wish(wish: str) -> tuple[str, float]:
    """A language and how much it is wanted."""
    name, _, quality = wish.strip().partition(";")
    try:
        share = float(quality.strip().removeprefix("q=") or 1)
    except ValueError:
        share = 0.0
    return name.strip().lower().partition("-")[0], share


def _may_open(request: ApiRequest, section: Section) -> bool:
    rights = request.caller.rights
    return rights.may_everywhere(section.verb) if section.is_for_all else rights.may_somewhere(section.verb)


def _may_act(request: ApiRequest, verb: str, group: str) -> bool:
    """Whether the reader may do something for a group, and from here."""
    return not request.services.is_read_only and request.caller.rights.may(Verb(verb), group)


def _has_session(request: ApiRequest) -> bool:
    is_shown = request.caller.is_proven and b"authorization" not in request.fields
    return is_shown and find_cookie(request, SESSION_COOKIE) is not None


def _translate(language: str, text: str) -> str:
    return _CHINESE[text] if language == "zh" else text


def _link(base: str, *parts: str, **query: object) -> str:
    """A relative address; parts and values may hold anything."""
    path = "/".join(quote(part, safe="/" if n == 0 else "") for n, part in enumerate(parts))
    given = [(name, str(value)) for name, value in query.items() if value is not None]
    return f"{base}{path}{'?' if given else ''}{urlencode(given)}"


def _time(time_ms: int | None) -> Markup:
    """A moment in UTC; a script adds the reader's own time."""
    if time_ms is None:
        return Markup('<span class="null">-</span>')
    said = show_time(time_ms)
    shown = f"{said[:10]} {said[11:23]}"
    return Markup('<time datetime="{}">{}<abbr title="UTC">Z</abbr></time>').format(said, shown)


def _make_environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        bytes=show_bytes, count=show_count, cut=cut, duration=show_duration, size=show_size, spell=spell, time=_time,
        bdi=isolate, json_text=to_text,
    )  # fmt: skip
    return made


_environment = _make_environment()
