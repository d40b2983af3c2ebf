"""``endcast explain``: what was scarce and why requests were started, round by round of a simulated log."""

from __future__ import annotations

from typing import Annotated

import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument
from endcast.cli.olp_options import OlpOption, olp_settings
from endcast.cli.output import JsonOption, console, emit_json, err_console
from endcast.cli.simulation_forecasts import CROSSFIT, choices, make_sources
from endcast.cli.simulation_log import load
from endcast.errors import InputError
from endcast.router.olp.diary import diary
from endcast.router.policies import POLICIES
from endcast.router.simulator import SimulationSettings
from endcast.router.sweep import swept

LEGEND = (
    "surplus = reward - what slot and KV cost at the prices of that moment; the highest start first. Prices are told as shares of "
    "what the resource earns a step on average, from a tenth on. All of it is simulated."
)


def explain(
    log: LogArgument,
    policy: Annotated[str, typer.Option("--policy", help=f"Whose decisions: {', '.join(swept())}.")] = "olp_br_h",
    forecast: Annotated[
        str,
        typer.Option("--forecast", help=f"One of oracle, kaplan_meier, none, {CROSSFIT}MODEL, a bundle's folder."),
    ] = "oracle",
    olp: OlpOption = None,
    moments: Annotated[int, typer.Option("--moments", metavar="N", help="Routing rounds to show.")] = 8,
    reasons: Annotated[int, typer.Option("--reasons", metavar="N", help="Requests to explain in each of them.")] = 3,
    workers: Annotated[int, typer.Option("--workers", metavar="G", help="Decode workers that step together.")] = 8,
    slots: Annotated[int, typer.Option("--slots", metavar="B", help="Requests that a worker runs at once.")] = 64,
    kv_capacity: Annotated[
        int | None,
        typer.Option("--kv-capacity", metavar="TOKENS", help="KV tokens that a worker holds; no bound if not given."),
    ] = None,
    utilization: Annotated[
        float, typer.Option("--utilization", help="Offered load, as a share of what perfect balance could serve.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Number of the run.")] = 0,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Play the first N requests only.")
    ] = None,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> object:
    """Play a log with one policy that has prices, and tell some of its rounds: scarce resources, and each start's reason."""
    settings = SimulationSettings(
        workers=workers,
        slots=slots,
        kv_capacity=kv_capacity,
        utilization=utilization,
        olp=olp_settings(olp),
        seed=seed,
    )
    POLICIES.get(policy)
    if policy not in swept():
        raise InputError("--policy", f"{policy} gives no reasons", hint=f"Those that do: {', '.join(swept())}")
    for option, value in (("--moments", moments), ("--reasons", reasons)):
        if value < 1:
            raise InputError(option, f"must be at least 1, not {value}")
    chosen = choices(forecast, seed)
    if len(chosen) > 1:
        raise InputError("--forecast", "one run has one source of forecasts", hint=f"Such as {chosen[0].name}")
    played = load(log, format, columns, arrivals=None, arrivals_prompts=False, requests=requests, seed=seed)
    (source,) = make_sources(chosen, played.trace, 0.0, lambda text: err_console.print(text, markup=False))
    entries = diary(played.workload, settings, policy=policy, forecast=source, moments=moments, releases=reasons)
    if json:
        emit_json({"policy": policy, "forecast": source.name, "rounds": [entry.to_json() for entry in entries]})
        return entries
    for entry in entries:
        for line in entry.lines():
            console.print(line, markup=False, soft_wrap=True)
    console.print(LEGEND, markup=False)
    return entries
