"""Speed of OLP's price arithmetic beside columns written out, and what prices buy on a log.

    python benchmarks/bench_olp.py [--log LOG] [--json]

With ``--log``, that log is played at utilization 0.95 with true lengths: a sweep of w_tail, with prices and with the same
reward at price 0. CPU time. Whole rounds: ``bench_router.py --policy olp``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

from endcast.router.forecasts import Oracle
from endcast.router.olp.columns import costs_now, explicit_column
from endcast.router.olp.dual import Batch, improve
from endcast.router.olp.prices import running_sums
from endcast.router.policies.olp import Olp
from endcast.router.policy import Policy, PolicySettings
from endcast.router.simulator import SimulationSettings, simulate_policy
from endcast.router.workload import Workload
from endcast.survival import FloatArray

STEPS, WAITING, ROWS = 128, 256, 8
TAIL_WEIGHTS = (0.0, 0.25, 1.0, 4.0, 16.0)


def microseconds(repeats: int, call: Any) -> float:
    """Median over repeats, the first one left out: it compiles."""
    took = []
    for _ in range(repeats + 1):
        began = time.thread_time_ns()
        call()
        took.append((time.thread_time_ns() - began) / 1e3)
    return float(np.median(took[1:]))


def arithmetic() -> dict[str, float]:
    """Microseconds for what 256 requests cost on 8 rows of 128 steps, and for one price update; by explicit columns too."""
    rng = np.random.default_rng(0)
    price = rng.exponential(1.0, (2, ROWS, STEPS))
    prompt, length = rng.integers(1, 2000, WAITING), rng.integers(1, 400, WAITING)
    size = 32
    batch = Batch(prompt[:size], length[:size], rng.integers(0, STEPS, (size, 1)), rng.uniform(0.1, 1.0, (size, 1)))
    supply, capacity = np.full((2, ROWS, STEPS), 100.0), np.full((2, ROWS), 500.0)

    def slow() -> FloatArray:
        columns = [
            explicit_column(ROWS, STEPS, row=r, prompt=int(s), length=int(o), start=0)
            for s, o in zip(prompt, length, strict=True)
            for r in range(ROWS)
        ]
        return np.array([np.sum(column * price) for column in columns])

    def update() -> None:
        improve(price, batch, requests=400.0, supply=supply, capacity=capacity, step_size=0.05, kv_unit=1000.0)

    return {
        "costs_us": microseconds(200, lambda: costs_now(running_sums(price), prompt, length)),
        "costs_explicit_us": microseconds(3, slow),
        "update_us": microseconds(200, update),
    }


def frontier(path: str, seeds: int) -> list[dict[str, float]]:
    """Mean and p99 of E2E and the throughput over w_tail, with prices and without."""
    from endcast.datasets.read import read

    trace = read(path).trace
    load, found = Workload.from_trace(trace), []
    settings = SimulationSettings(workers=8, slots=32, utilization=0.95, seeds=seeds)
    for step_size in (0.0, 0.05):
        for w_tail in TAIL_WEIGHTS:

            def make(plain: PolicySettings, step_size: float = step_size, w_tail: float = w_tail) -> Policy:
                return Olp(
                    replace(
                        plain,
                        olp=replace(
                            plain.olp, step_size=step_size, w_ttft=0.0, w_tail=w_tail, price_horizon=128, patience=1.0
                        ),
                    )
                )

            result = simulate_policy(load, settings, "olp", make, Oracle(trace.output_tokens))
            mean, spread = result.mean, result.spread
            found.append(
                {
                    "step_size": step_size,
                    "w_tail": w_tail,
                    "e2e_mean_s": mean["e2e_s"]["mean"],
                    "e2e_mean_spread": spread["e2e_s"]["mean"],
                    "e2e_p99_s": mean["e2e_s"]["p99"],
                    "e2e_p99_spread": spread["e2e_s"]["p99"],
                    "throughput": mean["throughput"],
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", help="a log to play; none is played if not given")
    parser.add_argument("--seeds", type=int, default=4, help="runs of each setting on that log")
    parser.add_argument("--json", action="store_true", help="for machines")
    chosen = parser.parse_args()
    found: dict[str, Any] = {"arithmetic": arithmetic()}
    if chosen.log:
        found["frontier"] = frontier(chosen.log, chosen.seeds)
    if chosen.json:
        print(json.dumps(found))
        return
    times = found["arithmetic"]
    print(
        f"costs of {WAITING} requests on {ROWS} rows: {times['costs_us']:.0f} us (written out "
        f"{times['costs_explicit_us']:,.0f} us); one price update: {times['update_us']:.0f} us"
    )
    for row in found.get("frontier", []):
        print(
            f"prices {'on ' if row['step_size'] else 'off'} w_tail {row['w_tail']:5.2f}: E2E mean {row['e2e_mean_s']:.1f} "
            f"± {row['e2e_mean_spread']:.1f} s, p99 {row['e2e_p99_s']:.1f} ± {row['e2e_p99_spread']:.1f} s, "
            f"{row['throughput']:,.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
