"""What happened in a run, in order: told to a reader, and made into one number that a replay must meet."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Story:
    """Lines of (virtual time since the start, who, what)."""

    now_ms: Callable[[], int]
    lines: list[tuple[int, str, str]] = field(default_factory=list)

    def tell(self, who: str, what: str) -> None:
        """One more event."""
        self.lines.append((self.now_ms(), who, what))

    def hash(self) -> str:
        """Equal for equal stories."""
        return hashlib.blake2b(repr(self.lines).encode(), digest_size=8).hexdigest()

    def text(self) -> str:
        """A line an event."""
        return "\n".join(f"{at:>7} ms  {who:<12} {what}" for at, who, what in self.lines)
