"""One simulation from a log to everything that is shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import endcast
from endcast.cli.output import progress
from endcast.cli.simulation_forecasts import ForecastChoice, FromBundle, Tell, make_sources, softens
from endcast.cli.simulation_log import PlayedLog
from endcast.cli.simulation_resume import RunFolder
from endcast.errors import InputError
from endcast.reporting.run_details import RunDetails
from endcast.reporting.simulation_summary import Key, Simulated, forecast_label, today_of
from endcast.router.policies import POLICIES
from endcast.router.simulator import Kept, PlayedRun, SimulationSettings, check_capacity, simulate
from endcast.router.workload import Workload

#: For comparison with the paper: played where it is named.
PUBLISHED = "br_h_published"
PREFIX_AFFINITY, LENGTH_BUCKET = "prefix_affinity", "length_bucket"


def policy_names(text: str | None, workload: Workload) -> list[str]:
    """``"a,b"`` as names that are registered; all of them without it but the published form of BR-H, those for
    prefixes where the log has some."""
    if text is None:
        left_out = {PUBLISHED} if workload.prefix_blocks else {PUBLISHED, PREFIX_AFFINITY}
        return [name for name in POLICIES if name not in left_out]
    names = [part.strip() for part in text.split(",")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("--policies", f"{twice} is given twice")
    return names


def check_names(text: str | None) -> None:
    """``UnknownNameError`` for a policy that nobody registered: told before a log is read."""
    for name in [] if text is None else text.split(","):
        POLICIES.get(name.strip())


@dataclass(frozen=True)
class Playing:
    """How a log is played: forecasts ``soften``ed, ``jobs`` runs at the same time, finished runs kept in ``resume``;
    ``tell`` and ``warn`` hear of it while it goes on. ``step_time_file`` names where step times come from."""

    soften: float
    jobs: int
    resume: Path | None
    tell: Tell
    warn: Tell
    step_time_file: str | None = None


def run(
    log: PlayedLog,
    settings: SimulationSettings,
    policies: Sequence[str],
    chosen: Sequence[ForecastChoice],
    *,
    today: str | None,
    how: Playing,
) -> Simulated:
    """Make the forecasts, soften them, and play the log with every policy."""
    check_capacity(log.workload, settings)
    now = today_of(policies, today)
    warnings = {choice.name: choice.warning(log.trace) for choice in chosen}
    for text in filter(None, warnings.values()):
        how.warn(text)
    sources = make_sources(chosen, log.trace, how.soften, how.tell)
    folder = None if how.resume is None else RunFolder(how.resume)
    details: dict[Key, list[RunDetails]] = {}

    def watch(run: PlayedRun) -> None:
        found = RunDetails.of(run, workers=settings.workers, slots=int(settings.slots_each.sum()))
        details.setdefault((run.policy, run.forecast), []).append(found)

    with progress("simulating") as bar:
        report = simulate(
            log.workload,
            settings,
            policies=policies,
            forecasts=sources,
            progress=lambda made: bar.update(made.done, made.total),
            watch=watch,
            jobs=how.jobs,
            kept=None if folder is None else Kept(folder, _told(log, chosen, how.soften)),
        )
    if folder is not None and folder.taken:
        how.tell(f"{folder.taken} of {sum(len(runs) for runs in details.values())} runs were finished in {how.resume}")
    told = tuple(filter(None, warnings.values()))
    return Simulated(
        report=replace(report, settings={**report.settings, **_described(log, policies, chosen, now, how, told)}),
        details={key: RunDetails.averaged(runs) for key, runs in details.items()},
        today=now,
        saw_answers=frozenset(name for name, text in warnings.items() if name is not None and text),
        warnings=told,
        notes=(*log.notes, *_notes(log.workload, policies), *_softened(chosen, how.soften)),
    )


def _told(log: PlayedLog, chosen: Sequence[ForecastChoice], soften: float) -> str:
    """What runs depend on beside the plan: what played them, and how forecasts were made."""
    named = [(choice.name, getattr(choice, "seed", None)) for choice in chosen]
    return f"{endcast.__version__}|{sorted(log.source.items(), key=lambda item: item[0])}|{sorted(named, key=str)}|{soften}"


def _described(
    log: PlayedLog,
    policies: Sequence[str],
    chosen: Sequence[ForecastChoice],
    now: str,
    how: Playing,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """What else it takes to repeat the run, as JSON."""
    return {
        "endcast": endcast.__version__,
        **log.source,
        "policies": list(policies),
        "forecasts": [choice.name for choice in chosen],
        "bundles": {choice.name: choice.path.name for choice in chosen if isinstance(choice, FromBundle)},
        "soften": how.soften,
        "step_time_file": how.step_time_file,
        "today": now,
        "warnings": list(warnings),
    }


def _softened(chosen: Sequence[ForecastChoice], soften: float) -> list[str]:
    names = [forecast_label(choice.name) for choice in chosen if softens(choice)] if soften > 0.0 else []
    return [f"softened, {soften:g} Kaplan-Meier and {1.0 - soften:g} the forecast: {', '.join(names)}"] if names else []


def _notes(workload: Workload, policies: Sequence[str]) -> list[str]:
    notes = [f"{count:,} requests with {reason} are left out" for reason, count in workload.left_out.items() if count]
    if PREFIX_AFFINITY in policies and not workload.prefix_blocks:
        notes.append(f"the log has no prefix blocks, so {PREFIX_AFFINITY} is join_shortest_queue here")
    if LENGTH_BUCKET in policies and len(set(workload.supposed.tolist())) == 1:
        notes.append(f"all requests of the log have the same flags, so {LENGTH_BUCKET} is join_shortest_queue here")
    return notes
