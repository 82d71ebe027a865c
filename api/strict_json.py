"""Strict JSON: what other parsers let pass is refused, and numbers and texts keep the bytes they came with.

Standard parsers take the last of two equal names, accept NaN, and recurse as deep as the sender likes; two
parsers on one message's way would then read different things.
"""

import json
import re
from collections.abc import Callable, Iterator

from api.problems import MALFORMED_JSON, invalid, reject

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
    # Control bytes cannot occur in valid JSON, so they can stand for escapes while texts are told apart.
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
