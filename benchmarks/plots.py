"""Plots of a run's curves as SVG, the same bytes for the same figures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.model import AXES, PARTS

_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")


def draw_costs(curves: dict[str, Any], path: Path) -> None:
    """A small plot for each curve: CPU of each part, one on top of the other."""
    names = [name for name in AXES if name in curves]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "outbox-bridge", "font.size": 8}):
        figure, grid = plt.subplots(2, 4, figsize=(11, 5), sharey=True, layout="constrained")
        for axes, name in zip(grid.flat, names, strict=False):
            _draw(axes, name, curves[name])
        for axes in list(grid.flat)[len(names) :]:
            axes.axis("off")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        grid.flat[-1].legend(handles[::-1], labels[::-1], loc="center", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _draw(axes: Axes, name: str, points: list[dict[str, float]]) -> None:
    places = range(len(points))
    below = [0.0] * len(points)
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        heights = [point[part] for point in points]
        axes.bar(places, heights, bottom=below, color=colour, label=part, width=0.7)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xticks(list(places), [f"{point['x']:,.0f}" for point in points])
    axes.set_xlabel(AXES[name])
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        axes.set_ylabel("us of CPU for a transaction")
