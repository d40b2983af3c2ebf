"""``endcast evaluate``: how good a bundle's forecasts are on a log, Kaplan-Meier beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument, read_log
from endcast.cli.output import JsonOption, console, emit_json, progress, table
from endcast.cli.rolling import Output, evaluate_over_time, refuse_mixed
from endcast.errors import InputError


def evaluate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder that 'endcast train' wrote.")],
    log: LogArgument,
    horizons: Annotated[str, typer.Option("--horizons", metavar="H,H", help="Horizons in tokens.")] = "16,32,64,80,128",
    split: Annotated[
        str | None, typer.Option("--split", help="last:SHARE or all; the bundle's own on its own log, else all.")
    ] = None,
    population: Annotated[
        str, typer.Option("--population", help="decode_steps (what a router meets) or checkpoints (every 32 tokens).")
    ] = "decode_steps",
    frozen: Annotated[
        bool, typer.Option("--frozen", help="No online recalibration while the log is replayed.")
    ] = False,
    unobserved: Annotated[
        bool,
        typer.Option("--unobserved", help="Nothing that finishes is told to the forecaster: no news, no drift seen."),
    ] = False,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Accuracy over time, with online recalibration and without, and drift.")
    ] = False,
    windows: Annotated[
        int | None, typer.Option("--windows", metavar="N", help="Windows of time for --rolling; 10 if not given.")
    ] = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Measure on training requests too, and say so.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of draws and bootstrap.")] = 0,
    report: Annotated[Path | None, typer.Option("--report", metavar="R.html", help="Write a page with plots.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", metavar="FOLDER", help="Write the plots as PNG.")] = None,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> object:
    """Measure a bundle on the part of a log that it did not train on."""
    from endcast.predictors.bundle import read_bundle
    from endcast.training.evaluate import evaluate as measure
    from endcast.training.evaluation_report import horizon_rows, horizon_titles, verdict, write_plots, write_report

    refuse_mixed(rolling, windows, frozen=frozen, unobserved=unobserved)
    loaded = read_bundle(bundle)
    trace = read_log(log, format, columns).trace
    if rolling:
        return evaluate_over_time(
            loaded,
            trace,
            Output(log.name, report, plots, json),
            windows,
            horizons=_horizons(horizons),
            split=split,
            population=population,
            allow_overlap=allow_overlap,
            seed=seed,
        )
    with progress("replaying the log", total=len(trace)) as bar:
        found = measure(
            loaded,
            trace,
            horizons=_horizons(horizons),
            split=split,
            population=population,
            recalibrate=not frozen,
            observe=not unobserved,
            allow_overlap=allow_overlap,
            seed=seed,
            advance=bar.advance,
        )
    if report is not None:
        write_report(found, log.name, report)
    written = [] if plots is None else write_plots(found, plots)
    if json:
        emit_json(found)
        return found
    title = f"{found.n_requests:,} requests, {found.n_draws:,} pairs"
    console.print(table(title, horizon_titles(found), horizon_rows(found)))
    if "admission" in found.baselines:
        console.print(
            "outputs were read as they were written; 'unread' is the skill of the forecast at admission alone"
        )
    pooled = found.baselines["kaplan_meier"]["admission"]
    console.print(
        f"at admission: C-index {found.admission.c_index:.3f}, error of the median "
        f"{found.admission.mae_median:.1f} tokens (Kaplan-Meier {pooled.mae_median:.1f})"
    )
    console.print(verdict(found), markup=False)
    for path in [*written, *([report] if report else [])]:
        console.print(f"wrote {path}", markup=False)
    return found


def _horizons(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError("--horizons", f"must be whole numbers with commas, not {text!r:.60}") from None
