"""Plots as SVG, without script and the same for the same numbers; text stays text, colours are those of the page."""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

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
