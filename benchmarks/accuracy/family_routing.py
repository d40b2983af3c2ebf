"""What one bundle's forecasts buy in routing, on one small simulated log, the same for all bundles.

Answers to AlpacaEval prompts that training had not seen, at Azure's arrivals and with Azure's prompt sizes, 8 workers of 32
slots. Placement at 105 % of what they can serve: BR-H in its published form with one window and one softening for all (those
that served the default best on the page's own tuning). Order of admission at 95 %: shortest forecast at admission first.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.accuracy.data import CONVERSATION, Parted

from endcast.datasets.read import read
from endcast.predictors.bundle import Bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.router.arrivals import borrowed_arrivals
from endcast.router.forecasts import ForecastSource, Landmarked, Precomputed, kaplan_meier_of_log
from endcast.router.results import forecast_value_captured
from endcast.router.shortest_first import ShortestFirst
from endcast.router.simulator import SimulationSettings, simulate, simulate_policy
from endcast.router.workload import Workload
from endcast.training.served import serve_outputs, serve_trace
from endcast.training.value import ORACLE, softened, truth_of
from endcast.training.value_studies import order_of_admission

#: Requests of the log at most; horizon, discount and share of Kaplan-Meier of the window.
REQUESTS, HORIZON, DISCOUNT, SOFTEN, SEEDS = 3000, 80, 0.98, 0.5, 2
_PLACING = SimulationSettings(
    workers=8, slots=32, utilization=1.05, candidates=64, horizon=HORIZON, discount=DISCOUNT, seeds=SEEDS
)
_ORDERING = SimulationSettings(workers=8, slots=32, utilization=0.95, candidates=1024, seeds=SEEDS)


class RoutingBench:
    """The log, and what every bundle is compared with, played once."""

    def __init__(self, folder: Path, parted: Parted) -> None:
        rows = np.random.default_rng(0).permutation(len(parted.test))[:REQUESTS]
        azure = read(folder / CONVERSATION).trace
        self._trace = parted.test.take(rows)
        self._reference = kaplan_meier_of_log(parted.train)
        self._workload = Workload.from_trace(
            self._trace,
            arrival_s=borrowed_arrivals(len(rows), azure.arrival_s),
            prompt=azure.prompt_tokens[np.arange(len(rows)) % len(azure)],
        )
        self._without = self._efficiency("br_0", None)
        self._truth = self._efficiency("br_h_published", truth_of(self._workload))
        ordered = {one.order: one.e2e_mean_s.mean for one in order_of_admission(self._workload, {}, _ORDERING)}
        self._ordered = {"arrival": ordered["arrival"], "truth": ordered[ORACLE]}

    def of(self, bundle: Bundle) -> dict[str, Any]:
        """Efficiency of placement with BR-0's and true lengths' beside it; mean E2E, seconds, by order of admission."""
        static, running = self._sources(bundle)
        placed = self._efficiency("br_h_published", softened(running, self._reference, SOFTEN))
        return {
            "br_0": self._without[0],
            "efficiency": placed[0],
            "deviation": placed[1],
            "truth": self._truth[0],
            "captured": forecast_value_captured(placed[0], self._without[0], self._truth[0]),
            "e2e_mean_s": {**self._ordered, "model": self._mean_e2e(static)},
        }

    def _sources(self, bundle: Bundle) -> tuple[ForecastSource, ForecastSource]:
        """Forecasts at admission, and those of running requests: of the text so far, if the bundle reads it."""
        trace, forecaster = self._trace, OnnxForecaster(bundle)
        nothing = np.zeros(len(trace), dtype=bool)
        every = forecaster.refresh_every
        if every is None:
            served = serve_trace(forecaster, trace, ~nothing, observed=nothing)
            static = Precomputed("static", served.batch.take(np.argsort(served.rows)))
            return static, static
        served, along = serve_outputs(forecaster, trace, ~nothing, every=every, reach=2 * HORIZON, observed=nothing)
        place = np.argsort(served.rows)
        text = Landmarked("text so far", along.batch, along.first[place], along.count[place], along.every)
        return Precomputed("static", served.batch.take(place)), text

    def _mean_e2e(self, source: ForecastSource) -> float:
        """Seconds, the shortest forecast first."""
        rows = self._workload.row
        expected = source.curves(rows, np.zeros_like(rows)).expected_remaining
        result = simulate_policy(self._workload, _ORDERING, "model", partial(ShortestFirst, expected))
        return float(result.mean["e2e_s"]["mean"])

    def _efficiency(self, policy: str, source: ForecastSource | None) -> tuple[float, float]:
        """Mean and deviation over the runs."""
        played = simulate(self._workload, _PLACING, policies=[policy], forecasts=[] if source is None else [source])
        result = played.results[0]
        return float(result.mean["efficiency"]), float(result.spread["efficiency"])
