"""`python -m benchmarks.report`: the table in docs/performance.md, made anew from the kept results."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import FIGURES
from tests.support.source_tree import ROOT

_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"


def make_table(document: dict[str, Any]) -> str:
    """The figures of a run as Markdown, with what they were measured on."""
    machine, shape = document["machine"], document["shape"]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    lines = [
        f"Commit {document['commit']}, {document['when'][:10]}.",
        f"{machine['cpus']} processors shared by broker, bridge and load, {machine['memory_gib']} GiB;",
        f"{shape['queues']} queues, {shape['apis']} api and {shape['settlers']} settler processes; {versions}.",
        "",
        "| figure | name | median | range | asked for | aim |",
        "|---|---|---|---|---|---|",
    ]
    for name, figure in FIGURES.items():
        if name in document["figures"]:
            least, most = document["ranges"][name]
            asked = "" if figure.least is None else f"{figure.least:,g}"
            if figure.reaches(document["figures"][name]) is False:
                asked += ", **missed**"
            aim = "" if figure.aim is None else f"{figure.aim:,g}"
            cells = (
                figure.title,
                f"`{name}`",
                f"{_show(document['figures'][name])} {figure.unit}",
                f"{_show(least)}..{_show(most)}",
                asked,
                aim,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _show(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def main() -> int:
    """Exit code 1: the page has no place for the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "latest.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    options = parser.parse_args()
    page = options.page.read_text()
    if _BEGIN not in page or _END not in page:
        print(f"{options.page} has no {_BEGIN}", file=sys.stderr)
        return 1
    before, after = page.split(_BEGIN)[0], page.split(_END)[1]
    table = make_table(json.loads(options.results.read_text()))
    options.page.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
