"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence

MADE = "<!-- Made from the code by `python -m tests.references`: change it there. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """With lines in cells made blanks."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell(text) for text in line) + " |\n" for line in lines)


def cell(text: str) -> str:
    """Fit for a table."""
    return " ".join(text.replace("|", "\\|").split())


def code(text: object) -> str:
    """As it is typed; nothing for nothing."""
    return f"`{text}`" if str(text) else ""
