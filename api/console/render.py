"""Puts pages together: templates that escape everything, and headers that let a page load nothing from elsewhere."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from api.web.bodies import MAX_REASON_CHARS
from api.web.request import ApiRequest
from api.web.road import HttpAnswer
from bridge.core.grants import Verb
from bridge.core.message import JsonText, read_json_text
from bridge.core.transaction import show_time
from bridge.turns import Pace, Steps

# --- what pages show of texts, numbers and bytes that come from elsewhere ---

CUT_CHARS = 160  # in a line; the whole is one click away
SHOWN_CHARS = 16 * 1024  # in a block of its own; the whole can be saved
_NODES, _CUT = 2_000, "cut"
_HEX_BYTES = 1_024
_ROW = 16
_STEP_CHARS = 8 * 1024  # of a page: some milliseconds

# What would move, hide or reorder the text around it: controls, directions, marks without width, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_SECONDS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


_SPELLED = {code: f"\\u{code:04x}" for code in range(0x1_0000) if _UNSEEN.match(chr(code))}


def spell(text: str) -> str:
    """The text with what cannot be seen written out."""
    return text.translate(_SPELLED) if _UNSEEN.search(text) else text


def isolate(text: object) -> Markup:
    """A text from elsewhere as HTML: in a direction of its own, nothing of it unseen."""
    return Markup("<bdi>{}</bdi>").format(spell(str(text)))


def cut(text: object) -> Markup:
    """The same; of a long one the beginning, with the rest behind a click."""
    whole = str(text)
    if len(whole) <= CUT_CHARS:
        return isolate(whole)
    rest = whole[CUT_CHARS : CUT_CHARS + SHOWN_CHARS]
    more = len(whole) - CUT_CHARS - len(rest)
    end = f" … {show_count(more)}" if more else ""
    return Markup('<details class="cut"><summary>{}…</summary><span>{}{}</span></details>').format(
        isolate(whole[:CUT_CHARS]), isolate(rest), end
    )


def show_bytes(raw: bytes | None) -> Markup:
    """A key or a header's value: as text where it is UTF-8, else in base 16; null is said to be null."""
    if raw is None:
        return Markup('<span class="null">null</span>')
    if not raw:
        return Markup('<span class="null">""</span>')
    try:
        return cut(raw.decode())
    except UnicodeDecodeError:
        return Markup('<span class="hex">0x</span>') + cut(raw.hex())


def show_count(number: int) -> str:
    """With a gap after every three digits."""
    return f"{number:,}".replace(",", "\u202f")


def show_size(size: int) -> str:
    """Bytes, in the unit that suits."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


def show_duration(duration_ms: float) -> str:
    """In its two largest units."""
    if duration_ms < 1_000:
        return f"{round(duration_ms)} ms"
    seconds = duration_ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    left, parts = int(seconds), list[tuple[int, str]]()
    for unit, name in _SECONDS:
        count, left = divmod(left, unit)
        if count or parts:
            parts.append((count, name))
    return " ".join([f"{count} {name}" for count, name in parts[:2] if count])


class ExactNumber(str):
    """A number of a JSON text, digit by digit as it stands there."""

    __slots__ = ()


class JsonPlace(NamedTuple):
    """A place in a JSON text. `name`: its name or index in what holds it; `inner` None: it holds nothing."""

    name: str | None
    kind: str
    text: str
    inner: "list[JsonPlace] | None" = None


class ShownValue(NamedTuple):
    """A value. `tree`: where it is a JSON object or array; `text`: where it is UTF-8; `hex_rows`: always."""

    size: int
    tree: JsonPlace | None
    text: str | None
    hex_rows: list[tuple[str, str, str]]
    is_cut: bool


def begin_page() -> Iterator[int]:
    """How many places the trees of a page may have together: of hundreds of thousands it would take many seconds."""
    return iter(range(_NODES))


def show_value(raw: bytes, left: Iterator[int]) -> ShownValue:
    """A message's value in all the forms in which it can be read. `left`: of the page."""
    text = read_json_text(raw)
    tree = None
    if isinstance(text, JsonText) and len(text) <= SHOWN_CHARS * 4:
        grown = _grow(None, json.loads(text, parse_int=ExactNumber, parse_float=ExactNumber), left)
        tree = None if grown.kind == _CUT else grown
    is_cut = text is not None and len(text) > SHOWN_CHARS
    return ShownValue(len(raw), tree, None if text is None else str(text)[:SHOWN_CHARS], list(_hex_rows(raw)), is_cut)


def _grow(name: str | None, value: object, left: Iterator[int]) -> JsonPlace:
    if next(left, None) is None:
        return JsonPlace(name, _CUT, "…")
    if isinstance(value, dict):
        return JsonPlace(name, "object", f"{{{len(value)}}}", _grow_each(value.items(), left))
    if isinstance(value, list):
        return JsonPlace(
            name, "array", f"[{len(value)}]", _grow_each(((str(n), one) for n, one in enumerate(value)), left)
        )
    if isinstance(value, ExactNumber):
        return JsonPlace(name, "number", str(value))
    return JsonPlace(name, "string" if isinstance(value, str) else "word", json.dumps(value, ensure_ascii=False))


def _grow_each(members: Iterable[tuple[str, object]], left: Iterator[int]) -> list[JsonPlace]:
    """Up to the first that is cut."""
    grown = list[JsonPlace]()
    for name, value in members:
        grown.append(_grow(name, value, left))
        if grown[-1].kind == _CUT:
            break
    return grown


def _hex_rows(raw: bytes) -> Iterator[tuple[str, str, str]]:
    for start in range(0, min(len(raw), _HEX_BYTES), _ROW):
        row = raw[start : start + _ROW]
        yield f"{start:08x}", row.hex(" "), "".join(chr(b) if 32 <= b < 127 else "·" for b in row)


def to_text(value: object) -> str:
    """JSON of an audit's members, for people."""
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)


# --- pages: templates that escape everything, headers that let them load nothing from elsewhere ---

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
_SENTENCES: Mapping[str, str] = json.loads((_FOLDER / "sentences.zh.json").read_text(encoding="utf-8"))


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


def base_of(path: str) -> str:
    """The way from a page to the first one, wherever a proxy has put them both."""
    below = path.partition(PREFIX)[2]
    return "../" * (below.count("/") - 1) or ("./" if below else PREFIX[1:] + "/")


def render(request: ApiRequest, template: str, status: int = 200, /, **members: object) -> HttpAnswer:
    """A page for whoever asks."""
    body = fragment(request, template, **members).encode("utf-8", "replace")
    return HttpAnswer(status, body, HEADERS, HTML)


async def render_long(request: ApiRequest, template: str, /, **members: object) -> HttpAnswer:
    """A page of many rows, made in short steps, between which others are served."""
    body = await request.services.turns.run(_in_steps(_begin(request, template, members)))
    return HttpAnswer(200, body.encode("utf-8", "replace"), HEADERS, HTML)


def _in_steps(pieces: Iterable[str]) -> Steps[str]:
    made, pace = list[str](), Pace(_STEP_CHARS)
    for piece in pieces:
        made.append(piece)
        if pace.spend(len(piece)):
            yield
    return "".join(made)


def fragment(request: ApiRequest, template: str, **members: object) -> str:
    """A part of a page."""
    return "".join(_begin(request, template, members))


def _begin(request: ApiRequest, template: str, members: Mapping[str, object]) -> Iterator[str]:
    base, language = base_of(request.path), choose_language(request)
    query = request.scope["query_string"].decode("latin-1") if request.method == "GET" else ""
    return _environment.get_template(template).generate(
        base=base,
        language="en" if language == "en" else "zh-Hans",
        _=partial(_translate, language),
        say=partial(say, language),
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
    is_shown = request.caller.key_id is not None and b"authorization" not in request.fields
    return is_shown and find_cookie(request, SESSION_COOKIE) is not None


def _translate(language: str, text: str) -> str:
    return _CHINESE[text] if language == "zh" else text


_HOLE = re.compile(r"\{(\w+)\}")
_WORDS, _WORD = {"role", "topic", "group"}, r"\S+?"  # one word: what is said of two things is not one sentence
_MOST_SAID = 600  # characters: longer ones are not looked at, since the time for one grows with the cube of that
_DEEPEST_SAID = 40  # sentences inside one another: details of many topics, one behind the other


@cache
def _make_patterns() -> list[tuple[re.Pattern[str], str, bool]]:
    """The first that fits counts: longer templates come before what is a part of them. Last, whether it is a frame
    without a word of its own."""
    made = []
    for english, chinese in _SENTENCES.items():
        pieces = _HOLE.split(english)  # every second one is the name of a hole
        parts = [
            f"(?P<_{one}>{_WORD if one in _WORDS else '.+?'})" if n % 2 else re.escape(one)
            for n, one in enumerate(pieces)
        ]
        made.append((re.compile("".join(parts), re.DOTALL), chinese, not re.search("[a-z]", "".join(pieces[::2]))))
    return made


@lru_cache(maxsize=4_096)
def say(language: str, text: str, depth: int = 0) -> str:
    """A sentence of the bridge in the reader's language; what no template has stays as it is.

    A hole with a number holds a sentence of the bridge too; one with a name holds what is kept: a name, a number, or
    what Kafka, an endpoint or a person has said. `depth`: in how many sentences it stands.
    """
    if language == "en" or len(text) > _MOST_SAID or depth > _DEEPEST_SAID:
        return text
    if text in _SENTENCES:
        return _SENTENCES[text]
    if text.endswith("."):
        said = say(language, text[:-1], depth + 1)
        return text if said == text[:-1] else f"{said}\u3002"
    for pattern, chinese, is_frame in _make_patterns():
        if (found := pattern.fullmatch(text)) is not None:
            held: Mapping[str, str] = {name[1:]: part for name, part in found.groupdict().items()}
            told = {name: say(language, part, depth + 1) if name.isdigit() else part for name, part in held.items()}
            if not is_frame or told != held:
                return _HOLE.sub(lambda hole: told[hole[1]], chinese)  # noqa: B023 - called before the next round
    return text


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
    made.globals["max_reason_chars"] = MAX_REASON_CHARS
    return made


_environment = _make_environment()
