"""``endcast sweep``: what the weights of a reward trade against each other, on a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument
from endcast.cli.olp_options import OlpOption, grid, olp_settings
from endcast.cli.output import JsonOption, console, emit_json, err_console, progress, table
from endcast.cli.simulation_forecasts import CROSSFIT, choices, make_sources
from endcast.cli.simulation_log import load
from endcast.errors import InputError
from endcast.reporting.sweep_words import LEGEND, TITLES, rows, title
from endcast.router.policies import POLICIES
from endcast.router.simulator import SimulationSettings
from endcast.router.sweep import Sweep, swept
from endcast.router.sweep import sweep as play

DEFAULT_POLICY, DEFAULT_BESIDE = "olp_br_h", "least_kv,br_h"


def sweep(
    log: LogArgument,
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="NAME=V,V…",
            help="A setting of rewards and prices (docs/olp.md) and its values; with several, all combinations.",
        ),
    ],
    policy: Annotated[str, typer.Option("--policy", help=f"Whose rewards: {', '.join(swept())}.")] = DEFAULT_POLICY,
    forecast: Annotated[
        str,
        typer.Option("--forecast", help=f"One of oracle, kaplan_meier, none, {CROSSFIT}MODEL, a bundle's folder."),
    ] = "oracle",
    beside: Annotated[
        str, typer.Option("--beside", metavar="A,B", help="Policies to compare with; none if empty.")
    ] = DEFAULT_BESIDE,
    olp: OlpOption = None,
    workers: Annotated[int, typer.Option("--workers", metavar="G", help="Decode workers that step together.")] = 8,
    slots: Annotated[int, typer.Option("--slots", metavar="B", help="Requests that a worker runs at once.")] = 64,
    kv_capacity: Annotated[
        int | None,
        typer.Option("--kv-capacity", metavar="TOKENS", help="KV tokens that a worker holds; no bound if not given."),
    ] = None,
    utilization: Annotated[
        float, typer.Option("--utilization", help="Offered load, as a share of what perfect balance could serve.")
    ] = 1.0,
    candidates: Annotated[
        int, typer.Option("--candidates", metavar="N", help="Waiting requests considered for a slot.")
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Number of the first run.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Runs of each point, for means and spread.")] = 1,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Play the first N requests only.")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", metavar="poisson|LOG", help="Arrivals at random, or as another log has them."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="R.html", help="Write a page with a plot.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", metavar="FOLDER", help="Write the plot as PNG.")] = None,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> object:
    """Play a log with each combination of a reward's settings: which trade mean against tail, and which give it away."""
    settings = SimulationSettings(
        workers=workers,
        slots=slots,
        kv_capacity=kv_capacity,
        utilization=utilization,
        candidates=candidates,
        olp=olp_settings(olp),
        seed=seed,
        seeds=seeds,
    )
    points, others = grid(vary, settings.olp), [name.strip() for name in beside.split(",") if name.strip()]
    for name in (policy, *others):
        POLICIES.get(name)
    if policy not in swept():
        raise InputError("--policy", f"{policy} has no rewards to sweep over", hint=f"Those have: {', '.join(swept())}")
    chosen = choices(forecast, seed)
    if len(chosen) > 1:
        raise InputError("--forecast", "a sweep plays one source of forecasts", hint=f"Such as {chosen[0].name}")
    played = load(log, format, columns, arrivals=arrivals, arrivals_prompts=False, requests=requests, seed=seed)
    warning = chosen[0].warning(played.trace)
    (source,) = make_sources(chosen, played.trace, 0.0, lambda text: err_console.print(text, markup=False))
    with progress("sweeping") as bar:
        found = play(
            played.workload,
            settings,
            policy=policy,
            forecast=source,
            grid=points,
            beside=others,
            progress=lambda made: bar.update(made.done, made.total),
        )
    found.settings.update({**played.source, "warnings": [warning] if warning else []})
    written = _write(found, report, plots)
    if json:
        emit_json(found.to_json())
        return found
    console.print(table(title(found), TITLES, rows(found)))
    console.print(LEGEND, markup=False)
    for note in (*played.notes, *filter(None, [warning])):
        console.print(note, markup=False)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return found


def _write(found: Sweep, report: Path | None, plots: Path | None) -> list[Path]:
    """What was asked for; matplotlib is loaded for these only."""
    if report is None and plots is None:
        return []
    from endcast.reporting.sweep_report import write_plot, write_report

    written = [] if plots is None else [write_plot(found, plots)]
    if report is not None:
        write_report(found, report)
        written.append(report)
    return written
