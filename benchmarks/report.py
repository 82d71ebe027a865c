"""`python -m benchmarks.report`: tables and plot of docs/performance.md, made anew from the kept results."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import FIGURES
from benchmarks.model import AXES, BRIDGE, PARTS, Model, Sample, choose_queues, fit
from benchmarks.outcome import LATEST
from tests.support.source_tree import ROOT

PLOT = "performance/costs.svg"
PRODUCERS, RECONCILIATION = "producers", "reconciliation"
NOTHING_YET = "No run of `make bench` is kept yet that measured this."


def make_table(document: dict[str, Any], of: str = "") -> list[str]:
    """Figures as Markdown, with what they were measured on: those of a run with a table of its own, or all others."""
    own = {PRODUCERS, RECONCILIATION}
    runs = {name: run for name, run in document["runs"].items() if (name == of if of else name not in own)}
    known = {name for run in runs.values() for name in run["figures"]}
    shown = [name for name in FIGURES if name in known]
    if not shown:
        return [NOTHING_YET]
    lines = [_tell_machine(document), *[_tell_run(name, run) for name, run in runs.items()]]
    lines += ["", "| figure | name | median | range | asked for | aim |", "|---|---|---|---|---|---|"]
    return lines + [f"| {' | '.join(_make_cells(name, document))} |" for name in shown]


def _tell_machine(document: dict[str, Any]) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    return f"{machine['cpus']} processors shared by broker, bridge and load, {machine['memory_gib']} GiB; {versions}."


def _tell_run(name: str, run: dict[str, Any]) -> str:
    shape = run["shape"]
    told = {"python": run["python"], **run.get("remarks", {})}
    remarks = "".join(f" {word.capitalize()}: {text}." for word, text in told.items())
    return (
        f"Run `{name}`: commit {run['commit']}, {run['when'][:10]}, {shape['queues']} queue(s), {shape['apis']} api"
        f" and {shape['settlers']} settler process(es).{remarks}"
    )


def make_curves(curves: dict[str, Sequence[dict[str, float]]]) -> list[str]:
    """Each curve as a table."""
    lines: list[str] = []
    for name, points in curves.items():
        lines += ["", f"| {AXES[name]} | transactions/s | {' | '.join(PARTS)} | all, us |", "|---" * 7 + "|"]
        for point in points:
            costs = [point[part] for part in PARTS]
            shown = " | ".join(f"{cost:.1f}" for cost in costs)
            lines.append(f"| {point['x']:,.0f} | {point['per_second']:,.0f} | {shown} | {sum(costs):.1f} |")
    return lines


def make_profiles(profiles: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Where the time goes: a table for each load, the parts side by side."""
    lines: list[str] = []
    for load, parts in profiles.items():
        places = sorted({place for found in parts.values() for place in found})
        places.sort(key=lambda place: -sum(found.get(place, 0.0) for found in parts.values()))
        lines += ["", f"| {load}: us for a transaction | {' | '.join(parts)} |", "|---" * (len(parts) + 1) + "|"]
        lines += [f"| {place} | {' | '.join(_cell(found, place) for found in parts.values())} |" for place in places]
        sums = [f"{sum(found.values()):.1f}" for found in parts.values()]
        lines.append(f"| all | {' | '.join(sums)} |")
    return lines


def _cell(found: dict[str, float], place: str) -> str:
    return f"{found[place]:.1f}" if found.get(place, 0.0) >= 0.1 else ""


def make_model(document: dict[str, Any]) -> list[str]:
    """What larger sets should do. Nothing here is measured but the costs."""
    curves = document["curves"]
    usual, replicated = curves["queues"][0], curves["brokers"][-1]
    points = [(1, p) for p in curves["load"]] + [(int(p["x"]), p) for p in curves["queues"]]
    whole = _fit(points, PARTS)
    bridge = _fit(points, BRIDGE)
    busy = usual["per_second"] * sum(usual[part] for part in PARTS) / 1e6 / document["machine"]["cpus"]
    queues = choose_queues(whole, 16 * busy, usual["settler"])
    apart = choose_queues(bridge, 16 * busy, usual["settler"])
    broker_limit = 3 * 16 * busy * 1e6 / replicated["broker"]
    projection = 1e6 / usual["projector"]
    rows = [
        ("16 processors for everything, one broker", queues, whole.predict(16 * busy, queues)),
        ("16 processors for the bridge, three brokers with 16 each", apart, bridge.predict(16 * busy, apart)),
    ]
    fitted = (
        f"Fitted: {whole.own_us:.0f} us for each transaction and {whole.queue_cores:.2f} processors for each busy"
        f" queue's Kafka transactions, with {busy:.0%} of the processors busy, as measured."
    )
    limits = (
        f"The three brokers alone would take {broker_limit:,.0f}/s. One projector writes {projection:,.0f}/s: beyond"
        " that commits go on, and search falls behind."
    )
    lines = [
        fitted,
        "",
        "| set (a model, not measured) | queues, each with a settler | transactions/s |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {count} | {rate:,.0f} |" for name, count, rate in rows]
    return [*lines, "", limits]


def _fit(points: Sequence[tuple[int, dict[str, float]]], parts: Sequence[str]) -> Model:
    return fit([Sample(queues, p["per_second"], sum(p[part] for part in parts)) for queues, p in points])


def _make_cells(name: str, document: dict[str, Any]) -> Sequence[str]:
    figure, median = FIGURES[name], document["figures"][name]
    least, most = document["ranges"][name]
    asked = "" if figure.least is None else f"{figure.least:,g}"
    if figure.reaches(median) is False:
        asked += ", **missed**"
    aim = "" if figure.aim is None else f"{figure.aim:,g}"
    return (figure.title, f"`{name}`", f"{_show(median)} {figure.unit}", f"{_show(least)}..{_show(most)}", asked, aim)


def _show(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _put_between(page: str, name: str, lines: Sequence[str]) -> str:
    """Raises ValueError if the page has no such place."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"no place for {name}: {begin} ... {end}")
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def main() -> int:
    """Exit code 1: the page has no place for what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=LATEST)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    options = parser.parse_args()
    document = json.loads(options.results.read_text())
    page = options.page.read_text()
    try:
        page = _put_between(page, "figures", make_table(document))
        for run in (PRODUCERS, RECONCILIATION):
            page = _put_between(page, run, make_table(document, run))
        if "profiles" in document:
            page = _put_between(page, "profiles", make_profiles(document["profiles"]))
        if "curves" in document:
            page = _put_between(page, "curves", [f"![CPU for a transaction]({PLOT})", *make_curves(document["curves"])])
            page = _put_between(page, "model", make_model(document))
            from benchmarks.plots import draw_costs  # noqa: PLC0415 - matplotlib is installed for benchmarks only

            draw_costs(document["curves"], options.page.parent / PLOT)
    except ValueError as missing:
        print(f"{options.page}: {missing}", file=sys.stderr)
        return 1
    options.page.write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
