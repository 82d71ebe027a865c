"""How often the cluster may be asked for topics nobody here knows: by one producer group, and by all together."""

from collections.abc import Collection, Mapping
from itertools import chain, islice, zip_longest

_OTHERS = ""  # groups for which there is no bucket of their own


class Bucket:
    """So many a second, and as many at once."""

    __slots__ = ("_at_ms", "_left", "_per_s")

    def __init__(self, per_s: int, now: int) -> None:
        self._per_s = per_s
        self._left = float(per_s)
        self._at_ms = now

    def has_one(self, now: int) -> bool:
        """Whether one may be taken."""
        self._fill(now)
        return self._left >= 1

    def is_full(self, now: int) -> bool:
        """Whether it is as a new one would be."""
        self._fill(now)
        return self._left >= self._per_s

    def take(self) -> None:
        """Takes one; ask `has_one` before."""
        self._left -= 1

    def give_back(self) -> None:
        """Puts one back."""
        self._left = min(self._per_s, self._left + 1)

    def _fill(self, now: int) -> None:
        self._left = min(self._per_s, self._left + (now - self._at_ms) * self._per_s / 1000)
        self._at_ms = now


class Budget:
    """A question costs one of all, and one of each group that it is asked for. Full buckets are forgotten."""

    def __init__(self, per_s: int, group_per_s: int, max_groups: int, now: int) -> None:
        self._all = Bucket(per_s, now)
        self._group_per_s = group_per_s
        self._max_groups = max_groups
        self._groups: dict[str, Bucket] = {}

    def take(self, groups: Collection[str], now: int) -> list[str]:
        """Pays for one question for those of the groups that have something left; which they are."""
        if not self._all.has_one(now):
            return []
        paying = {group: bucket for group in groups if (bucket := self._find(group, now)).has_one(now)}
        if paying:
            self._all.take()
        for bucket in set(paying.values()):
            bucket.take()
        return list(paying)

    def give_back(self, groups: Collection[str], now: int) -> None:
        """The question was worth it: what was asked for is there."""
        self._all.give_back()
        for bucket in {self._find(group, now) for group in groups}:
            bucket.give_back()

    def _find(self, group: str, now: int) -> Bucket:
        found = self._groups.get(group)
        if found is None:
            if len(self._groups) >= self._max_groups:
                self._groups = {name: bucket for name, bucket in self._groups.items() if not bucket.is_full(now)}
            name = group if len(self._groups) < self._max_groups else _OTHERS
            found = self._groups.setdefault(name, Bucket(self._group_per_s, now))
        return found


def choose_in_turn(names_of: Mapping[str, Collection[str]], most: int) -> list[str]:
    """At most so many names, each once: the first of each group, then the second of each, and so on."""
    rows = zip_longest(*names_of.values())
    names = dict.fromkeys(name for name in chain.from_iterable(rows) if name is not None)
    return list(islice(names, most))
