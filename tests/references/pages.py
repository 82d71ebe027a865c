"""The pages of docs/ that are made from the code, and how each is made."""

from collections.abc import Callable, Mapping

from tests.references.commands import make_commands
from tests.references.events import make_events
from tests.references.http import make_http
from tests.references.problem_types import make_problems
from tests.references.settings import make_settings

PAGES: Mapping[str, Callable[[], str]] = {
    "problems.md": make_problems,
    "reference/settings.md": make_settings,
    "reference/commands.md": make_commands,
    "reference/http.md": make_http,
    "reference/events.md": make_events,
}
