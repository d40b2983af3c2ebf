"""A sweep in words and rows: the terminal's table and the page read them here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from endcast.reporting.olp_words import olp_arguments, written
from endcast.reporting.simulation_summary import forecast_label, label_of
from endcast.router.results import PolicyResult
from endcast.router.sweep import Sweep

TITLES = (
    "settings", "efficient", "tokens/s", "efficiency", "E2E s, mean", "p99", "wait s, mean", "p99", "longest", "rejected",
)  # fmt: skip
LEGEND = (
    "efficient: no other point of the sweep has a mean E2E and a p99 E2E that are both no higher, and one of them lower. "
    "± is the standard deviation over runs; all of it is simulated."
)


def settings_label(varied: Mapping[str, Any]) -> str:
    """``w_tail 4, w_ttft 0.5``."""
    return ", ".join(f"{name} {written(value)}" for name, value in varied.items())


def title(found: Sweep) -> str:
    """What was swept, in one line."""
    told = found.settings
    runs = "1 run" if found.seeds == 1 else f"means of {found.seeds} runs ± standard deviation"
    return (
        f"{told['log']}, simulated: {policy_label(found)}, {told['requests']:,} requests, {told['workers']} × "
        f"{told['slots']} slots, utilization {told['utilization']:g}, {runs}"
    )


def policy_label(found: Sweep) -> str:
    """The policy swept and its forecasts."""
    return f"{found.settings['policy']}, {forecast_label(found.settings['forecast'])}"


def rows(found: Sweep) -> list[list[str]]:
    """One for each point, in the order asked for, then one for each policy beside them."""
    swept = [
        [settings_label(point.varied), "yes" if efficient else "", *_figures(point.result, found.seeds)]
        for point, efficient in zip(found.points, found.efficient, strict=True)
    ]
    return [*swept, *([label_of(result), "–", *_figures(result, found.seeds)] for result in found.beside)]


def _figures(result: PolicyResult, seeds: int) -> list[str]:
    mean, spread = result.mean, result.spread

    def told(value: float, deviation: float, places: int) -> str:
        return f"{value:,.{places}f}" + (f" ±{deviation:,.{places}f}" if seeds > 1 else "")

    seconds = [("e2e_s", "mean"), ("e2e_s", "p99"), ("wait_s", "mean"), ("wait_s", "p99"), ("wait_s", "max")]
    return [
        told(mean["throughput"], spread["throughput"], 0),
        told(mean["efficiency"], spread["efficiency"], 3),
        *(told(mean[kind][name], spread[kind][name], 1) for kind, name in seconds),
        f"{mean['rejected']:,.0f}",
    ]


def lead(found: Sweep) -> str:
    """What the sweep says, in a sentence or two."""
    trades = [point.trade for point in found.points]
    by_mean = found.points[min(range(len(trades)), key=lambda i: trades[i])]
    by_tail = found.points[min(range(len(trades)), key=lambda i: trades[i][::-1])]
    if by_mean is by_tail:
        return (
            f"In simulation {settings_label(by_mean.varied)} has both the lowest mean E2E, {by_mean.trade[0]:.1f} s, and the "
            f"lowest p99, {by_mean.trade[1]:.1f} s, of all {len(trades)} points."
        )
    return (
        f"In simulation the lowest mean E2E, {by_mean.trade[0]:.1f} s with a p99 of {by_mean.trade[1]:.1f} s, is had with "
        f"{settings_label(by_mean.varied)}; the lowest p99, {by_tail.trade[1]:.1f} s with a mean of {by_tail.trade[0]:.1f} s, with "
        f"{settings_label(by_tail.varied)}. {sum(found.efficient)} of {len(trades)} points are efficient."
    )


def command(found: Sweep) -> str:
    """The command that makes the page again where the log lies, one option a line."""
    told = found.settings
    values: dict[str, list[str]] = {}
    for point in found.points:
        for name, value in point.varied.items():
            text = written(value)
            if text not in values.setdefault(name, []):
                values[name].append(text)
    options: list[tuple[str, str]] = [("vary", f"{name}={','.join(each)}") for name, each in values.items()]
    options += [("policy", told["policy"]), ("forecast", told["forecast"] or "none")]
    options += [("beside", ",".join(dict.fromkeys(result.policy for result in found.beside)))]
    options += [("olp", text) for text in olp_arguments(told["olp"])]
    for name in ("workers", "slots", "kv_capacity", "utilization", "candidates", "seed", "seeds"):
        if told[name] is not None:
            options.append((name.replace("_", "-"), written(told[name])))
    if told["first_requests"] is not None:
        options.append(("requests", str(told["first_requests"])))
    lines = [shlex.join(["endcast", "sweep", str(told["log"])])]
    return " \\\n".join([*lines, *(f"  --{name} {shlex.quote(value)}" for name, value in options)])
