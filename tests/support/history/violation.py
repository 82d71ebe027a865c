"""What can be wrong, and the promise of `docs/design.md` that it breaks."""

from enum import Enum

from msgspec import Struct


class Kind(Enum):
    """Promise and name of a finding."""

    LOST = ("L", "lost")
    TORN = ("L", "torn")
    PHANTOM = ("P", "phantom")
    ABORTED_READ = ("P", "aborted read")
    DUPLICATE = ("D", "duplicate")
    TWICE_PREPARED = ("D", "prepared twice")
    CORRUPT = ("I", "corrupt")
    WRONG_PLACE = ("I", "wrong place")
    OUT_OF_ORDER = ("O", "out of order")
    NOT_CONSERVED = ("C", "not conserved")
    CONTRADICTION = ("F", "contradiction")
    DISAGREEMENT = ("F", "views disagree")
    CHANGED_ANSWER = ("F", "changed answer")
    WRONG_RECEIPT = ("F", "wrong receipt")
    EARLY_CHECK = ("K", "early check")
    LATE_CHECK = ("K", "late check")
    TOO_MANY_CHECKS = ("K", "too many checks")
    MISCOUNTED_CHECK = ("K", "miscounted check")
    STRANGE_CHECK = ("K", "strange check")
    FALSE_REFUSAL = ("A", "false refusal")
    FALSE_ACCEPT = ("A", "false accept")
    MIXTURE = ("A", "mixture")
    UNRECOVERED = ("A", "unrecovered")
    FORGOTTEN = ("S", "forgotten")
    BAD_PARK = ("S", "bad park")
    UNSETTLED = ("T", "unsettled")

    @property
    def promise(self) -> str:
        """The letter."""
        return str(self.value[0])


class Violation(Struct, frozen=True, gc=False):
    """One finding; `text` is a sentence with its evidence."""

    kind: Kind
    transaction_id: str | None
    text: str

    def __str__(self) -> str:
        promise, name = self.kind.value
        return f"{promise} {name} {self.transaction_id or '-'}: {self.text}"
