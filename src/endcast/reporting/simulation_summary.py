"""What a simulation says in a few values: table, page and demo read them here, so that they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from endcast.errors import UnknownNameError
from endcast.reporting.run_details import RunDetails
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.results import PolicyResult, SimulationReport, forecast_value_captured

#: The source of forecasts that knows true lengths, and the policy that looks no step ahead.
ORACLE, NO_WINDOW = "oracle", "br_0"
#: Best guesses at what a fleet runs today; the first that was simulated counts.
TODAY = ("least_kv", "round_robin")

#: A policy and its source of forecasts.
Key = tuple[str, str | None]


class Kind(StrEnum):
    """What a policy has to go by."""

    DISPATCH = "sent to a worker on arrival"
    POOL = "central pool, no forecast"
    FORECAST = "central pool, forecasts"
    ORACLE = "central pool, true lengths"


@dataclass(frozen=True, eq=False)
class Simulated:
    """A simulation and what people need to judge it: ``details`` of each result, the ``today`` policy,
    forecasts that ``saw_answers`` of this log, ``warnings`` because of them, ``notes`` on the log."""

    report: SimulationReport
    details: Mapping[Key, RunDetails]
    today: str
    saw_answers: frozenset[str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def attainable(self) -> list[PolicyResult]:
        """Results that a fleet could have: true lengths, and bundles that saw this log's, are left out."""
        beyond = {ORACLE, *self.saw_answers}
        return [result for result in self.report.results if result.forecast not in beyond]

    @property
    def now(self) -> PolicyResult:
        """What the fleet runs now; with the first source of forecasts, where its policy uses some."""
        return next(result for result in self.report.results if result.policy == self.today)

    @property
    def best(self) -> PolicyResult:
        """The most efficient that a fleet could have; of all, where none could be had."""
        return max(self.attainable or self.report.results, key=efficiency)


def each_text(value: float | Sequence[int | float]) -> str:
    """One number, or one a worker: ``"64"``, ``"64, 64, 32"``."""
    numbers = value if isinstance(value, Sequence) else [value]
    return ", ".join(f"{one:,}" for one in numbers)


def slots_in_all(told: Mapping[str, Any]) -> int:
    """Slots of all workers, by a report's settings."""
    slots = told["slots"]
    return sum(slots) if isinstance(slots, Sequence) else int(told["workers"]) * int(slots)


def key_of(result: PolicyResult) -> Key:
    """By which a result is found."""
    return result.policy, result.forecast


def efficiency(result: PolicyResult) -> float:
    """Mean over the seeds."""
    value: float = result.mean["efficiency"]
    return value


def kind_of(result: PolicyResult) -> Kind:
    """By the policy's own declarations and its source of forecasts."""
    if result.forecast is not None:
        return Kind.ORACLE if result.forecast == ORACLE else Kind.FORECAST
    return Kind.DISPATCH if _dispatches(result.policy) else Kind.POOL


def uses_forecasts(policy: str) -> bool:
    """Whether the policy reads forecasts, of which ``None`` is the poorest source."""
    return POLICIES.get(policy)(PolicySettings()).needs_forecast


def _dispatches(policy: str) -> bool:
    return POLICIES.get(policy)(PolicySettings()).immediate_dispatch


def forecast_label(forecast: str | None) -> str:
    """As people read it; a bundle's id is shortened."""
    if forecast is None:
        return "none"
    return f"bundle {forecast[7:15]}" if forecast.startswith("sha256:") else forecast


def label_of(result: PolicyResult) -> str:
    """Policy, and forecasts where it uses some."""
    shown = result.forecast is not None or uses_forecasts(result.policy)
    return f"{result.policy}, {forecast_label(result.forecast)}" if shown else result.policy


def today_of(policies: Sequence[str], wanted: str | None = None) -> str:
    """The policy that stands for what the fleet runs now: the one wanted, else a best guess among those simulated.

    ``UnknownNameError`` lists them, if the one wanted is not among them.
    """
    if wanted is not None:
        if wanted not in policies:
            hint = f"Simulated: {', '.join(policies)}"
            raise UnknownNameError(f"--today: {wanted} is not among the policies to simulate", hint=hint)
        return wanted
    dispatching = [name for name in policies if _dispatches(name)]
    return next(name for name in (*TODAY, *dispatching, *policies) if name in policies)


def forecast_results(simulated: Simulated) -> list[PolicyResult]:
    """What policies make of no, poor, good and perfect forecasts, the least efficient first; none without such a policy."""
    results = simulated.report.results
    using = [result for result in results if uses_forecasts(result.policy)]
    without = [result for result in results if result.policy == NO_WINDOW]
    return sorted([*without, *using], key=efficiency) if using else []


def by_efficiency(simulated: Simulated) -> list[PolicyResult]:
    """All results, the most efficient first."""
    return sorted(simulated.report.results, key=efficiency, reverse=True)


def value_captured(report: SimulationReport, result: PolicyResult) -> float | None:
    """Of what true lengths gain in efficiency over BR-0, the share that the result's forecasts gain.

    ``None`` where BR-0 or the same policy with true lengths was not simulated, for those two themselves, and where
    true lengths gain less than two standard deviations of the runs.
    """
    try:
        without, truth = report.result(NO_WINDOW), report.result(result.policy, ORACLE)
    except KeyError:
        return None
    noise = 2.0 * max(without.spread["efficiency"], truth.spread["efficiency"])
    if result in (without, truth) or efficiency(truth) - efficiency(without) <= noise:
        return None
    return forecast_value_captured(efficiency(result), efficiency(without), efficiency(truth))
