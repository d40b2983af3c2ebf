"""``endcast simulate``: what each routing policy would have done with a log."""

from __future__ import annotations

from pathlib import Path

from endcast.cli import simulation_options as option
from endcast.cli.calibration_steps import read_step_time
from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument
from endcast.cli.olp_options import OlpOption, olp_settings
from endcast.cli.output import JsonOption, console, emit_json, err_console
from endcast.cli.simulation_forecasts import choices
from endcast.cli.simulation_log import load
from endcast.cli.simulation_run import Playing, check_names, policy_names, run
from endcast.cli.simulation_table import result_table, sentences, title_of
from endcast.cli.simulation_tune import TUNED, run_tuning, show_tuning
from endcast.errors import InputError
from endcast.reporting.simulation_summary import Simulated
from endcast.router.simulator import DEFAULT_ADMISSION, DEFAULT_RECOMPUTE_RATE, DEFAULT_VICTIM, SimulationSettings

DEFAULT_FORECASTS = "oracle,kaplan_meier"


def simulate(
    log: LogArgument,
    policies: option.Policies = None,
    forecast: option.Forecasts = DEFAULT_FORECASTS,
    soften: option.Soften = 0.0,
    workers: option.Workers = None,
    slots: option.Slots = "64",
    kv_capacity: option.KvCapacity = None,
    speed: option.Speed = None,
    step_time: option.StepTimeFile = None,
    admission: option.Admission = None,
    victim: option.Victim = None,
    recompute_rate: option.RecomputeRate = None,
    prefill_rate: option.PrefillRate = None,
    prefill_workers: option.PrefillWorkers = None,
    lose: option.Lose = None,
    report_every: option.ReportEvery = 0.0,
    report_delay: option.ReportDelay = 0.0,
    no_report_own: option.NoReportOwn = False,
    tokens_per_step: option.TokensPerStep = 1.0,
    utilization: option.Utilization = 1.0,
    horizon: option.Horizon = 20,
    discount: option.Discount = 0.95,
    candidates: option.Candidates = 64,
    max_overtakes: option.MaxOvertakes = None,
    set: option.Set = None,
    olp: OlpOption = None,
    tune: option.Tune = False,
    seed: option.Seed = 0,
    seeds: option.Seeds = 1,
    jobs: option.Jobs = 1,
    resume: option.Resume = None,
    requests: option.Requests = None,
    arrivals: option.Arrivals = None,
    arrivals_prompts: option.ArrivalsPrompts = False,
    today: option.Today = None,
    report: option.Report = None,
    plots: option.Plots = None,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> object:
    """Play a log through a simulated fleet, with each routing policy and each source of forecasts."""
    each = option.each_or_all(slots, "--slots")
    capacity = None if kv_capacity is None else option.each_or_all(kv_capacity, "--kv-capacity")
    speeds = option.speeds(speed)
    settings = SimulationSettings(
        workers=option.worker_count(workers, {"--slots": each, "--kv-capacity": capacity, "--speed": speeds}),
        slots=each,
        kv_capacity=capacity,
        speed=speeds,
        step_time=None if step_time is None else read_step_time(step_time),
        admission=DEFAULT_ADMISSION if admission is None else admission,
        victim=DEFAULT_VICTIM if victim is None else victim,
        recompute_rate=DEFAULT_RECOMPUTE_RATE if recompute_rate is None else recompute_rate,
        prefill_rate=prefill_rate,
        prefill_workers=1 if prefill_workers is None else prefill_workers,
        lose=() if lose is None else tuple(part.strip() for part in lose.split(",")),
        report_every=report_every,
        report_delay=report_delay,
        report_own=not no_report_own,
        tokens_per_step=tokens_per_step,
        utilization=utilization,
        horizon=horizon,
        discount=discount,
        candidates=candidates,
        max_overtakes=max_overtakes,
        olp=olp_settings(olp),
        parameters=tuple(part.strip() for part in ",".join(set or ()).split(",") if part.strip()),
        seed=seed,
        seeds=seeds,
    )
    option.need("--kv-capacity", capacity is not None, {"--admission": admission, "--victim": victim})
    option.need("--kv-capacity", capacity is not None or lose is not None, {"--recompute-rate": recompute_rate})
    option.need("--prefill-rate", prefill_rate is not None, {"--prefill-workers": prefill_workers})
    if not 0.0 <= soften <= 1.0:
        raise InputError("--soften", f"must lie between 0 and 1, not {soften:g}")
    if not 1 <= jobs <= 1024:
        raise InputError("--jobs", f"must be a whole number from 1 to 1024, not {jobs}")
    policies = TUNED if tune and policies is None else policies
    check_names(policies)
    chosen = choices(forecast, seed)
    _check_files(report, resume, tune)
    played = load(
        log, format, columns, arrivals=arrivals, arrivals_prompts=arrivals_prompts, requests=requests, seed=seed
    )
    names = policy_names(policies, played.workload)
    how = Playing(
        soften=soften,
        jobs=jobs,
        resume=resume,
        tell=_quiet if json else _tell,
        warn=_warn,
        step_time_file=None if step_time is None else step_time.name,
    )
    if tune:
        tuned = run_tuning(played, settings, names, chosen, how)
        emit_json(tuned.to_json()) if json else show_tuning(tuned, console)
        return tuned
    found = run(played, settings, names, chosen, today=today, how=how)
    written = _write(found, report, plots)
    if json:
        emit_json(found.report.to_json())
        return found
    show(found)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return found


def _check_files(report: Path | None, resume: Path | None, tune: bool) -> None:
    """What is written must be writable before any work is done."""
    if report is not None and report.is_dir():
        raise InputError("--report", f"{report} is a folder", hint="Name a file, such as report.html")
    if report is not None and tune:
        raise InputError(
            "--report", "is not made by --tune", hint="Give the options that --tune prints to a run of its own"
        )
    if resume is not None and resume.exists() and not resume.is_dir():
        raise InputError("--resume", f"{resume} is no folder")


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
