"""``endcast evaluate --rolling``: accuracy over time, with online recalibration and without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endcast.cli.output import console, emit_json, progress, table
from endcast.errors import InputError

if TYPE_CHECKING:
    from endcast.datasets.trace import Trace
    from endcast.predictors.bundle import Bundle


@dataclass(frozen=True)
class Output:
    """Where results go besides the terminal; ``json`` instead of it."""

    log: str
    report: Path | None
    plots: Path | None
    json: bool


def refuse_mixed(rolling: bool, windows: int | None, *, frozen: bool, unobserved: bool) -> None:
    """``InputError`` for options that only make sense with ``--rolling``, or without it."""
    if windows is not None and not rolling:
        raise InputError("--windows", "needs --rolling")
    for name, given in (("--frozen", frozen), ("--unobserved", unobserved)):
        if given and rolling:
            raise InputError(name, "cannot be given with --rolling, which shows forecasts with and without news")


def evaluate_over_time(bundle: Bundle, trace: Trace, output: Output, windows: int | None, **settings: Any) -> object:
    """Measure by windows of time, print and write; ``settings`` as ``training.rolling.rolling`` takes them."""
    from endcast.training import rolling_report as words
    from endcast.training.rolling import DEFAULT_WINDOWS, rolling

    with progress("replaying the log twice", total=2 * len(trace)) as bar:
        found = rolling(bundle, trace, windows=windows or DEFAULT_WINDOWS, advance=bar.advance, **settings)
    if output.report is not None:
        words.write_report(found, output.log, output.report)
    written = [] if output.plots is None else words.write_plots(found, output.plots)
    if output.json:
        emit_json(found)
        return found
    pooled = found.pooled
    title = f"H = {words.shown_horizon(found)}: {pooled.requests:,} requests, {pooled.draws:,} pairs"
    console.print(table(title, words.TITLES, words.window_rows(found)))
    console.print(pooled.drift.explanation, markup=False)
    console.print(words.verdict(found), markup=False)
    for path in [*written, *([output.report] if output.report else [])]:
        console.print(f"wrote {path}", markup=False)
    return found
