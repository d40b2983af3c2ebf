"""``endcast simulate``: what each routing policy would have done with a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument
from endcast.cli.output import JsonOption, console, emit_json, err_console
from endcast.cli.simulation_forecasts import CROSSFIT, choices
from endcast.cli.simulation_log import POISSON, load
from endcast.cli.simulation_run import PREFIX_AFFINITY, check_names, policy_names, run
from endcast.cli.simulation_table import result_table, sentences, title_of
from endcast.errors import InputError
from endcast.reporting.simulation_summary import Simulated
from endcast.router.policies import POLICIES
from endcast.router.preemption import VICTIMS
from endcast.router.simulator import (
    DEFAULT_ADMISSION,
    DEFAULT_RECOMPUTE_RATE,
    DEFAULT_VICTIM,
    SimulationSettings,
)

DEFAULT_FORECASTS = "oracle,kaplan_meier"


def simulate(
    log: LogArgument,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="A,B",
            help=f"Policies to play: {', '.join(POLICIES)}. All if not given ({PREFIX_AFFINITY} where the log has prefixes).",
        ),
    ] = None,
    forecast: Annotated[
        str,
        typer.Option(
            "--forecast",
            metavar="A,B",
            help=f"Forecasts for policies that use them: none, oracle, kaplan_meier, {CROSSFIT}MODEL, a bundle's folder.",
        ),
    ] = DEFAULT_FORECASTS,
    soften: Annotated[
        float,
        typer.Option(
            "--soften", metavar="W", help="Share of Kaplan-Meier blended into learned and true lengths, from 0 to 1."
        ),
    ] = 0.0,
    workers: Annotated[int, typer.Option("--workers", metavar="G", help="Decode workers that step together.")] = 8,
    slots: Annotated[int, typer.Option("--slots", metavar="B", help="Requests that a worker runs at once.")] = 64,
    kv_capacity: Annotated[
        int | None,
        typer.Option("--kv-capacity", metavar="TOKENS", help="KV tokens that a worker holds; no bound if not given."),
    ] = None,
    admission: Annotated[
        str,
        typer.Option(
            "--admission",
            metavar="RULE[:NUMBER]",
            help="When a request may start where KV is bounded: optimistic:SHARE kept free, reserve_cap:TOKENS assumed where "
            "the log has no caps, forecast:QUANTILE of the peak.",
        ),
    ] = DEFAULT_ADMISSION,
    victim: Annotated[
        str, typer.Option("--victim", metavar="RULE", help=f"Who is thrown out when KV runs out: {', '.join(VICTIMS)}.")
    ] = DEFAULT_VICTIM,
    recompute_rate: Annotated[
        float,
        typer.Option("--recompute-rate", metavar="TOKENS/S", help="How fast what was thrown out is prefilled anew."),
    ] = DEFAULT_RECOMPUTE_RATE,
    utilization: Annotated[
        float, typer.Option("--utilization", help="Offered load, as a share of what perfect balance could serve.")
    ] = 1.0,
    horizon: Annotated[int, typer.Option("--horizon", metavar="H", help="Decode steps that br_h looks ahead.")] = 20,
    discount: Annotated[float, typer.Option("--discount", help="Weight of a step against the one before it.")] = 0.95,
    candidates: Annotated[
        int, typer.Option("--candidates", metavar="N", help="Oldest waiting requests considered for a slot.")
    ] = 64,
    max_overtakes: Annotated[
        int | None,
        typer.Option(
            "--max-overtakes", metavar="N", help="Later arrivals that may pass a waiting request; 4·G·B if not given."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Number of the first run.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Runs of each policy, for means and spread.")] = 1,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Play the first N requests only.")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", metavar=f"{POISSON}|LOG", help="Arrivals at random, or as another log has them."),
    ] = None,
    arrivals_prompts: Annotated[
        bool, typer.Option("--arrivals-prompts", help="With --arrivals LOG: prompt sizes as that log has them, too.")
    ] = False,
    today: Annotated[
        str | None,
        typer.Option("--today", metavar="POLICY", help="What the fleet runs now; least_kv if not given."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="R.html", help="Write a page with plots.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", metavar="FOLDER", help="Write the plots as PNG.")] = None,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> object:
    """Play a log through a simulated fleet, with each routing policy and each source of forecasts."""
    settings = SimulationSettings(
        workers=workers,
        slots=slots,
        kv_capacity=kv_capacity,
        admission=admission,
        victim=victim,
        recompute_rate=recompute_rate,
        utilization=utilization,
        horizon=horizon,
        discount=discount,
        candidates=candidates,
        max_overtakes=max_overtakes,
        seed=seed,
        seeds=seeds,
    )
    if not 0.0 <= soften <= 1.0:
        raise InputError("--soften", f"must lie between 0 and 1, not {soften:g}")
    check_names(policies)
    chosen = choices(forecast, seed)
    if report is not None and report.is_dir():
        raise InputError("--report", f"{report} is a folder", hint="Name a file, such as report.html")
    played = load(
        log, format, columns, arrivals=arrivals, arrivals_prompts=arrivals_prompts, requests=requests, seed=seed
    )
    names = policy_names(policies, played.workload)
    found = run(played, settings, names, chosen, today=today, soften=soften, tell=_quiet if json else _tell, warn=_warn)
    written = _write(found, report, plots)
    if json:
        emit_json(found.report.to_json())
        return found
    show(found)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return found


def _write(found: Simulated, report: Path | None, plots: Path | None) -> list[Path]:
    """The page and the plots that were asked for; matplotlib is loaded for these only."""
    if report is None and plots is None:
        return []
    from endcast.reporting.simulation_report import write_plots, write_report

    written = [] if plots is None else write_plots(found, plots)
    if report is not None:
        write_report(found, report)
        written.append(report)
    return written


def show(found: Simulated) -> None:
    """The table and what it says, on stdout."""
    console.print(result_table(found, title_of(found)))
    console.print()
    for line in (*sentences(found), *found.notes):
        console.print(line, markup=False)
    for warning in found.warnings:
        _warn(warning)


def _tell(text: str) -> None:
    err_console.print(text, markup=False, soft_wrap=True)


def _quiet(text: str) -> None:
    """Say nothing: stdout is read by a machine, and stderr by nobody."""


def _warn(text: str) -> None:
    err_console.print(f"WARNING: {text}", style="bold yellow", markup=False, soft_wrap=True)
