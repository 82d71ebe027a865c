"""Plots as SVG, without script and the same for the same numbers; text stays text."""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK, _FILL = "#2f3b52", "#4c78a8"
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "outbox-bridge",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "text.color": _INK,
}


def bars(name: str, labels: Sequence[str], counts: Sequence[int], axis: str) -> str:
    """One bar a label; `name` keeps the ids of several plots in one page apart."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(6.4, 2.6), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.bar(range(len(labels)), counts, color=_FILL, width=0.8)
        axes.set_xticks(range(len(labels)), labels, rotation=45 if len(labels) > 8 else 0)
        axes.set_xlabel(axis)
        axes.set_ylabel("transactions")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return _embed(figure, name)


def _embed(figure: Figure, name: str) -> str:
    raw = io.StringIO()
    figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
    drawing = raw.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r'(xlink:href="|url\()#', rf"\g<1>#{name}-", drawing)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    return re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", drawing, count=1)
