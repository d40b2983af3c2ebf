"""``endcast calibrate``: what a decode step takes on your engines, fitted to steps that they recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.calibration_steps import RecordedSteps, fit_as_json, read_steps
from endcast.cli.logs import parse_columns
from endcast.cli.output import JsonOption, console, emit_json, err_console, table, to_json
from endcast.router.step_fit import StepFit, fit_step_time

_UNITS = {
    "fixed_s": ("whatever the load", 1e3, "ms"),
    "batch_s": ("a request of the largest batch", 1e6, "µs"),
    "kv_s": ("1,000 KV tokens of the heaviest worker", 1e9, "µs"),
}


def calibrate(
    steps: Annotated[
        Path,
        typer.Argument(
            metavar="STEPS",
            help="Recorded steps as .csv, .jsonl or .parquet: step_s or step_ms, batch (requests of the largest worker), "
            "kv_tokens (of the heaviest one); with step, rows of one step are its workers.",
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="A=B,…", help="Column A of these is the file's column B."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the step time, for endcast simulate --step-time."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Plot recorded steps and the fit.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the resampled blocks behind the intervals.")] = 0,
    json: JsonOption = False,
) -> object:
    """Fit how long a decode step takes: a fixed part, a part a request, a part a KV token."""
    recorded = read_steps(steps, parse_columns(columns))
    fit = fit_step_time(recorded.step_s, recorded.batch, recorded.kv_tokens, seed=seed)
    told = fit_as_json(fit, steps.name)
    if out is not None:
        out.write_text(to_json(told) + "\n", encoding="utf-8")
    if plot is not None:
        from endcast.reporting.calibration_figure import write_plot

        write_plot(plot, fit, recorded.step_s, recorded.batch, recorded.kv_tokens)
    if json:
        emit_json(told)
        return fit
    _show(fit, recorded, steps)
    for path in filter(None, (out, plot)):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    if out is not None:
        console.print(f"play a log with it: endcast simulate LOG --step-time {out}", markup=False, soft_wrap=True)
    return fit


def _show(fit: StepFit, recorded: RecordedSteps, steps: Path) -> None:
    rows = []
    for name, (per, factor, unit) in _UNITS.items():
        low, high = fit.interval[name]
        value = getattr(fit.step_time, name)
        rows.append((per, f"{factor * value:.4g} {unit}", f"{factor * low:.4g} to {factor * high:.4g}"))
    console.print(table(f"{steps.name}: a step takes", ("", "fitted", "95 % interval"), rows))
    console.print(
        f"{fit.steps:,} steps; R² {fit.r2:.3f}; error {fit.error:.1%} in the median, {fit.error_p90:.1%} at p90; "
        f"{fit.held_out_error:.1%} in the median on the last fifth, fitted without it; {fit.outliers:.1%} counted less.",
        markup=False,
    )
    if recorded.dropped:
        console.print(f"{recorded.dropped:,} rows without usable numbers were left out.", markup=False)
    for text in fit.warnings:
        err_console.print(f"WARNING: {text}", style="bold yellow", markup=False, soft_wrap=True)
