"""Who may do what: grants of a principal, and what follows from them. Pure. Nothing is allowed that is not granted."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}\*?|\*")
PRINCIPAL_NAME = "^[A-Za-z0-9._@:-]{1,120}$"
_is_name = re.compile(PRINCIPAL_NAME[1:-1]).fullmatch
_MOST_KNOWN = 10_000


class Verb(StrEnum):
    """What can be granted."""

    PREPARE = "prepare"
    DECIDE = "decide"
    CHECK = "check"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


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
        self._known: dict[tuple[Verb, str, str], bool] = {}
        self._everywhere = frozenset(
            grant.verb
            for grant in self.grants
            if grant.groups == "*" and (grant.topics == "*" or grant.verb is not Verb.PREPARE)
        )

    def may(self, verb: Verb, group: str, topic: str = "") -> bool:
        """Whether it is allowed for this group, and with this topic if there is one."""
        if verb in self._everywhere:
            return True
        asked = verb, group, topic
        known = self._known.get(asked)
        if known is None:
            known = any(
                matches(grant.groups, group) and (not topic or matches(grant.topics, topic))
                for grant in self._by_verb[verb]
            )
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[asked] = known
        return known

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
