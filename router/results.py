"""What a simulation found: frozen values, and the JSON of ``endcast simulate --json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from endcast.router.figures import Figures

#: Spread of each figure has the same shape as the figure itself: numbers, or numbers by name.
Nested = dict[str, Any]


@dataclass(frozen=True)
class PolicyResult:
    """One policy with one source of forecasts: the figures of each seed, in order."""

    policy: str
    forecast: str | None
    runs: tuple[Figures, ...]

    @property
    def mean(self) -> Nested:
        """Means over the seeds, figures by name."""
        return _combine([asdict(run) for run in self.runs], _mean)

    @property
    def spread(self) -> Nested:
        """Sample standard deviations over the seeds; 0 where only one was run."""
        return _combine([asdict(run) for run in self.runs], _deviation)

    def to_json(self) -> Nested:
        """As one entry of ``policies``."""
        return {"policy": self.policy, "forecast": self.forecast, **self.mean, "spread": self.spread}


@dataclass(frozen=True)
class SimulationReport:
    """All policies on one workload under the same settings."""

    settings: Nested
    seeds: int
    results: tuple[PolicyResult, ...]

    def to_json(self) -> Nested:
        """``{"settings", "seeds", "policies"}``, all numbers finite."""
        return {
            "settings": self.settings,
            "seeds": self.seeds,
            "policies": [result.to_json() for result in self.results],
        }

    def result(self, policy: str, forecast: str | None = None) -> PolicyResult:
        """The one of that policy and source; ``KeyError`` if it was not run."""
        for result in self.results:
            if (result.policy, result.forecast) == (policy, forecast):
                return result
        raise KeyError((policy, forecast))


def forecast_value_captured(model: float, without: float, truth: float) -> float | None:
    """(X(model) − X(BR-0)) / (X(true lengths) − X(BR-0)), X = efficiency; ``None`` if true lengths gain nothing."""
    gain = truth - without
    return (model - without) / gain if gain > 0.0 else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _combine(runs: Sequence[Nested], how: Any) -> Nested:
    return {
        name: _combine([run[name] for run in runs], how)
        if isinstance(value, dict)
        else how([run[name] for run in runs])
        for name, value in runs[0].items()
    }
