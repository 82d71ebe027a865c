"""Contents that are not for everybody who may read a group: headers and members of JSON values, by rules. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bridge.core.grants import matches
from bridge.core.message import Header, JsonText, Message, read_json_text

MASK = "***"
ANY_MEMBER = "*"
_MASKED = MASK.encode()
_MASKED_JSON = msgspec.Raw(msgspec.json.encode(MASK))
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class MaskRule(NamedTuple):
    """What is masked of messages to a topic, or to topics that begin so (`name*`).

    `headers`: names, in any case. `paths`: members of a JSON value, as `customer.iban`; `*` is any member, and arrays
    are gone through.
    """

    topic: str
    headers: Sequence[str] = ()
    paths: Sequence[str] = ()


class Masks:
    """Rules; each message is shown as all that fit its topic let it."""

    def __init__(self, rules: Iterable[MaskRule] = ()) -> None:
        self._rules = tuple(rules)

    def concern(self, messages: Iterable[Message]) -> bool:
        """Whether a rule fits the topic of any of them."""
        return any(matches(rule.topic, message.topic) for message in messages for rule in self._rules)

    def apply(self, messages: Iterable[Message]) -> list[Message]:
        """The messages as they may be shown."""
        return [self._apply(message) for message in messages]

    def _apply(self, message: Message) -> Message:
        rules = [rule for rule in self._rules if matches(rule.topic, message.topic)]
        names = {name.lower() for rule in rules for name in rule.headers}
        headers = [_mask_header(header, names) for header in message.headers] if names else message.headers
        paths = [path.split(".") for rule in rules for path in rule.paths]
        value = message.value
        return replace(message, headers=headers, value=_mask_value(value, paths) if value and paths else value)


def _mask_header(header: Header, names: set[str]) -> Header:
    name, value = header
    return header if value is None or name.lower() not in names else (name, _MASKED)


def _mask_value(value: bytes, paths: Iterable[Sequence[str]]) -> bytes:
    """Nothing but JSON has members, so of anything else nothing is shown."""
    text = read_json_text(value)
    if not isinstance(text, JsonText):
        return _MASKED
    masked = msgspec.Raw(text.encode())
    try:
        for path in paths:
            masked = _mask_members(masked, path)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return _MASKED
    return bytes(masked)


def _mask_members(place: msgspec.Raw, path: Sequence[str]) -> msgspec.Raw:
    """Everything else stays as it is written, numbers digit by digit."""
    if not path:
        return _MASKED_JSON
    kind = bytes(place).lstrip()[:1]
    if kind == b"[":
        items = [_mask_members(item, path) for item in _items.decode(place)]
        return msgspec.Raw(msgspec.json.encode(items))
    if kind != b"{":
        return place
    name, *rest = path
    members = {
        key: _mask_members(member, rest) if name in {key, ANY_MEMBER} else member
        for key, member in _members.decode(place).items()
    }
    return msgspec.Raw(msgspec.json.encode(members))
