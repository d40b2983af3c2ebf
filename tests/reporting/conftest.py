"""Small simulations for the tests of tables, pages and plots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from endcast.cli.simulation_forecasts import choices
from endcast.cli.simulation_log import PlayedLog
from endcast.cli.simulation_run import Playing, policy_names, run
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.reporting.simulation_summary import Simulated
from endcast.router.simulator import SimulationSettings
from endcast.router.workload import Workload

Simulate = Callable[..., Simulated]


def ignore(text: str) -> None:
    """What a command would print."""


@pytest.fixture(scope="session")
def trace() -> Trace:
    """400 requests of a synthetic log."""
    return synthesize(SynthSettings(requests=400, seed=5)).trace


@pytest.fixture(scope="session")
def simulate_trace(trace: Trace) -> Simulate:
    """A function that simulates (some of) the log."""

    def simulate(
        policies: str,
        forecasts: str = "kaplan_meier,oracle",
        *,
        requests: int = 400,
        name: str = "log.csv",
        today: str | None = None,
        **fleet: float,
    ) -> Simulated:
        part = Trace(trace.table.slice(0, requests))
        source: dict[str, object] = {
            "log": name,
            "log_columns": None,
            "first_requests": None,
            "arrivals": "log",
            "arrivals_prompts": False,
        }
        log = PlayedLog(part, Workload.from_trace(part), source, ())
        settings = SimulationSettings(**{"workers": 3, "slots": 4, "utilization": 1.1, **fleet})  # type: ignore[arg-type]
        names = policy_names(policies, log.workload)
        how = Playing(soften=0.0, jobs=1, resume=None, tell=ignore, warn=ignore)
        return run(log, settings, names, choices(forecasts, 0), today=today, how=how)

    return simulate


@pytest.fixture(scope="session")
def simulated(simulate_trace: Simulate) -> Simulated:
    """Two runs of some policies of each kind."""
    return simulate_trace("round_robin,least_kv,br_0,br_h", "none,kaplan_meier,oracle", seeds=2)
