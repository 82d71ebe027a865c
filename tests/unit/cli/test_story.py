"""api.cli.demo: events of a timeline in words."""

from typing import Any

import pytest

from api.cli.demo import describe


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "prepared", "by": "producer"}, "has the message stored in Kafka, where nobody sees it"),
        ({"type": "end", "by": "check", "resolution": "COMMIT"}, "records COMMIT, as the shop answered"),
        (
            {"type": "check_unanswered", "by": "check", "failure": "refused"},
            "asks the shop what became of it: no answer (refused)",
        ),
        ({"type": "check_answered", "by": "check", "answer": "COMMIT"}, "asks the shop what became of it: COMMIT"),
        ({"type": "published", "by": None}, "has published it: consumers can read it"),
        ({"type": "blocked", "by": None}, None),
    ],
)
def test_each_event_is_told_in_words(event: dict[str, Any], text: str | None) -> None:
    """What belongs to no story is left out."""
    assert describe(event) == text
