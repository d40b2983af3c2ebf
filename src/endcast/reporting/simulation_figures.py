"""The plots of a simulation, each wide for a screen or narrow for a phone. All that they show is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from endcast.reporting.figures import COLOURS
from endcast.reporting.run_details import LoadOverTime, RunDetails, WaitOfClass
from endcast.reporting.simulation_summary import (
    NO_WINDOW,
    Kind,
    Simulated,
    by_efficiency,
    forecast_results,
    key_of,
    kind_of,
    label_of,
)
from endcast.router.results import PolicyResult

WIDE_IN, NARROW_IN = 9.6, 4.5
BLUE, VERMILION, GREEN, PURPLE, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6], COLOURS[7]
COLOUR_OF = {Kind.DISPATCH: GREY, Kind.POOL: GREEN, Kind.FORECAST: BLUE, Kind.ORACLE: PURPLE}
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")
_PERCENT = FuncFormatter(lambda value, _: f"{100.0 * value:g}%" if value <= 1.0 else "")
#: What the marks of waits mean.
_MARKS = tuple(
    Line2D([], [], linestyle="", marker=mark, color=GREY, markersize=size, markeredgewidth=1.8, label=label)
    for mark, size, label in (("o", 5, "median wait"), ("|", 9, "99 of 100 wait less"), ("x", 5, "longest wait"))
)
#: From idle to as loaded as the heaviest.
_FULLNESS = "viridis"


def compared(simulated: Simulated) -> list[PolicyResult]:
    """Today's policy and the best, or only one where these are the same."""
    now, best = simulated.now, simulated.best
    return [now] if best is now else [now, best]


def followed(simulated: Simulated) -> list[PolicyResult]:
    """The few results that plots with several lines show: today's, BR-0, the best, true lengths."""
    named = [result for result in simulated.report.results if result.policy == NO_WINDOW]
    oracle = [result for result in simulated.report.results if kind_of(result) is Kind.ORACLE]
    chosen = {key_of(result): result for result in [simulated.now, *named, simulated.best, *oracle[:1]]}
    return list(chosen.values())


def _panels(
    narrow: bool, count: int, height: float, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Side by side on a screen, one below the other on a phone; ``height`` in inches of one panel."""
    if narrow:
        figure, axes = plt.subplots(count, 1, figsize=(NARROW_IN, height * count), layout="constrained", squeeze=False)
        return figure, list(axes[:, 0])
    figure, axes = plt.subplots(
        1, count, figsize=(WIDE_IN, height), layout="constrained", squeeze=False, width_ratios=ratios
    )
    return figure, list(axes[0])


def _rows(axis: Axes, names: Sequence[str], *, labelled: bool = True, narrow: bool = False) -> None:
    """Names of the rows, the first on top; on a phone long ones take several lines."""
    if narrow:
        names = [name.replace(", ", ",\n") if len(name) > 20 else name for name in names]
    axis.set_yticks(range(len(names)), names if labelled else [""] * len(names), fontsize=8 if narrow else 10)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")


def time_figure(simulated: Simulated, *, narrow: bool) -> Figure:
    """Where decode time goes, and how a request spends its time: today's policy and the best."""
    results = compared(simulated)
    figure, (fleet, request) = _panels(narrow, 2, 1.25 + 0.5 * len(results))
    details = [simulated.details[key_of(result)] for result in results]
    shares = [one.shares for one in details]
    parts = {
        "fixed cost of steps": ([share.fixed for share in shares], GREY),
        "reading KV": ([share.reading for share in shares], BLUE),
        "lost to imbalance": ([share.imbalance for share in shares], VERMILION),
    }
    _stacked(fleet, parts, lambda value: f"{value:.0%}")
    fleet.set(xlim=(0, 1), title="simulated decode time of the fleet")
    fleet.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    seconds = {
        "waits for a slot": ([one.wait_s for one in details], VERMILION),
        "decodes": ([one.decode_s for one in details], BLUE),
    }
    _stacked(request, seconds, lambda value: f"{value:,.0f} s" if value >= 10 else f"{value:.1f} s")
    request.set(title="simulated mean time of a request")
    request.xaxis.set_major_locator(MaxNLocator(3 if narrow else 5, integer=True))
    request.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} s"))
    names = [label_of(result) for result in results]
    for axis, labelled in ((fleet, True), (request, narrow)):
        _rows(axis, names, labelled=labelled, narrow=narrow)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3 if axis is fleet else 2, fontsize=8.5,
                    columnspacing=1.0, handlelength=1.0)  # fmt: skip
    return figure


def _stacked(axis: Axes, parts: dict[str, tuple[list[float], str]], write: Callable[[float], str]) -> None:
    totals = np.sum([values for values, _ in parts.values()], axis=0)
    left = np.zeros_like(totals)
    for name, (values, colour) in parts.items():
        bars = axis.barh(np.arange(len(totals)), values, left=left, height=0.62, color=colour, label=name)
        wide_enough = [write(value) if value > 0.07 * totals.max() else "" for value in values]
        axis.bar_label(bars, wide_enough, label_type="center", color="white", fontsize=9, fontweight="bold")
        left = left + np.array(values)


def load_figure(simulated: Simulated, *, narrow: bool) -> Figure:
    """How full each worker is over time, the idle work that follows, and how many requests wait."""
    results = compared(simulated)
    strips = 0.22 * min(max(simulated.report.settings["workers"], 5), 12)
    heights = [strips] * len(results) + [1.1, 1.1]
    figure, axes = plt.subplots(
        len(heights), 1, sharex=True, layout="constrained", height_ratios=heights,
        figsize=(NARROW_IN if narrow else WIDE_IN, sum(heights) + 1.4),
    )  # fmt: skip
    details = [simulated.details[key_of(result)].over_time for result in results]
    minutes = details[0].until_s / 60.0
    image = _strips(axes, details, results, minutes)
    where: Any = {"location": "top", "aspect": 30} if narrow else {"location": "right", "aspect": 20}
    bar = figure.colorbar(image, ax=list(axes[: len(results)]), pad=0.02, **where)
    bar.set_label("load, of the heaviest worker's" if narrow else "load, of the\nheaviest worker's")
    (bar.ax.xaxis if narrow else bar.ax.yaxis).set_major_formatter(PercentFormatter(1.0, 0))
    bar.outline.set_visible(False)
    _lines(axes[-2:], details, results, minutes)
    return figure


def _strips(
    axes: Sequence[Axes], details: Sequence[LoadOverTime], results: Sequence[PolicyResult], minutes: float
) -> AxesImage:
    """A row for each worker; colours begin where all but the emptiest twentieth lies."""
    lowest = min(float(np.quantile(over_time.fullness, 0.05)) for over_time in details)
    floor = min(max(np.floor(10.0 * lowest) / 10.0, 0.0), 0.9)
    for axis, over_time, result in zip(axes, details, results, strict=False):
        image = axis.imshow(
            over_time.fullness, aspect="auto", extent=(0, minutes, len(over_time.load) + 0.5, 0.5), cmap=_FULLNESS,
            vmin=floor, vmax=1.0, interpolation="nearest",
        )  # fmt: skip
        axis.set_title(label_of(result), loc="left", fontsize=10)
        axis.set_ylabel("worker")
        axis.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        axis.grid(visible=False)
    return image


def _lines(
    axes: Sequence[Axes], details: Sequence[LoadOverTime], results: Sequence[PolicyResult], minutes: float
) -> None:
    idle, waiting = axes
    for i, (over_time, result) in enumerate(zip(details, results, strict=True)):
        colour = VERMILION if i == 0 else BLUE
        x = (np.arange(len(over_time.waiting)) + 0.5) * minutes / len(over_time.waiting)
        idle.plot(x, over_time.idle, color=colour, linewidth=1.3, label=label_of(result))
        waiting.plot(x, over_time.waiting, color=colour, linewidth=1.3)
    usual = max(float(np.quantile(over_time.idle, 0.95)) for over_time in details)
    idle.set(ylim=(0.0, max(1.25 * usual, 0.02)), ylabel="idle")  # an empty fleet that fills would squeeze all the rest
    idle.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    waiting.set_ylim(bottom=0.0)
    waiting.set(ylabel="waiting", xlabel="minutes since the first arrival, simulated", xlim=(0, minutes))
    waiting.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    waiting.yaxis.set_major_formatter(_THOUSANDS)
    idle.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8.5, borderaxespad=0.0)


def policy_figure(simulated: Simulated, *, narrow: bool) -> Figure:
    """Throughput, efficiency and waits of every policy; whiskers are standard deviations over the runs."""
    results = by_efficiency(simulated)
    figure, (speed, efficiency, wait) = _panels(narrow, 3, 1.2 + (0.34 if narrow else 0.3) * len(results), [1, 1, 1.15])
    _dots(speed, results, "throughput", lambda value: f"{value:,.0f}")
    speed.set_title("simulated tokens a second")
    speed.xaxis.set_major_formatter(_THOUSANDS)
    _dots(efficiency, results, "efficiency", lambda value: f"{100.0 * value:.1f}%")
    efficiency.set_title("simulated efficiency")
    efficiency.xaxis.set_major_formatter(_PERCENT)
    _waits(wait, results)
    names = [label_of(result) + (" (today)" if result is simulated.now else "") for result in results]
    for axis, labelled in ((speed, True), (efficiency, narrow), (wait, narrow)):
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.title.set_fontsize(10)
        _rows(axis, names, labelled=labelled, narrow=narrow)
    handles = [*_kinds(results), *_MARKS]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 if narrow else 4, fontsize=8.5)
    return figure


def _kinds(results: Sequence[PolicyResult]) -> Iterator[Line2D]:
    present = {kind_of(result) for result in results}
    for kind in Kind:
        if kind in present:
            yield Line2D([], [], linestyle="", marker="o", color=COLOUR_OF[kind], label=kind.value)


def _dots(axis: Axes, results: Sequence[PolicyResult], name: str, write: Callable[[float], str]) -> None:
    values = [float(result.mean[name]) for result in results]
    for row, (result, value) in enumerate(zip(results, values, strict=True)):
        colour = COLOUR_OF[kind_of(result)]
        spread = float(result.spread[name])
        axis.errorbar(value, row, xerr=spread or None, fmt="o", color=colour, markersize=6, capsize=2.5, elinewidth=1.2)
        axis.annotate(
            write(value), (value + spread, row), (7, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    low, high = min(values), max(values)
    span = max(high - low, 0.01 * high, 1e-9)
    axis.set_xlim(low - 0.12 * span, high + 0.42 * span)


def _waits(axis: Axes, results: Sequence[PolicyResult]) -> None:
    for row, result in enumerate(results):
        wait, colour = result.mean["wait_s"], COLOUR_OF[kind_of(result)]
        axis.plot([wait["p50"], wait["max"]], [row, row], color=colour, linewidth=1.4, alpha=0.6)
        axis.plot(wait["p50"], row, "o", color=colour, markersize=6)
        axis.plot(wait["p99"], row, "|", color=colour, markersize=11, markeredgewidth=2.0)
        axis.plot(wait["max"], row, "x", color=colour, markersize=5.5, markeredgewidth=1.6)
    axis.set_xlim(left=0.0)
    axis.set_title("simulated wait for a slot, s")
    axis.xaxis.set_major_formatter(_THOUSANDS)


def class_figure(simulated: Simulated, *, narrow: bool) -> Figure:
    """Who waits: by prompt length and by output length, mean and 99th percentile, for a few policies."""
    figure, panels = _panels(narrow, 2, 3.0)
    results = followed(simulated)
    for axis, what in zip(panels, ("prompt", "output"), strict=True):
        for i, result in enumerate(results):
            classes = _classes(simulated.details[key_of(result)], what)
            colour = COLOUR_OF[kind_of(result)] if i else VERMILION
            x = np.arange(len(classes)) + 0.13 * (i - (len(results) - 1) / 2)
            means, high = [c.mean for c in classes], [c.p99 for c in classes]
            axis.vlines(x, means, high, color=colour, linewidth=1.2, alpha=0.6)
            axis.plot(x, means, "o", color=colour, markersize=6, label=label_of(result))
            axis.plot(x, high, "_", color=colour, markersize=9, markeredgewidth=2.0)
        axis.set_xticks(range(len(classes)), [c.label for c in classes], fontsize=8.5)
        axis.set(xlabel=f"{what} tokens, classes of about equal size", ylim=(0, None))
        axis.yaxis.set_major_formatter(_THOUSANDS)
        axis.grid(visible=False, axis="x")
    panels[0].set_ylabel("simulated wait, s\n● mean, – 99 of 100")
    if narrow:
        panels[1].set_ylabel("simulated wait, s\n● mean, – 99 of 100")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=1 if narrow else 4, fontsize=8.5
    )
    return figure


def _classes(details: RunDetails, what: str) -> tuple[WaitOfClass, ...]:
    return details.by_prompt if what == "prompt" else details.by_output


def forecast_figure(simulated: Simulated, *, narrow: bool) -> Figure:
    """What no, poor, good and perfect forecasts give: efficiency, and the mean wait."""
    results = forecast_results(simulated)
    figure, (efficiency, wait) = _panels(narrow, 2, 1.1 + 0.36 * len(results))
    _dots(efficiency, results, "efficiency", lambda value: f"{100.0 * value:.2f}%")
    efficiency.set_title("simulated efficiency", fontsize=10)
    efficiency.xaxis.set_major_formatter(_PERCENT)
    for row, result in enumerate(results):
        mean, spread = float(result.mean["wait_s"]["mean"]), float(result.spread["wait_s"]["mean"])
        colour = COLOUR_OF[kind_of(result)]
        wait.errorbar(mean, row, xerr=spread or None, fmt="o", color=colour, markersize=6, capsize=2.5, elinewidth=1.2)
        text = f"{mean:,.0f} s" if mean >= 10 else f"{mean:.1f} s"
        wait.annotate(text, (mean + spread, row), (7, 0), textcoords="offset points", va="center", fontsize=8.5)
    longest = max(float(result.mean["wait_s"]["mean"]) for result in results)
    wait.set_xlim(0.0, 1.25 * longest if longest > 0.0 else 1.0)
    wait.set_title("simulated mean wait for a slot", fontsize=10)
    wait.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} s"))
    for axis, labelled in ((efficiency, True), (wait, narrow)):
        axis.xaxis.set_major_locator(MaxNLocator(4))
        _rows(axis, [label_of(result) for result in results], labelled=labelled, narrow=narrow)
    return figure
