"""Calls that asked for a transaction and never heard its id; some of them made one all the same."""

from collections.abc import Sequence

from msgspec import Struct, field

from tests.support.history.content import prints_of
from tests.support.history.events import Invoke


class Claim(Struct, gc=False):
    """One such call. `is_used`: a transaction was found that it made."""

    invoke: Invoke
    is_refused: bool
    is_used: bool = False


class _Waiting(Struct):
    """Claims with the same bytes; those with an unknown outcome come first."""

    unknown: list[Claim] = field(default_factory=list)
    refused: list[Claim] = field(default_factory=list)

    def last(self) -> Claim | None:
        """One that is not used. Used ones are dropped, so that none is looked at again and again."""
        for claims in (self.unknown, self.refused):
            while claims and claims[-1].is_used:
                claims.pop()
            if claims:
                return claims[-1]
        return None


class Claims:
    """Found by idempotency key, else by the bytes of all their messages, else of any of them."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], list[Claim]] = {}
        self._by_print: dict[bytes, _Waiting] = {}

    def add(self, invoke: Invoke, *, is_refused: bool) -> None:
        """A prepare or publish without an answer that names its transaction."""
        claim = Claim(invoke, is_refused)
        if invoke.idempotency_key is not None:
            self._by_key.setdefault((invoke.group or "", invoke.idempotency_key), []).append(claim)
        prints = prints_of(invoke.messages)
        for each in {b"".join(prints), *prints}:
            waiting = self._by_print.setdefault(each, _Waiting())
            (waiting.refused if is_refused else waiting.unknown).append(claim)

    def take(self, group: str | None, key: str | None, prints: Sequence[bytes]) -> Claim | None:
        """A call that may have made this transaction, rather one with an unknown outcome than a refused one.

        A keyed call may have been repeated; any of them stands for all. An unkeyed one made one transaction at most.
        """
        keyed = [] if key is None else self._by_key.get((group or "", key), [])
        found = keyed and self._choose_same(keyed, set(prints))
        chosen = min(found or self._find_same(prints), key=lambda claim: claim.is_refused, default=None)
        if chosen is not None and chosen.invoke.idempotency_key is None:
            chosen.is_used = True
        return chosen

    @staticmethod
    def _choose_same(keyed: list[Claim], prints: set[bytes]) -> list[Claim]:
        """Those with one of the messages; all, if there is none: their content arrived changed."""
        return [claim for claim in keyed if prints & set(prints_of(claim.invoke.messages))] or keyed

    def _find_same(self, prints: Sequence[bytes]) -> list[Claim]:
        for names in ((b"".join(prints),), prints):
            waiting = [self._by_print[name] for name in names if name in self._by_print]
            found = [claim for claim in (each.last() for each in waiting) if claim is not None]
            if found:
                return found
        return []
