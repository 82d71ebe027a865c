"""Tables of small histories: a line with a name, then indented lines with its script and "=>" the kinds of findings."""

from collections.abc import Iterator

import pytest

from tests.support.history_script import tell


def history_cases(table: str) -> pytest.MarkDecorator:
    """A parameter for each case; nothing behind the script, or no "=>" at all: nothing must be found."""
    return pytest.mark.parametrize(
        ("script", "kinds"), [pytest.param(script, kinds, id=name) for name, script, kinds in _read(table)]
    )


def check_kinds(script: str, kinds: str) -> None:
    """Exactly these kinds of findings."""
    verdict = tell(script).judge()
    found = {violation.kind.name for violation in verdict.violations}
    assert found == set(kinds.split()), "\n".join(map(str, verdict.violations))


def _read(table: str) -> Iterator[tuple[str, str, str]]:
    cases: dict[str, str] = {}
    name = ""
    for line in table.strip("\n").splitlines():
        if line.startswith(" "):
            cases[name] += line
            continue
        name = line
        assert name not in cases, f"two cases are called {name!r}"
        cases[name] = ""
    for name, text in cases.items():
        script, _, kinds = text.partition("=>")
        yield name, script, kinds
