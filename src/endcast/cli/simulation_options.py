"""The options of ``endcast simulate``, and what several of them make together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.options import listed
from endcast.cli.simulation_forecasts import CROSSFIT
from endcast.cli.simulation_log import POISSON
from endcast.cli.simulation_run import PREFIX_AFFINITY
from endcast.errors import InputError
from endcast.router.policies import POLICIES
from endcast.router.preemption import VICTIMS
from endcast.router.simulator import DEFAULT_ADMISSION, DEFAULT_RECOMPUTE_RATE, DEFAULT_VICTIM

DEFAULT_WORKERS = 8

Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="A,B",
        help=f"Policies to play: {', '.join(POLICIES)}. All if not given ({PREFIX_AFFINITY} where the log has prefixes).",
    ),
]
Forecasts = Annotated[
    str,
    typer.Option(
        "--forecast",
        metavar="A,B",
        help=f"Forecasts for policies that use them: none, oracle, kaplan_meier, {CROSSFIT}MODEL, a bundle's folder.",
    ),
]
Soften = Annotated[
    float,
    typer.Option(
        "--soften", metavar="W", help="Share of Kaplan-Meier blended into learned and true lengths, from 0 to 1."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="G",
        help=f"Decode workers that step together; as many as --slots and the like list, or {DEFAULT_WORKERS}.",
    ),
]
Slots = Annotated[
    str, typer.Option("--slots", metavar="B[,B…]", help="Requests that a worker runs at once; one number, or one each.")
]
KvCapacity = Annotated[
    str | None,
    typer.Option(
        "--kv-capacity",
        metavar="TOKENS[,…]",
        help="KV tokens that a worker holds, one number or one each; no bound if not given.",
    ),
]
Speed = Annotated[
    str | None,
    typer.Option(
        "--speed", metavar="V,V…", help="How fast each worker reads KV beside one of speed 1; all 1 if not given."
    ),
]
Admission = Annotated[
    str | None,
    typer.Option(
        "--admission",
        metavar="RULE[:NUMBER]",
        help="When a request may start where KV is bounded: headroom:CHANCE of running out accepted, optimistic:SHARE kept "
        "free, reserve_cap:TOKENS assumed where the log has no caps, forecast:QUANTILE of the peak; "
        f"{DEFAULT_ADMISSION} if not given.",
    ),
]
Victim = Annotated[
    str | None,
    typer.Option(
        "--victim",
        metavar="RULE",
        help=f"Who is thrown out when KV runs out: {', '.join(VICTIMS)}; {DEFAULT_VICTIM} if not given.",
    ),
]
RecomputeRate = Annotated[
    float | None,
    typer.Option(
        "--recompute-rate",
        metavar="TOKENS/S",
        help=f"How fast what was thrown out or lost is prefilled anew; {DEFAULT_RECOMPUTE_RATE:,.0f} if not given.",
    ),
]
StepTimeFile = Annotated[
    Path | None,
    typer.Option("--step-time", metavar="FILE", help="How long steps take, as `endcast calibrate` wrote it."),
]
PrefillRate = Annotated[
    float | None,
    typer.Option(
        "--prefill-rate",
        metavar="TOKENS/S",
        help="Prompt tokens that a prefill worker reads; no such stage if not given.",
    ),
]
PrefillWorkers = Annotated[
    int | None,
    typer.Option("--prefill-workers", metavar="P", help="With --prefill-rate: how many of them; 1 if not given."),
]
Lose = Annotated[
    str | None,
    typer.Option(
        "--lose",
        metavar="W@S[-S],…",
        help="Worker W (from 0) is lost at S seconds of the simulation, and comes back at the second S.",
    ),
]
ReportEvery = Annotated[
    float,
    typer.Option(
        "--report-every",
        metavar="SECONDS",
        help="How often workers tell their load to policies that send requests on at once.",
    ),
]
ReportDelay = Annotated[
    float, typer.Option("--report-delay", metavar="SECONDS", help="How long such a report is under way.")
]
NoReportOwn = Annotated[
    bool, typer.Option("--no-report-own", help="These policies do not add what they sent on since the report.")
]
TokensPerStep = Annotated[
    float,
    typer.Option(
        "--tokens-per-step", metavar="M", help="Mean tokens that a request gains in a step (speculative decoding)."
    ),
]
Utilization = Annotated[
    float, typer.Option("--utilization", help="Offered load, as a share of what perfect balance could serve.")
]
Horizon = Annotated[int, typer.Option("--horizon", metavar="H", help="Decode steps that br_h looks ahead.")]
Discount = Annotated[float, typer.Option("--discount", help="Weight of a step against the one before it.")]
Candidates = Annotated[
    int, typer.Option("--candidates", metavar="N", help="Oldest waiting requests considered for a slot.")
]
MaxOvertakes = Annotated[
    int | None,
    typer.Option(
        "--max-overtakes", metavar="N", help="Later arrivals that may pass a waiting request; 4·G·B if not given."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A=V,…",
        help="Any parameter of the policies by name, such as w_tail=2; --tune prints such lines.",
    ),
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune",
        help="Find better parameters for policies that use forecasts on the first half of the log, and say how much of the "
        "gain is left on the rest.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Number of the first run.")]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", help="Runs of each policy, for means and spread.")]
Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", help="Runs played at the same time, each in a process of its own.")
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="FOLDER", help="Keep finished runs there, and take those that are there already."),
]
Requests = Annotated[int | None, typer.Option("--requests", metavar="N", help="Play the first N requests only.")]
Arrivals = Annotated[
    str | None,
    typer.Option("--arrivals", metavar=f"{POISSON}|LOG", help="Arrivals at random, or as another log has them."),
]
ArrivalsPrompts = Annotated[
    bool, typer.Option("--arrivals-prompts", help="With --arrivals LOG: prompt sizes as that log has them, too.")
]
Today = Annotated[
    str | None,
    typer.Option("--today", metavar="POLICY", help="What the fleet runs now; least_kv if not given."),
]
Report = Annotated[Path | None, typer.Option("--report", metavar="R.html", help="Write a page with plots.")]
Plots = Annotated[Path | None, typer.Option("--plots", metavar="FOLDER", help="Write the plots as PNG.")]


def each_or_all(text: str, option: str) -> int | tuple[int, ...]:
    """``"64"`` as 64, for all workers, and ``"64,32"`` as (64, 32)."""
    numbers = listed(text, option, int, "whole number")
    return numbers[0] if len(numbers) == 1 else numbers


def speeds(text: str | None) -> tuple[float, ...] | None:
    """``"1,0.5"`` as (1, 0.5)."""
    return None if text is None else listed(text, "--speed", float, "number")


def worker_count(asked: int | None, lists: Mapping[str, object]) -> int:
    """G as asked for, or as many as the options that name one number a worker list."""
    lengths = {name: len(value) for name, value in lists.items() if isinstance(value, tuple)}
    for name, length in lengths.items():
        other = asked if asked is not None else next(iter(lengths.values()))
        if length != other:
            raise InputError(
                name, f"lists {length} workers, and {'--workers' if asked else next(iter(lengths))} {other}"
            )
    return asked if asked is not None else next(iter(lengths.values()), DEFAULT_WORKERS)


def need(other: str, given: bool, options: Mapping[str, object]) -> None:
    """Options that mean nothing without another one are refused where that is not ``given``."""
    for name, value in options.items():
        if value is not None and not given:
            raise InputError(name, f"has no effect without {other}", hint=f"Give {other}, or leave it out")
