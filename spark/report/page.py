"""`report.html`: what a run found, for people. One file, no script; whatever comes from users stays text."""

import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from spark.judge.findings import ADVICE, CLEARED, NEW, WARNINGS, Advice, Finding
from spark.judge.rules import FindingKind
from spark.judge.totals import BOOK_COLUMNS
from spark.read.window import Window

_INK, _FILL = "#2f3b52", "#4c78a8"
_OF_PAGE = {_INK: "var(--ink)", _FILL: "var(--bar)"}  # light or dark is known to the page alone
_WIDTH_IN, _HEIGHT_IN = 3.6, 2.3  # so small that its text can be read on a phone
_LABELS = 8
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "outbox-bridge",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
}


def bars(name: str, title: str, labels: Sequence[str], counts: Sequence[int], unit: str = "transactions") -> str:
    """One bar a label; `name` keeps the ids of several plots in one page apart."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.bar(range(len(labels)), counts, color=_FILL, width=0.8)
        shown = range(0, len(labels), -(-len(labels) // _LABELS) or 1)
        is_crowded = sum(len(labels[index]) for index in shown) > 34
        axes.set_xticks(
            list(shown),
            [labels[index] for index in shown],
            rotation=40 if is_crowded else 0,
            ha="right" if is_crowded else "center",
            rotation_mode="anchor",
        )
        axes.set_xlim(-0.6, max(len(labels), 3) - 0.4)
        axes.set_ylabel(unit)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, max(*counts, 1) * 1.05)
        return _embed(figure, name, title, _describe(labels, counts, unit))


def _describe(labels: Sequence[str], counts: Sequence[int], unit: str) -> str:
    """For screen readers: the shape in a sentence; the numbers are in the table beside it."""
    most = max(range(len(counts)), key=counts.__getitem__)
    return f"{len(labels)} bars, {sum(counts):,} {unit}; the highest, {counts[most]:,}, at {labels[most]}."


def _embed(figure: Figure, name: str, title: str, described: str) -> str:
    raw = io.StringIO()
    figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
    drawing = raw.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r'(xlink:href="|url\()#', rf"\g<1>#{name}-", drawing)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub("|".join(_OF_PAGE), lambda found: _OF_PAGE[found[0]], drawing)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", drawing, count=1)
    told = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(described)}</desc>'
    opening = f'<svg role="img" aria-labelledby="{name}-title {name}-desc"'
    return re.sub(r"<svg([^>]*)>", lambda found: f"{opening}{found[1]}>{told}", drawing, count=1)


_LISTED = 200  # findings shown, shared among the kinds
_MOST_ROWS = 1_000
_MOST_RUNS = 30
_MOST_LEGS = 50  # of a finding; of a record that was copied in a loop there may be a million
_PARTS = {
    "findings": "Findings",
    "books": "Books",
    "times": "Times",
    "checks": "Back-checks",
    "ages": "Open ones",
    "drift": "Earlier runs",
    "read": "What was read",
    "offsets": "Offsets",
}
_HEADS = {"opening": "open before", "open": "still open"}
_AGES = {
    60: "under 1 min",
    600: "1 to 10 min",
    3_600: "10 min to 1 h",
    21_600: "1 to 6 h",
    86_400: "6 h to 1 day",
    None: "over 1 day",
}
_SPANS = {
    "prepared → ended": "prepared_to_ended",
    "ended → visible": "ended_to_visible",
    "prepared → visible": "prepared_to_visible",
}
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


@dataclass(frozen=True, slots=True)
class KindPart:
    """What the page says of one kind. `topics`: with their numbers, the most first; `shown`: new ones first."""

    kind: FindingKind
    advice: Advice
    total: int
    new: int
    topics: Sequence[tuple[str, int]]
    shown: Sequence[Finding]


def make_page(
    window: Window,
    summary: Mapping[str, Any],
    findings: Sequence[Finding],
    drift: Sequence[Mapping[str, Any]],
    repairs: int = 0,
) -> str:
    """The page. `drift`: the ledger's lines up to this run, or nothing; `repairs`: how many calls are proposed."""
    pages = Environment(
        loader=PackageLoader("spark"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= _FILTERS
    late = drift[-_MOST_RUNS:]
    buckets = _fill(summary["times"]["buckets"])
    ages = [(_AGES[seconds], count) for seconds, count in summary["ages"]]
    return pages.get_template("report.html").render(
        summary=summary,
        verdict=_tell_verdict(summary),
        parts=_PARTS.items(),
        kinds=_by_kind([finding for finding in findings if finding.state != CLEARED]),
        repairs=repairs,
        book_columns=BOOK_COLUMNS,
        book_heads=[(_HEADS.get(name, name.replace("_", " ")), 1) for name in BOOK_COLUMNS],
        most_rows=_MOST_ROWS,
        most_legs=_MOST_LEGS,
        spans=[(label, summary["times"][name]) for label, name in _SPANS.items()],
        buckets=buckets,
        ages=ages,
        drift=late,
        hidden_runs=len(drift) - len(late),
        read={
            name: sum(row[name] for row in summary["partitions"]) for name in ("rows", "holes", "foreign", "unreadable")
        },
        plots=_draw(buckets, summary["checks"], ages, late),
        ends=_tell_ends(window),
    )


def show_count(number: int) -> str:
    """A number with its thousands marked."""
    return f"{number:,}"


def show_counted(number: int, thing: str) -> str:
    """How many of what."""
    return f"{number:,} {thing if number == 1 else thing + 's'}"


def show_duration(ms: int) -> str:
    """Milliseconds as people say them; below ten seconds to the millisecond."""
    if abs(ms) < 10_000:
        return f"{ms:,} ms"
    size, unit = next((size, unit) for size, unit in _UNITS if abs(ms) >= size)
    return f"{ms / size:.1f} {unit}"


def show_plain(text: str) -> str:
    """Text from elsewhere with every sign that cannot be seen, or turns others round, written out."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def show_when(time: str) -> str:
    """A time of ours for people."""
    return time.replace("T", " ").replace("Z", " UTC")


_FILTERS = {
    "count": show_count,
    "counted": show_counted,
    "duration": show_duration,
    "plain": show_plain,
    "when": show_when,
}


def _tell_verdict(summary: Mapping[str, Any]) -> dict[str, str]:
    """In a word and a colour."""
    if summary["exit_code"] not in {0, WARNINGS}:
        return {"word": "FINDINGS", "tone": "fail"}
    if not summary["findings"]["total"]:
        return {"word": "PASS", "tone": "pass"}
    return {"word": "PASS, WITH WARNINGS" if summary["exit_code"] == 0 else "WARNINGS", "tone": "warn"}


def _by_kind(standing: Sequence[Finding]) -> list[KindPart]:
    """The worst kind first; each has its share of what is shown, so that none hides another."""
    found = {kind: [finding for finding in standing if finding.kind == kind] for kind in FindingKind}
    present = [kind for kind in FindingKind if found[kind]]
    share = _LISTED // max(1, len(present))
    parts = []
    for kind in present:
        ones = found[kind]
        topics = Counter(finding.topic or "no topic known" for finding in ones)
        parts.append(
            KindPart(
                kind,
                ADVICE[kind],
                len(ones),
                sum(finding.state == NEW for finding in ones),
                sorted(topics.items(), key=lambda pair: (-pair[1], pair[0])),
                sorted(ones, key=lambda finding: finding.state != NEW)[:share],
            )
        )
    return parts


def _fill(buckets: Sequence[Sequence[int]]) -> list[tuple[str, int]]:
    """Times in buckets that double, none left out between the first and the last."""
    found = {(low + 1).bit_length() - 1: count for low, count in buckets}
    if not found:
        return []
    return [(_tell_bucket(power), found.get(power, 0)) for power in range(min(found), max(found) + 1)]


def _tell_bucket(power: int) -> str:
    return "under 1 ms" if power == 0 else f"from {_round_duration(2**power - 1)}"


def _round_duration(ms: int) -> str:
    """For the name of a bucket: its bound in one short number."""
    size, unit = next(((size, unit) for size, unit in _UNITS if ms + 1 >= size), (1, "ms"))
    return f"{ms / size:.1f}".removesuffix(".0") + f" {unit}"


def _draw(
    buckets: Sequence[tuple[str, int]],
    checks: Sequence[Sequence[int]],
    ages: Sequence[tuple[str, int]],
    drift: Sequence[Mapping[str, Any]],
) -> dict[str, Markup]:
    """The plots by name; nothing where there is nothing to be seen. Their labels are numbers and times of ours."""
    when = [row["taken_at"][5:16].replace("T", " ") for row in drift]
    wanted = {
        "times": (
            "Prepared to visible",
            [label.removeprefix("from ") for label, _ in buckets],
            [n for _, n in buckets],
        ),
        "checks": ("Answered back-checks", [str(number) for number, _ in checks], [n for _, n in checks]),
        "ages": ("Ages of open transactions", [label for label, _ in ages], [n for _, n in ages]),
        "prepared": ("Prepared, run by run", when, [row["prepared"] for row in drift]),
        "found": ("Findings, run by run", when, [row["findings"] for row in drift]),
    }
    return {
        name: _frame(
            title, bars(f"plot-{name}", title, labels, counts, "findings" if name == "found" else "transactions")
        )
        if any(counts)
        else Markup()
        for name, (title, labels, counts) in wanted.items()
    }


def _frame(title: str, drawing: str) -> Markup:
    return Markup(f"<figure><figcaption>{title}</figcaption>{drawing}</figure>")  # noqa: S704 - all of it is ours


def _tell_ends(window: Window) -> str:
    """The end of every partition as JSON, a line a topic."""
    topics = sorted({place.topic for place in window.extents})
    ends = {
        topic: {str(place.part): extent.end for place, extent in window.ranges_of([topic]).items()} for topic in topics
    }
    lines = (f" {json.dumps(topic)}: {json.dumps(parts)}" for topic, parts in ends.items())
    return "{\n" + ",\n".join(lines) + "\n}"
