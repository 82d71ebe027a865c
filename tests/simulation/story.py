"""What happened in a run, in order: told to a reader, and made into one number that a replay must meet."""

import hashlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

_NO_NEWS = {"event", "exc_info", "level"}


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


def log_into(story: Story, name: Callable[[], str]) -> None:
    """What the bridge logs, from information on, is part of the story; `name`: of the process that runs."""

    def keep(_: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        members = " ".join(f"{key}={value}" for key, value in sorted(event.items()) if key not in _NO_NEWS)
        story.tell(f"node {name()}", f"{method}: {event['event']} {members}")
        raise structlog.DropEvent

    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(20))
