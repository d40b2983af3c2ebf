"""Speed of routing: one round from a step's events to decisions, and the simulator, each beside a slow oracle.

    python benchmarks/bench_router.py [--rounds 3000] [--policy br_h] [--json]

A round is what the router does in every decode step, all bookkeeping included: take in the tokens and ends of the last
step and the new arrivals, bring windows up to date, decide, fill the slots. Fleets are full and the pool is kept at its
depth; lengths are log-normal and forecasts Kaplan-Meier, so every window changes in every step. CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from endcast.router.balance_route import discounts, placement_gain
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.engine import play
from endcast.router.entries import NOTHING
from endcast.router.forecasts import ForecastSource, Oracle, kaplan_meier
from endcast.router.policies import POLICIES
from endcast.router.policy import Decisions, PolicySettings
from endcast.router.scale import default_step_time, mean_kv_per_slot, offered_rate, stretched
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray

HORIZON = 80
SIZES = {"8 x 64, 256 waiting": (8, 64, 256), "64 x 256, 2048 waiting": (64, 256, 2048)}
#: Rounds before the clock starts: the fleet forgets that it was filled all at once.
SETTLE = 200


class Fleet:
    """A full fleet in steady state: what ends is replaced from the pool, what leaves the pool is replaced by arrivals."""

    def __init__(self, workers: int, slots: int, waiting: int, rounds: int, policy: str = "br_h") -> None:
        rng = np.random.default_rng(0)
        count = workers * slots + waiting + (rounds + SETTLE) * workers * slots // 40
        self.output = np.maximum(rng.lognormal(5.0, 1.0, count), 1).astype(np.int64)
        self.prompt = np.maximum(rng.lognormal(6.5, 1.0, count), 1).astype(np.int64)
        self.source = kaplan_meier(self.output, np.ones(count, dtype=np.bool_))
        self.settings = PolicySettings(horizon=HORIZON, max_overtakes=4 * workers * slots)
        self.policy = POLICIES.get(policy)(self.settings)
        self.state = ClusterState(
            slots=np.full(workers, slots),
            capacity=np.full(workers, UNLIMITED),
            policy=self.policy,
            curves=self.source.shared,
        )
        self.rng, self.waiting = np.random.default_rng(1), waiting
        self.left, self.ones = np.zeros(workers * slots, dtype=np.int64), np.ones(workers * slots, dtype=np.int64)
        self.ended, self.next = np.zeros(0, dtype=np.int64), 0
        self.round(first=workers * slots)

    def round(self, first: int = 0) -> tuple[int, Decisions]:
        """One step: CPU nanoseconds of the router's part, and what it decided."""
        new = np.arange(self.next, self.next + max(first + self.waiting - len(self.state.pool), 0))
        self.next += len(new)
        forecasts = self.source.curves(new, np.zeros_like(new))
        began = time.thread_time_ns()
        self.state.stepped(self.ones, self.ended)
        if len(new):
            self.state.arrive(new, self.prompt[new], new.astype(np.float64), forecasts=forecasts)
        decided = self.policy.decide(self.state.view(), self.rng)
        started = self.state.apply(decided)
        took = time.thread_time_ns() - began
        self.left[started.slot] = self.output[started.request]
        self.left -= 1
        self.ended = np.flatnonzero(self.left == 0)
        return took, decided


def slow_round(fleet: Fleet) -> int:
    """CPU nanoseconds of the published form in plain numpy: every window and every score F anew for every slot."""
    began = time.thread_time_ns()
    slots, h, weight = fleet.state.slots, np.arange(HORIZON + 1), discounts(HORIZON, fleet.settings.discount)
    load = np.zeros((len(slots.sizes), HORIZON + 1))
    for slot in np.flatnonzero(slots.request != NOTHING):
        load[slots.worker[slot]] += expected(
            fleet, slots.request[slot : slot + 1], slots.generated[slot : slot + 1], h
        )[0]
    view = fleet.state.view()
    free, pool = view.free.copy(), list(range(len(view.waiting)))
    while pool and free.sum() > 0:
        margin = load.max(axis=0) - load
        g = int(np.argmax(np.where(free > 0, margin @ weight, -np.inf)))
        oldest = view.waiting[np.array(pool[: fleet.settings.candidates])]
        windows = expected(fleet, oldest, np.zeros_like(oldest), h)
        best = int(np.argmax(placement_gain(windows, margin[g], len(free)) @ weight))
        load[g] += windows[best]
        free[g] -= 1
        pool.pop(best)
    return time.thread_time_ns() - began


def expected(fleet: Fleet, request: IntArray, generated: IntArray, h: IntArray) -> FloatArray:
    """(k, H+1): (s + e + h)·P(R > h)."""
    survival = fleet.source.curves(request, generated).with_horizon(HORIZON).survival.astype(np.float64)
    return ((fleet.prompt[request] + generated)[:, None] + h) * survival


def measure_rounds(policy: str, size: tuple[int, int, int], rounds: int) -> dict[str, float]:
    fleet = Fleet(*size, rounds, policy)
    for _ in range(SETTLE):
        fleet.round()
    fast = np.array([fleet.round()[0] for _ in range(rounds)]) / 1e6
    p50, p99 = np.percentile(fast, [50, 99])
    found = {"p50_ms": float(p50), "p99_ms": float(p99)}
    if policy == "br_h":
        fleet.state.stepped(fleet.ones, fleet.ended)
        found["slow_oracle_ms"] = float(np.median([slow_round(fleet) for _ in range(3)]) / 1e6)
    return found


def log(count: int) -> Workload:
    rng = np.random.default_rng(2)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=np.maximum(rng.lognormal(6.5, 1.0, count), 1).astype(np.int64),
        output=np.maximum(rng.lognormal(5.0, 1.0, count), 1).astype(np.int64),
    )


def measure_simulator(name: str, requests: int) -> dict[str, Any]:
    """Steps a minute of ``br_h``, H = 80, on 8 × 64 at utilization 1.05, whole runs with all that belongs to them."""
    load, (workers, slots) = log(requests), (8, 64)
    kv = mean_kv_per_slot(load.prompt, load.output)
    step_time = default_step_time(slots, kv)
    rate = offered_rate(step_time, utilization=1.05, workers=workers, slots=slots, kv_per_slot=kv, output=load.output)
    load = load.at(stretched(load.arrival_s, rate))
    sources: dict[str, ForecastSource] = {
        "oracle": Oracle(load.output),
        "kaplan_meier": kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_)),
    }
    for part in (load.take(np.arange(len(load)) < 50), load):  # the first compiles
        began = time.process_time()
        record = play(
            part,
            POLICIES.get("br_h")(PolicySettings(horizon=HORIZON, max_overtakes=4 * workers * slots)),
            slots=np.full(workers, slots),
            capacity=np.full(workers, UNLIMITED),
            step_time=step_time,
            forecasts=sources[name],
            rng=np.random.default_rng(0),
        )
        took = time.process_time() - began
    return {"steps": record.steps, "cpu_s": took, "steps_per_minute": record.steps / took * 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3000, help="rounds of the small fleet; the large one gets a fifth"
    )
    parser.add_argument("--policy", default="br_h", help="whose rounds; the simulator is always br_h's")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of the simulated log")
    parser.add_argument("--json", action="store_true", help="for machines")
    chosen = parser.parse_args()
    found: dict[str, dict[str, Any]] = {"round": {}, "simulator": {}}
    for label, size in SIZES.items():
        found["round"][label] = measure_rounds(
            chosen.policy, size, chosen.rounds if size[0] == 8 else chosen.rounds // 5
        )
    for name in ("kaplan_meier", "oracle"):
        found["simulator"][name] = measure_simulator(name, chosen.requests)
    if chosen.json:
        print(json.dumps(found))
        return
    for label, times in found["round"].items():
        oracle = f" (slow oracle {times['slow_oracle_ms']:.0f} ms)" if "slow_oracle_ms" in times else ""
        print(
            f"round, {chosen.policy}, {label}, H {HORIZON}: p50 {times['p50_ms']:.3f} ms, p99 {times['p99_ms']:.3f} ms{oracle}"
        )
    for name, run in found["simulator"].items():
        print(f"simulator, br_h with {name}, 8 x 64, H {HORIZON}: {run['steps_per_minute']:,.0f} steps a minute")


if __name__ == "__main__":
    main()
