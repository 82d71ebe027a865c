"""Strict JSON, in one piece or in steps: what other parsers let pass is refused, numbers and texts keep their bytes.

Standard parsers take the last of two equal names, accept NaN, and recurse as deep as the sender likes; two
parsers on one message's way would then read different things.

A document is read in windows that end behind a comma. Each is made whole by brackets for what is open before and
behind it, with a filler in place of the members that other windows hold, and read like a small document.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from api.web.problems import INVALID_REQUEST, MALFORMED_JSON, Rejected, invalid, reject
from bridge.turns import Steps

MAX_DEPTH = 32

NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ROUND = bytes.maketrans(b"[]{}", b"()()")
WHITESPACE = b" \t\r\n"
_SPACED = re.compile(rb"[ \t\r\n]")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BOM = b"\xef\xbb\xbf"


class NotStrict(ValueError):
    """JSON for others, not for us."""


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The members of an object. Raises NotStrict."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotStrict("a name is repeated in one object")
    return members


def _no_constant(word: str) -> object:
    raise NotStrict(f"{word} is not JSON")


def make_decoder(read_object: Callable[[list[tuple[str, object]]], dict[str, object]] = unique) -> json.JSONDecoder:
    """A decoder that raises ValueError, or NotStrict for what JSON does not know. `read_object` gets the members.

    Numbers stay texts: they are only looked at here, and converting a long one takes quadratic time.
    """
    return json.JSONDecoder(object_pairs_hook=read_object, parse_int=str, parse_float=str, parse_constant=_no_constant)


_decoder = make_decoder()


def read_strict(raw: bytes, max_depth: int = MAX_DEPTH) -> bytes:
    """The document without the white space between its tokens, each of which keeps its bytes.

    Raises Rejected unless it is one strict JSON value, nested `max_depth` levels at most, whose texts can all be
    written as UTF-8.
    """
    if raw.startswith(BOM):
        raise reject(MALFORMED_JSON, "the body begins with a byte order mark")
    # Control bytes cannot occur in valid JSON, so they can stand for escapes while texts are found.
    escaped = raw.replace(b"\\\\", b"\x01").replace(b'\\"', b"\x02") if b"\\" in raw else raw
    parts = escaped.split(b'"')
    outside = b'"'.join(parts[::2])
    if not _is_shallow(outside, max_depth):
        raise reject(MALFORMED_JSON, f"brackets do not match, or are nested deeper than {max_depth} levels")
    _check_syntax(raw)
    if _SPACED.search(outside) is None:
        return raw
    parts[::2] = outside.translate(None, WHITESPACE).split(b'"')
    compact = b'"'.join(parts)
    return compact.replace(b"\x02", b'\\"').replace(b"\x01", b"\\\\") if escaped is not raw else compact


def _check_syntax(raw: bytes) -> None:
    try:
        document = _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise reject(MALFORMED_JSON, f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise reject(MALFORMED_JSON, f"not JSON at character {error.pos}: {error.msg}") from None
    except NotStrict as error:
        raise reject(MALFORMED_JSON, str(error)) from None
    if SURROGATE.search(raw):
        check_surrogates(document)


def _is_shallow(outside: bytes, max_depth: int) -> bool:
    """Whether brackets outside texts nest at most so deep: each pass takes the innermost pairs away."""
    if outside.count(b"[") + outside.count(b"{") <= max_depth:
        return True
    brackets = outside.translate(_ROUND, NOT_BRACKETS)
    for _ in range(max_depth):
        if not brackets:
            return True
        brackets = brackets.replace(b"()", b"")
    return not brackets


def check_surrogates(document: object) -> None:
    """Raises Rejected for a text that cannot be written as UTF-8."""
    for pointer, text in _texts(document, ""):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise invalid(pointer, "a lone surrogate cannot be written as UTF-8") from None


def _texts(node: object, pointer: str) -> Iterator[tuple[str, str]]:
    """All texts of a document with where they are; a name counts as a text of its member."""
    if isinstance(node, str):
        yield pointer, node
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from _texts(item, f"{pointer}/{index}")
    elif isinstance(node, dict):
        for name, member in node.items():
            yield pointer, name
            yield from _texts(member, f"{pointer}/{escape_pointer(name)}")


def escape_pointer(name: str) -> str:
    """A name as a part of a JSON pointer. Source: RFC 6901 section 3."""
    return name.replace("~", "~0").replace("/", "~1")


WINDOW = 16 * 1024
_STRIDE = 64 * 1024
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)++', re.DOTALL)
_IN_OTHERS = re.compile(rb'[^,"\[\]{}]++')
_DELTAS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_FILLER = f"filler-{secrets.token_hex(12)}"  # a name that nobody else can write


def read_strict_in_steps(
    raw: bytes, max_depth: int = MAX_DEPTH, most: Sequence[int] = (), window_bytes: int = WINDOW
) -> Steps[bytes]:
    """As `read_strict` reads it.

    `most`: how many items the arrays that are members of the document may have, then those in the objects of these
    arrays. A lone surrogate is reported without its place.
    """
    if raw.startswith(BOM):
        raise reject(MALFORMED_JSON, "the body begins with a byte order mark")
    reader = _Reader(max_depth, most)
    pieces: list[bytes] = []
    at, size, is_last = 0, window_bytes, False
    while not is_last:
        window, is_last = raw[at : at + size], at + size >= len(raw)
        text = _Text(window, is_last=is_last)
        if text.size or is_last:
            pieces.append(reader.read(window[: text.size], text, at, is_last=is_last))
            at, size = at + text.size, window_bytes
        else:
            # Without commas there are two brackets and a name for each level, and one text.
            if text.quotes > 2 * (max_depth + 1) or len(_find_brackets(window)) > 2 * max_depth:
                raise reject(MALFORMED_JSON, f"a comma is missing near byte {at + size}")
            end = at + size
            if text.quotes % 2:
                end = max(end, (yield from _find_end(raw, at + text.rest_at, _IN_TEXT)))
            else:
                end = yield from _find_end(raw, end, _IN_OTHERS)
            size = end - at + window_bytes
        yield
    return b"".join(pieces)


def _find_end(raw: bytes, at: int, token: re.Pattern[bytes]) -> Steps[int]:
    """Where the long text, number or blank ends that goes on at this place."""
    while found := token.match(raw, at, at + _STRIDE):
        at = found.end()
        yield
    return at


def _find_brackets(window: bytes) -> bytes:
    """The characters outside of texts."""
    outside = b'"'.join(_hide_escapes(window).split(b'"')[::2])
    return outside.translate(None, NOT_BRACKETS)


def _hide_escapes(window: bytes) -> bytes:
    """Control bytes cannot occur in valid JSON, so they can stand for escapes of quotes; the length stays."""
    return window.replace(b"\\\\", b"\x01\x01").replace(b'\\"', b"\x02\x02") if b"\\" in window else window


class _Text:
    """A window up to its last comma outside of texts, split into the parts inside and outside of texts."""

    def __init__(self, window: bytes, *, is_last: bool) -> None:
        self.parts = _hide_escapes(window).split(b'"')
        self.quotes = len(self.parts) - 1
        self.rest_at = len(window) - len(self.parts[-1])
        self.size = len(window) if is_last else self._cut()
        self.outside = b'"'.join(self.parts[::2])

    def _cut(self) -> int:
        """Drops what stands behind the last comma; 0 if there is none."""
        parts = self.parts
        if len(parts) % 2 == 0:
            parts.pop()
        while parts:
            comma = parts[-1].rfind(b",")
            if comma >= 0:
                parts[-1] = parts[-1][: comma + 1]
                return sum(map(len, parts)) + len(parts) - 1
            del parts[-2:]
        return 0

    def compact(self, window: bytes) -> bytes:
        """Without white space between tokens."""
        tight = self.outside.translate(None, WHITESPACE)
        if len(tight) == len(self.outside):
            return window
        self.parts[::2] = tight.split(b'"')
        joined = b'"'.join(self.parts)
        return joined.replace(b"\x02\x02", b'\\"').replace(b"\x01\x01", b"\\\\")


class _Reader:
    """What is open where a window begins: brackets from the outside in, with the names of objects."""

    def __init__(self, max_depth: int, most: Sequence[int]) -> None:
        self._max_depth = max_depth
        self._most = most
        self._open = ""
        self._names: dict[int, set[str]] = {}  # of open objects, by their depth
        self._counts: dict[int, int] = {}  # of items of open arrays that are bounded
        self._seen: dict[int, set[str]] = {}  # of the window's objects that go on behind it
        self._kept = 0  # so many of the open brackets stay open throughout the window
        self._characters = 0
        self._decoder = make_decoder(self._note)

    def read(self, window: bytes, text: _Text, at: int, *, is_last: bool) -> bytes:
        """The window without white space. Raises Rejected."""
        before = self._open
        after = self._find_open(text.outside)
        if bool(after) is is_last or set(after) - {"[", "{"}:
            raise reject(MALFORMED_JSON, f"brackets do not match near byte {at + len(window)}")
        try:
            decoded = window.decode()
        except UnicodeDecodeError as error:
            raise reject(MALFORMED_JSON, f"byte {at + error.start} is not UTF-8") from None
        head = _begin(before)
        self._seen = {}
        try:
            document = self._decoder.decode(head + decoded + _end(after))
        except NotStrict as error:
            raise reject(MALFORMED_JSON, str(error)) from None
        except ValueError as error:
            place = self._characters + min(max(getattr(error, "pos", 0) - len(head), 0), len(decoded))
            raise reject(MALFORMED_JSON, f"not JSON at character {place}: {getattr(error, 'msg', error)}") from None
        if SURROGATE.search(window):
            self._check_surrogates(document)
        self._bound(document, before, after)
        self._names = {level: names for level, names in self._names.items() if level < self._kept} | self._seen
        self._open = after
        self._characters += len(decoded)
        return text.compact(window)

    def _find_open(self, outside: bytes) -> str:
        """The brackets that are open behind the window. Notes how many were open all the time."""
        brackets = outside.translate(None, NOT_BRACKETS)
        depths = list(accumulate(map(_DELTAS.__getitem__, brackets), initial=len(self._open)))
        if max(depths) > self._max_depth:
            raise reject(MALFORMED_JSON, f"nested deeper than {self._max_depth} levels")
        self._kept = max(min(depths), 0)
        rest = self._open + brackets.decode()
        while rest != (shorter := rest.replace("[]", "").replace("{}", "")):
            rest = shorter
        return rest

    def _note(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        """An object has ended, really or at the window's end. Refuses names that stand in it twice."""
        members = unique([pair for pair in pairs if not pair[0].startswith(_FILLER)])
        if len(members) == len(pairs):
            return members
        is_begun_before = pairs[0][0].startswith(_FILLER)
        level = int(pairs[0 if is_begun_before else -1][0].rpartition(" ")[2])
        known = self._names[level] if is_begun_before else set()
        if not known.isdisjoint(members):
            raise NotStrict("a name is repeated in one object")
        if level < self._kept or not is_begun_before:
            known.update(members)
            self._seen[level] = known
        return dict(pairs)

    def _bound(self, document: object, before: str, after: str) -> None:
        """Refuses arrays with too many items where they are bounded, before anybody makes something of each."""
        counts: dict[int, int] = {}
        objects = [document]
        for index, most in enumerate(self._most):
            level = 1 + 2 * index
            arrays = [v for o in objects if isinstance(o, dict) for v in o.values() if isinstance(v, list)]
            for number, array in enumerate(arrays):
                is_begun_before = number == 0 and self._is_chain(before, level)
                count = len(array) - is_begun_before
                if is_begun_before:
                    count += self._counts.get(level, 0)
                if number == len(arrays) - 1 and self._is_chain(after, level):
                    counts[level] = count = count - (len(after) == level + 1)
                if count > most:
                    raise reject(INVALID_REQUEST, f"more than {most} items in one array", ("", f"at most {most} items"))
            objects = [item for array in arrays for item in array]
        self._counts = counts

    @staticmethod
    def _is_chain(brackets: str, level: int) -> bool:
        """Whether a bounded array is open at this level."""
        return (brackets + " " * level)[: level + 1] == "{[" * ((level + 1) // 2)

    @staticmethod
    def _check_surrogates(document: object) -> None:
        try:
            check_surrogates(document)
        except Rejected as rejected:
            raise reject(INVALID_REQUEST, rejected.problem.detail) from None


def _begin(brackets: str) -> str:
    """What was open before a window: the innermost holds a member already, the others are in the midst of one."""
    outer = "".join(["[" if b == "[" else f'{{"{_FILLER} {n}":' for n, b in enumerate(brackets[:-1])])
    if not brackets:
        return ""
    return outer + ("[0," if brackets[-1] == "[" else f'{{"{_FILLER} {len(brackets) - 1}":0,')


def _end(brackets: str) -> str:
    """Closes what is open behind a window, whose last byte is a comma."""
    closed = []
    for level in reversed(range(len(brackets))):
        is_innermost = level == len(brackets) - 1
        if brackets[level] == "{":
            closed.append(f'{"" if is_innermost else ","}"{_FILLER}, {level}":0}}')
        else:
            closed.append("0]" if is_innermost else "]")
    return "".join(closed)
