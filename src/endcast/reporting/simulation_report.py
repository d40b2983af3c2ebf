"""A simulation as one page for someone who never read about routing: what is lost, what would be gained, what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from endcast.reporting.figures import as_svg, style, write_png
from endcast.reporting.page import render, safe, write_page
from endcast.reporting.simulation_command import command
from endcast.reporting.simulation_figures import (
    class_figure,
    forecast_figure,
    load_figure,
    policy_figure,
    time_figure,
)
from endcast.reporting.simulation_summary import Simulated, forecast_results
from endcast.reporting.simulation_words import (
    cards,
    columns,
    forecast_rows,
    lead,
    left_out,
    longest_waits,
    losses,
    result_rows,
    settings_rows,
    setup,
)

Draw = Callable[..., Figure]
#: Name of the plot's file, how it is drawn, and what it is for those who do not see it.
PLOTS: Mapping[str, tuple[Draw, str]] = MappingProxyType(
    {
        "time": (time_figure, "Where decode time goes and how requests spend theirs, simulated"),
        "loads": (load_figure, "Load of each worker over time, idle share and waiting requests, simulated"),
        "policies": (policy_figure, "Throughput, efficiency and waits of each policy, simulated"),
        "waits": (class_figure, "Waits by prompt and output length, simulated"),
        "forecasts": (forecast_figure, "Efficiency and mean wait by quality of forecasts, simulated"),
    }
)
_ON_WHITE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def write_report(simulated: Simulated, path: Path) -> None:
    """The page, in one file that fetches nothing. The same simulation gives the same bytes."""
    plots = {name: _inline(name, simulated) for name in _drawable(simulated)}
    values = {
        "title": f"endcast: {simulated.report.settings['log']}, simulated",
        "lead": lead(simulated),
        "cards": cards(simulated),
        "setup": setup(simulated),
        "losses": losses(simulated),
        "columns": columns(simulated),
        "rows": result_rows(simulated),
        "longest": longest_waits(simulated),
        "forecast_rows": forecast_rows(simulated),
        "left_out": left_out(simulated),
        "command": command(simulated),
        "settings": settings_rows(simulated),
        "warnings": simulated.warnings,
        "today": simulated.today,
        "plots": plots,
    }
    write_page(path, render("simulation.html.j2", values))


def write_plots(simulated: Simulated, folder: Path) -> list[Path]:
    """All plots as PNG on white, ``policies.png`` the one that says most."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in _drawable(simulated):
        draw, _ = PLOTS[name]
        paths.append(folder / f"{name}.png")
        with matplotlib.rc_context(_ON_WHITE):
            write_png(draw(simulated, narrow=False), paths[-1])
            plt.close("all")
    return paths


def _drawable(simulated: Simulated) -> list[str]:
    return [name for name in PLOTS if name != "forecasts" or forecast_results(simulated)]


def _inline(name: str, simulated: Simulated) -> Markup:
    """The plot twice, for a screen and for a phone; the page shows one of them."""
    draw, label = PLOTS[name]
    parts = []
    for size in ("wide", "narrow"):
        with style():
            svg = as_svg(draw(simulated, narrow=size == "narrow"), label)
        # Ids have to be unique over the page: a clip path of a plot that is not shown cuts nothing in one that is.
        own = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-{size}-", svg)
        parts.append(f'<div class="{size}">{own}</div>')
    return safe("".join(parts))
