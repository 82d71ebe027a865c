"""Who may do what, and whose contents are hidden from whom. Pure. Nothing is allowed that is not granted."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bridge.core.message import Header, JsonText, Message, read_json_text

# --- who may do what ---

_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}\*?|\*")
PRINCIPAL_NAME = "^[A-Za-z0-9._@:-]{1,120}$"
# signatures of tokens that are verified
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
USUAL_ALGORITHMS = ("RS256", "ES256", "EdDSA")
_is_name = re.compile(PRINCIPAL_NAME[1:-1]).fullmatch
_MOST_KNOWN, _LONGEST_KNOWN = 10_000, 500


class Verb(StrEnum):
    """What can be granted."""

    PREPARE = "prepare"
    DECIDE = "decide"
    CHECK = "check"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    __hash__ = str.__hash__  # each call asks several times; an enum's own is not in C


class Grant(NamedTuple):
    """A verb for some producer groups and, where messages are prepared, for some topics.

    `groups`, `topics`: a name; the beginning of names and `*`, as Kafka's prefixed patterns; or `*` for all.
    """

    verb: Verb
    groups: str
    topics: str = "*"


def _find_only(grants: Iterable[Grant]) -> str | None:
    groups = {grant.groups for grant in grants}
    only = groups.pop() if len(groups) == 1 else "*"
    return None if only.endswith("*") else only


class Rights:
    """What a principal's grants allow."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self.grants = tuple(sorted(set(grants)))
        self._by_verb = {verb: [grant for grant in self.grants if grant.verb is verb] for verb in Verb}
        self._only_groups = {verb: _find_only(grants) for verb, grants in self._by_verb.items()}
        # by verb, group and topic: each prepare asks, and no tuple is made for it
        self._known: dict[Verb, dict[str, dict[str, bool]]] = {verb: {} for verb in Verb}
        self._known_count = 0
        self._everywhere = frozenset(
            grant.verb
            for grant in self.grants
            if grant.groups == "*" and (grant.topics == "*" or grant.verb is not Verb.PREPARE)
        )

    def may(self, verb: Verb, group: str, topic: str = "") -> bool:
        """Whether it is allowed for this group, and with this topic if there is one."""
        if verb in self._everywhere:
            return True
        try:
            return self._known[verb][group][topic]
        except KeyError:
            return self._learn(verb, group, topic)

    def _learn(self, verb: Verb, group: str, topic: str) -> bool:
        if self._known_count >= _MOST_KNOWN:
            self._known, self._known_count = {verb: {} for verb in Verb}, 0
        allowed = any(
            matches(grant.groups, group) and (not topic or matches(grant.topics, topic))
            for grant in self._by_verb[verb]
        )
        if len(group) + len(topic) <= _LONGEST_KNOWN:  # longer ones are no names, and may have megabytes
            self._known[verb].setdefault(group, {})[topic] = allowed
            self._known_count += 1
        return allowed

    def may_somewhere(self, verb: Verb) -> bool:
        """Whether it is allowed for any group at all."""
        return bool(self._by_verb[verb])

    def may_everywhere(self, verb: Verb) -> bool:
        """Whether it is allowed for every group, and with every topic."""
        return verb in self._everywhere

    def find_only_group(self, verb: Verb) -> str | None:
        """The one group for which it is allowed; None if there are others, or could be."""
        return self._only_groups[verb]


EVERYTHING = Rights(Grant(verb, "*") for verb in Verb)


def is_principal_name(text: str) -> bool:
    """Whether a principal can have this name."""
    return _is_name(text) is not None


def is_pattern(text: str) -> bool:
    """Whether a grant can name groups or topics so."""
    return _PATTERN.fullmatch(text) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


# --- contents that are not for everybody who may read a group: headers and members of JSON values, by rules ---

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
