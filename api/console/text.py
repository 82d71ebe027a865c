"""What pages show of texts, numbers and bytes that come from elsewhere. Pure."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from markupsafe import Markup

from bridge.core.message import JsonText, read_json_text

CUT_CHARS = 160  # in a line; the whole is one click away
SHOWN_CHARS = 16 * 1024  # in a block of its own; the whole can be saved
_NODES = 2_000
_HEX_BYTES = 1_024
_ROW = 16

# What would move, hide or reorder the text around it: controls, directions, marks without width, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_SECONDS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def spell(text: str) -> str:
    """The text with what cannot be seen written out."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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


def show_value(raw: bytes) -> ShownValue:
    """A message's value in all the forms in which it can be read."""
    text = read_json_text(raw)
    tree = None
    if isinstance(text, JsonText) and len(text) <= SHOWN_CHARS * 4:
        tree = _grow(None, json.loads(text, parse_int=ExactNumber, parse_float=ExactNumber), iter(range(_NODES)))
    is_cut = text is not None and len(text) > SHOWN_CHARS
    return ShownValue(len(raw), tree, None if text is None else str(text)[:SHOWN_CHARS], list(_hex_rows(raw)), is_cut)


def _grow(name: str | None, value: object, left: Iterator[int]) -> JsonPlace:
    if next(left, None) is None:
        return JsonPlace(name, "cut", "…")
    if isinstance(value, dict):
        members = islice(value.items(), _NODES)
        return JsonPlace(name, "object", f"{{{len(value)}}}", [_grow(key, one, left) for key, one in members])
    if isinstance(value, list):
        items = enumerate(value[:_NODES])
        return JsonPlace(name, "array", f"[{len(value)}]", [_grow(str(n), one, left) for n, one in items])
    if isinstance(value, ExactNumber):
        return JsonPlace(name, "number", str(value))
    return JsonPlace(name, "string" if isinstance(value, str) else "word", json.dumps(value, ensure_ascii=False))


def _hex_rows(raw: bytes) -> Iterator[tuple[str, str, str]]:
    for start in range(0, min(len(raw), _HEX_BYTES), _ROW):
        row = raw[start : start + _ROW]
        yield f"{start:08x}", row.hex(" "), "".join(chr(b) if 32 <= b < 127 else "·" for b in row)


def to_text(value: object) -> str:
    """JSON of an audit's members, for people."""
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)
