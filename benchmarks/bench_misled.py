"""What wrong forecasts do to a policy: true lengths, the same in reversed order, and a curve that knows nothing.

    python benchmarks/bench_misled.py LOG [--workers 8] [--policies br_h,br_h_published] [--seeds 4]

``reversed``: the request with the longest output is told to have the shortest one, and so on. ``constant hazard``: each ends
with the same chance at each token, that of the mean length. ``br_0``, which asks nobody, stands beside. Simulated, 32 slots,
utilization 1.05.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from endcast.datasets.read import read
from endcast.router.forecasts import ForecastSource, OneCurve, Oracle
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.workload import Workload
from endcast.survival import CurveTable, IntArray


def reversed_lengths(output: IntArray) -> IntArray:
    """(n,), the same lengths, given out in the opposite order of size."""
    told = np.empty_like(output)
    told[np.argsort(output, kind="stable")] = np.sort(output)[::-1]
    return told


def constant_hazard(mean: float) -> CurveTable:
    """One curve with the same hazard at each token."""
    log_stays = float(np.log1p(-1.0 / mean))
    return CurveTable(np.array([0, 1]), np.array([[0.0, log_stays]]), np.array([log_stays]))


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description="What wrong forecasts do to a policy.")
    parser.add_argument("log", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--policies", default="br_h,br_h_published")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    load = Workload.from_trace(read(given.log).trace)
    sources: list[ForecastSource] = [
        Oracle(load.output),
        Oracle(reversed_lengths(load.output), name="reversed"),
        OneCurve("constant hazard", constant_hazard(float(load.output.mean()))),
    ]
    settings = SimulationSettings(workers=given.workers, slots=32, utilization=1.05, seeds=given.seeds)
    report = simulate(load, settings, policies=["br_0", *given.policies.split(",")], forecasts=sources)
    for result in report.results:
        mean, spread = result.mean, result.spread
        print(
            f"{given.log.name}, {given.workers} workers, {result.policy}, {result.forecast}: "
            f"efficiency {mean['efficiency']:.4f} ± {spread['efficiency']:.4f}, {mean['throughput']:,.0f} tokens/s, "
            f"KV a slot {mean['kv_per_slot']:.3f}",
            flush=True,
        )


main()
