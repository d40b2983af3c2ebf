"""``endcast simulate --tune``: parameters found on the first half of a log, and what is left of the gain on the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from endcast.cli.output import progress, table
from endcast.cli.simulation_forecasts import ForecastChoice, softens
from endcast.cli.simulation_log import PlayedLog
from endcast.cli.simulation_run import Playing
from endcast.reporting.simulation_summary import forecast_label
from endcast.router.forecasts import ForecastSource, kaplan_meier_of_log
from endcast.router.simulator import SimulationSettings, check_capacity
from endcast.router.soften import Softened
from endcast.router.tuning import OWN, Tuned, grid_of, tune

#: Policies that are tuned unless others are named.
TUNED = "br_h"


@dataclass(frozen=True)
class Tunings:
    """All that was tuned, on which log."""

    log: dict[str, object]
    tuned: tuple[Tuned, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"log": …, "tuned": […]}``, each with the options that choose it."""
        return {**self.log, "tuned": [{**one.to_json(), "options": options_of(one.chosen)} for one in self.tuned]}


def run_tuning(
    log: PlayedLog,
    settings: SimulationSettings,
    policies: Sequence[str],
    chosen: Sequence[ForecastChoice],
    how: Playing,
) -> Tunings:
    """Each policy with each source of forecasts. Forecasts are made for the whole log, once."""
    check_capacity(log.workload, settings)
    grids = {name: grid_of(name, settings, softens=True) for name in policies}
    blunt = kaplan_meier_of_log(log.trace)
    found = []
    for choice in chosen:
        if warning := choice.warning(log.trace):
            how.warn(warning)
        source = choice.make(log.trace, how.tell)
        soft = softens(choice)

        def at(weight: float, source: ForecastSource = source, soft: bool = soft) -> ForecastSource:
            return Softened(source, blunt, weight) if soft and weight > 0.0 else source

        for name in policies:
            grid = {key: values for key, values in grids[name].items() if soft or key != "soften"}
            label = f"tuning {name}, {forecast_label(choice.name)}"
            with progress(label, float(1 + 2 * sum(map(len, grid.values())))) as bar:
                found.append(
                    tune(
                        log.workload, settings, name, at, soften=how.soften if soft else 0.0, grid=grid, jobs=how.jobs,
                        progress=lambda text, bar=bar: bar.advance(),  # type: ignore[misc]
                    )
                )  # fmt: skip
    return Tunings(log.source, tuple(found))


def options_of(chosen: Mapping[str, float]) -> str:
    """The options of ``endcast simulate`` that set what was chosen."""
    own = [f"--{name} {value:g}" for name, value in chosen.items() if name in (*OWN, "soften")]
    others = ",".join(f"{name}={value:g}" for name, value in chosen.items() if name not in (*OWN, "soften"))
    return " ".join([*own, *([f"--set {others}"] if others else [])])


def show_tuning(found: Tunings, console: Console) -> None:
    """What was gained, where, and what to run."""
    rows = []
    for one in found.tuned:
        survived = "–" if one.survived is None else f"{one.survived:.0%}"
        parts = [f"{part.before:.4f} → {part.after:.4f} (±{part.noise:.4f})" for part in (one.first, one.rest)]
        rows.append((f"{one.policy}, {forecast_label(one.forecast)}", len(one.trials), *parts, survived))
    title = f"{found.log['log']}, tuned on its first half: efficiency, simulated"
    console.print(table(title, ("policy, forecasts", "tried", "first half", "the rest", "survived"), rows))
    for one in found.tuned:
        name = f"{one.policy}, {forecast_label(one.forecast)}"
        if one.chosen == one.before:
            console.print(f"{name}: nothing tried is better; stay with {options_of(one.before)}", markup=False)
            continue
        told = "" if one.rest.gain > 2.0 * one.rest.noise else " (on the rest, no more than noise: not worth taking)"
        console.print(f"{name}: {options_of(one.chosen)}{told}", markup=False)
    console.print(
        "± is the standard error of a difference over the seeds; survived = gain on the rest / gain on the first half."
    )
