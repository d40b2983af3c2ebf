"""Accuracy over time for people: rows of a table, a plot, and a page around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from endcast.predictors.drift import DriftReport
from endcast.reporting.figures import COLOURS, as_svg, style, write_png
from endcast.reporting.page import render, safe, write_page
from endcast.training.rolling import Rolling, TimeWindow

#: Heads of the table's columns.
TITLES = (
    "window",
    "requests",
    "end\nwithin H",
    "skill",
    "skill,\nfrozen",
    "AUC",
    "ECE",
    "ECE,\nfrozen",
    "ECE if\ncalibrated",
    "happened /\nforecast",
    "the same,\nfrozen",
    "drift z",
    "drift z,\nfrozen",
    "alarm",
)
#: Units of time, longest first: the first of which a span holds a few.
UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))
FEW = 3.0


def shown_horizon(rolling: Rolling) -> str:
    """The horizon that tables and plots show: 64, or the middle one."""
    names = list(rolling.pooled.horizons)
    return "64" if "64" in names else names[len(names) // 2]


def unit_of(rolling: Rolling) -> tuple[str, float]:
    """The unit of time that the log's span is told in, and its seconds."""
    span = rolling.pooled.until_s
    return next((unit for unit in UNITS if span >= FEW * unit[1]), UNITS[-1])


def window_rows(rolling: Rolling) -> list[list[str]]:
    """Cells of the table: the windows in order, then all of them together."""
    name, unit = unit_of(rolling)
    return [
        _cells(f"{window.from_s / unit:.1f} to {window.until_s / unit:.1f} {name}", window, shown_horizon(rolling))
        for window in rolling.windows
    ] + [_cells("all", rolling.pooled, shown_horizon(rolling))]


def _cells(label: str, window: TimeWindow, horizon: str) -> list[str]:
    figures, drift = window.horizons[horizon], window.drift
    online, frozen = figures.online, figures.frozen
    return [
        label,
        f"{window.requests:,}",
        f"{figures.base_rate:.3f}",
        f"{online.brier_skill:.3f}",
        f"{frozen.brier_skill:.3f}",
        f"{online.auc:.3f}",
        f"{online.ece:.4f}",
        f"{frozen.ece:.4f}",
        f"{figures.ece_if_calibrated:.4f}",
        f"{online.ratio:.2f}",
        f"{frozen.ratio:.2f}",
        f"{drift.z:+.1f}",
        f"{_largest(drift):+.1f}",
        _alarm(drift),
    ]


def _largest(drift: DriftReport) -> float:
    """The z of the frozen model's measure that deviates most."""
    return max((one.z for one in drift.frozen.values() if one.z == one.z), key=abs, default=float("nan"))


def _alarm(drift: DriftReport) -> str:
    return "served" if drift.alarm else "model" if drift.model_alarm else "–"


def verdict(rolling: Rolling) -> str:
    """One sentence on whether recalibration keeps forecasts honest over time."""
    horizon = shown_horizon(rolling)
    figures = rolling.pooled.horizons[horizon]
    return (
        f"At H = {horizon} stated chances are off by {figures.online.ece:.4f} in the mean with online recalibration, by "
        f"{figures.frozen.ece:.4f} without; a perfectly calibrated forecaster shows {figures.ece_if_calibrated:.4f} on as "
        f"many draws. The model alone set off an alarm in {_count(rolling, 'model_alarm')}, forecasts as served in "
        f"{_count(rolling, 'alarm')}."
    )


def _count(rolling: Rolling, name: str) -> str:
    alarms = sum(getattr(window.drift, name) for window in rolling.windows)
    return f"{alarms} of {len(rolling.windows)} windows"


def over_time_figure(rolling: Rolling) -> Figure:
    """Calibration error, happened over forecast, and skill by window, with recalibration and without."""
    horizon, (name, unit) = shown_horizon(rolling), unit_of(rolling)
    middle = [(window.from_s + window.until_s) / 2.0 / unit for window in rolling.windows]
    found = [window.horizons[horizon] for window in rolling.windows]
    figure, axes = plt.subplots(3, 1, figsize=(7.2, 6.4), sharex=True, squeeze=False)
    errors, ratios, skills = axes[:, 0]
    _both(errors, middle, [f.online.ece for f in found], [f.frozen.ece for f in found])
    calibrated = [f.ece_if_calibrated for f in found]
    errors.plot(middle, calibrated, color=COLOURS[-1], linestyle=":", label="if perfectly calibrated")
    errors.set(ylabel="calibration error", ylim=(0, None), title=f"H = {horizon}")
    _both(ratios, middle, [f.online.ratio for f in found], [f.frozen.ratio for f in found])
    ratios.axhline(1.0, color=COLOURS[-1], linewidth=0.8, linestyle="--")
    ratios.set(ylabel="happened / forecast")
    ratios.margins(y=0.2)  # room for rings
    _mark_alarms(ratios, rolling, middle)
    _both(skills, middle, [f.online.brier_skill for f in found], [f.frozen.brier_skill for f in found])
    skills.set(ylabel="Brier skill", xlabel=f"arrival, {name} after the log's first")
    errors.legend(ncols=3, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 1.0))
    errors.set_ylim(0, errors.get_ylim()[1] * 1.25)  # room for the legend
    figure.align_ylabels()
    return figure


def _both(axis: Axes, middle: Sequence[float], online: Sequence[float], frozen: Sequence[float]) -> None:
    axis.plot(middle, online, color=COLOURS[0], marker="o", markersize=4, label="with recalibration")
    axis.plot(middle, frozen, color=COLOURS[1], marker="s", markersize=4, linestyle="--", label="without")


def _mark_alarms(axis: Axes, rolling: Rolling, middle: Sequence[float]) -> None:
    """A ring around each window in which a measure of the frozen model, or of what was served, set off an alarm."""
    horizon = shown_horizon(rolling)
    for kind, colour, attribute in (("online", COLOURS[0], "alarm"), ("frozen", COLOURS[1], "model_alarm")):
        rings = [
            (x, getattr(window.horizons[horizon], kind).ratio)
            for x, window in zip(middle, rolling.windows, strict=True)
            if getattr(window.drift, attribute)
        ]
        if rings:
            label = "drift alarm, as served" if kind == "online" else "drift alarm, model"
            at, ratios = zip(*rings, strict=True)
            axis.scatter(at, ratios, s=130, facecolors="none", edgecolors=colour, label=label)
    if axis.get_legend_handles_labels()[1][2:]:
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles[2:], labels[2:], fontsize=9)


def write_plots(rolling: Rolling, folder: Path) -> list[Path]:
    """``over_time.png`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "over_time.png"
    with style():
        write_png(over_time_figure(rolling), path)
    return [path]


def write_report(rolling: Rolling, log: str, path: Path) -> None:
    """The page, in one file."""
    with style():
        plot = as_svg(over_time_figure(rolling), "Calibration, observed over expected ends, and skill over time")
    values = {
        "title": f"endcast: accuracy over time on {log}",
        "verdict": verdict(rolling),
        "horizon": shown_horizon(rolling),
        "titles": TITLES,
        "rows": window_rows(rolling),
        "plot": safe(plot),
        "explanations": [
            (row[0], window.drift.explanation)
            for row, window in zip(window_rows(rolling), [*rolling.windows, rolling.pooled], strict=True)
        ],
        "method": _method(rolling, log),
        "bundle": rolling.bundle,
    }
    write_page(path, render("rolling.html.j2", values))


def _method(rolling: Rolling, log: str) -> str:
    return (
        f"On {log}, lived through twice in order of arrival, with online recalibration and without: each request was forecast "
        f"with what had finished before it came. {rolling.pooled.requests:,} requests, {rolling.pooled.draws:,} (request, "
        f"elapsed) pairs, population {rolling.population}; {rolling.cut:,} requests that were cut count for drift only."
    )
