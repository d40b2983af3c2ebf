"""A sweep as a plot and a page: mean against tail, point by point."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from endcast.reporting.figures import COLOURS, as_svg, style, write_png
from endcast.reporting.page import render, safe, write_page
from endcast.reporting.simulation_summary import label_of
from endcast.reporting.sweep_words import LEGEND, TITLES, command, lead, policy_label, rows, settings_label, title
from endcast.router.results import PolicyResult
from endcast.router.sweep import Sweep

LABEL = "Mean E2E against p99 E2E of each point, simulated"
_BLUE, _ORANGE, _GREY = COLOURS[0], COLOURS[1], COLOURS[7]
_WIDE_IN, _NARROW_IN, _HEIGHT_IN = 9.6, 4.5, 4.6


def trade_figure(found: Sweep, *, narrow: bool = False) -> Figure:
    """Mean E2E to the right, p99 upwards: the best lie at the lower left; efficient points are joined."""
    figure, axis = plt.subplots(figsize=(_NARROW_IN if narrow else _WIDE_IN, _HEIGHT_IN), layout="constrained")
    small = 7 if narrow else 9
    for point, efficient in zip(found.points, found.efficient, strict=True):
        _mark(axis, point.result, settings_label(point.varied), _BLUE if efficient else _ORANGE, "o", small)
    frontier = sorted(point.trade for point, yes in zip(found.points, found.efficient, strict=True) if yes)
    axis.plot(*zip(*frontier, strict=True), color=_BLUE, linewidth=1.0, zorder=1)
    for result in found.beside:
        _mark(axis, result, label_of(result), _GREY, "s", small)
    axis.set(xlabel="mean E2E, s (simulated)", ylabel="p99 E2E, s (simulated)", title=policy_label(found))
    axis.margins(x=0.25, y=0.12)
    return figure


def _mark(axis: Axes, result: PolicyResult, text: str, colour: str, marker: str, size: int) -> None:
    mean, spread = result.mean["e2e_s"], result.spread["e2e_s"]
    axis.errorbar(
        mean["mean"], mean["p99"], xerr=spread["mean"], yerr=spread["p99"], color=colour, marker=marker, markersize=5,
        elinewidth=0.8, linestyle="",
    )  # fmt: skip
    axis.annotate(text, (mean["mean"], mean["p99"]), xytext=(6, 4), textcoords="offset points", fontsize=size)


def write_plot(found: Sweep, folder: Path) -> Path:
    """``sweep.png`` on white."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sweep.png"
    with matplotlib.rc_context({"axes.grid": True, "grid.alpha": 0.25}):
        write_png(trade_figure(found), path)
        plt.close("all")
    return path


def write_report(found: Sweep, path: Path) -> None:
    """The page, in one file that fetches nothing."""
    with style():
        plot = safe(as_svg(trade_figure(found), LABEL))
    values = {
        "title": f"endcast: a sweep over {', '.join(found.names)}, simulated",
        "lead": lead(found),
        "plot": plot,
        "setup": title(found),
        "titles": TITLES,
        "rows": rows(found),
        "legend": LEGEND,
        "olp": sorted(found.settings["olp"].items()),
        "command": command(found),
        "warnings": found.settings["warnings"],
    }
    write_page(path, render("sweep.html.j2", values))
