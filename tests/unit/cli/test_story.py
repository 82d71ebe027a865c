"""api.cli.demo: events of a timeline in words, and what to do next."""

import sys
from pathlib import Path
from typing import Any

import pytest

from api.cli.demo import _name_command, describe


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


def test_next_commands_can_be_typed_as_they_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment is not active, as after `make demo`; and under any other name as everywhere."""
    command = tmp_path / ".venv" / "bin" / "outbox-bridge"
    command.parent.mkdir(parents=True)
    command.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(command), "demo"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert _name_command() == ".venv/bin/outbox-bridge"
    monkeypatch.setenv("PATH", str(command.parent))
    assert _name_command() == "outbox-bridge"
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py", "demo"])
    assert _name_command() == "outbox-bridge"
