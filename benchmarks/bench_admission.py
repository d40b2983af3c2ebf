"""What admission rules cost: CPU time of a routing round where KV memory binds, rule by rule, and without bounds.

    python benchmarks/bench_admission.py [--policy br_h] [--requests 4000] [--json]

A fleet of 8 × 64 slots whose workers hold the KV of 32 mean requests is offered a tenth more than its slots could serve,
so a round asks the rule about most of what it looks at. A round is timed as the simulator does it: from the tokens, ends
and arrivals of a step to slots filled. Preemption is the engines' work and is not in it.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from endcast.router.forecasts import kaplan_meier
from endcast.router.simulator import PlayedRun, SimulationSettings, simulate
from endcast.router.workload import Workload

RULES = ("optimistic:0.02", "headroom", "reserve_cap:1000", "forecast:0.8")
REQUESTS_A_WORKER = 32


def log(count: int) -> Workload:
    rng = np.random.default_rng(2)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=np.maximum(rng.lognormal(6.5, 1.0, count), 1).astype(np.int64),
        output=np.minimum(np.maximum(rng.lognormal(5.0, 1.0, count), 1), 1000).astype(np.int64),
    )


def measure(load: Workload, policy: str, capacity: int | None, rule: str) -> dict[str, float]:
    """Median and 99th percentile of a round in CPU milliseconds."""
    settings = SimulationSettings(kv_capacity=capacity, admission=rule, utilization=1.1)
    runs: list[PlayedRun] = []
    source = kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_))
    simulate(load, settings, policies=[policy], forecasts=[source], watch=runs.append)
    p50, p99 = np.percentile(runs[0].record.decision_ns / 1e6, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="br_h", help="whose rounds")
    parser.add_argument("--requests", type=int, default=4000, help="requests of the synthetic log")
    parser.add_argument("--json", action="store_true", help="for machines")
    chosen = parser.parse_args()
    load = log(chosen.requests)
    held = float((load.prompt + load.output / 2.0) @ load.output / load.output.sum())
    found = {"without bounds": measure(load, chosen.policy, None, "optimistic")}
    for rule in RULES:
        found[rule] = measure(load, chosen.policy, round(REQUESTS_A_WORKER * held), rule)
    if chosen.json:
        print(json.dumps(found))
        return
    for name, times in found.items():
        print(f"{chosen.policy}, {name}: p50 {times['p50_ms']:.3f} ms, p99 {times['p99_ms']:.3f} ms")


if __name__ == "__main__":
    main()
