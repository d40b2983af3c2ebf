"""Does a fleet behind the router run as the simulator says? The same log, played on the lockstep mock fleet and simulated.

    python benchmarks/bench_agreement.py [LOG] [--requests 1000] [--workers 8] [--slots 16] [--policies least_kv,br_0,br_h]

The mock fleet steps in lockstep on the simulator's default scale, in real time times ``--pace``. Requests arrive over HTTP when the fleet's
clock (the sum of its steps' lengths, and idle time) says so, go through a gateway in this process, and stream their tokens back.
Efficiency and throughput are taken over the steps that begin by the last arrival, as the simulator takes them. ``br_h`` gets Kaplan-Meier of
the log in both. One line a policy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import pathlib
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

import endcast
from endcast.cli.simulation_log import load
from endcast.router.gateway.config import Config, Health, Limits, Listen, Pool, WorkerConfig
from endcast.router.gateway.gateway import Gateway
from endcast.router.gateway.mock.engine import MockSettings, Rank, Steps
from endcast.router.gateway.mock.server import MockFleet
from endcast.router.gateway.serve import Server
from endcast.router.scale import default_step_time, mean_kv_per_slot, offered_rate, stretched
from endcast.survival import FloatArray, IntArray

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOG = ROOT.parent / "shared" / "data" / "AzureLLMInferenceTrace_conv.csv"


@dataclass(frozen=True, kw_only=True)
class Play:
    """A log on the default scale: prompts, outputs (n,) in tokens, arrivals (n,) in seconds."""

    prompt: IntArray
    output: IntArray
    arrival_s: FloatArray
    fixed_s: float
    kv_s: float


@dataclass
class Measured:
    """What the fleet did: a row a step with its beginning, its length, tokens, heaviest and mean load."""

    steps: list[tuple[float, float, int, int, float]] = field(default_factory=list)

    def figures(self, play: Play) -> dict[str, float]:
        """Over the steps that begin by the last arrival."""
        begin, lasts, tokens, _, mean = np.array(self.steps).T
        used = begin <= play.arrival_s[-1]
        time_s = lasts[used].sum()
        perfect = (play.fixed_s + play.kv_s * mean[used]).sum()
        return {"efficiency": perfect / time_s, "throughput": tokens[used].sum() / time_s}


class PacedSteps(Steps):
    """The mock fleet's barrier with a clock of its own: a second of it takes ``pace`` real ones."""

    def __init__(self, ranks: list[Rank], settings: MockSettings, pace: float) -> None:
        super().__init__(ranks, settings)
        self._pace, self.measured = pace, Measured()
        self._began_s, self._since, self._lasts = 0.0, 0.0, float("inf")

    def now_s(self) -> float:
        """The fleet's clock: within a step it does not pass its end."""
        return self._began_s + min((asyncio.get_running_loop().time() - self._since) / self._pace, self._lasts)

    def begin_clock(self) -> None:
        """The idle fleet's clock says 0."""
        self._begin(0.0, float("inf"))

    async def run(self) -> None:
        """Step for ever."""
        clock = asyncio.get_running_loop().time
        self._since = clock()
        while True:
            for rank in self._ranks:
                rank.admit()
            running = sum(len(rank.running) for rank in self._ranks)
            if not running:
                self._work.clear()
                await self._work.wait()
                self._begin(self.now_s(), float("inf"))
                continue
            loads = [rank.kv_tokens for rank in self._ranks]
            lasts = self._settings.t_fixed_s + self._settings.t_kv_s * max(loads)
            self._begin(self.now_s() if self._lasts == float("inf") else self._began_s + self._lasts, lasts)
            await asyncio.sleep(lasts * self._pace)
            for rank in self._ranks:
                rank.step()
            self.measured.steps.append((self._began_s, lasts, running, max(loads), sum(loads) / len(loads)))
            if not any(rank.running or rank.waiting for rank in self._ranks):
                self._begin(self._began_s + lasts, float("inf"))

    def _begin(self, at_s: float, lasts: float) -> None:
        self._began_s, self._since, self._lasts = at_s, asyncio.get_running_loop().time(), lasts


def main() -> None:
    """Play, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", type=pathlib.Path, default=LOG)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--utilization", type=float, default=1.05)
    parser.add_argument("--policies", default="least_kv,br_0,br_h")
    parser.add_argument("--pace", type=float, default=1.0, help="real seconds for one of the fleet's")
    told = parser.parse_args()
    if not told.log.exists():
        sys.exit(f"error: {told.log} is not there. Name a log")
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the mock fleet's, of clients who left at the end
    play, simulated = played(told), simulation(told)
    for policy in told.policies.split(","):
        measured = asyncio.run(measure(play, policy, told))
        expected = {name: simulated[policy][name] for name in measured}
        apart = {name: f"{100 * (measured[name] / expected[name] - 1):+.1f} %" for name in measured}
        shown = {"policy": policy, "measured": measured, "simulated": expected, "apart": apart}
        print(json.dumps(shown, default=float), flush=True)


def played(told: argparse.Namespace) -> Play:
    """The log as ``endcast simulate`` plays it."""
    workload = load(
        told.log, None, None, arrivals=None, arrivals_prompts=False, requests=told.requests, seed=0
    ).workload
    kv = mean_kv_per_slot(workload.prompt, workload.output)
    step = default_step_time(told.slots, kv)
    rate = offered_rate(
        step,
        utilization=told.utilization,
        workers=told.workers,
        slots=told.slots,
        kv_per_slot=kv,
        output=workload.output,
    )
    arrival_s = stretched(workload.arrival_s, rate)
    return Play(
        prompt=workload.prompt, output=workload.output, arrival_s=arrival_s, fixed_s=step.fixed_s, kv_s=step.kv_s
    )


def simulation(told: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What ``endcast simulate`` says, by policy; means of four runs."""
    command = [sys.executable, "-m", "endcast", "simulate", str(told.log), "--policies", told.policies]
    for name in ("requests", "workers", "slots", "utilization"):
        command += [f"--{name}", str(getattr(told, name))]
    command += ["--forecast", "kaplan_meier", "--seeds", "4", "--json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {one["policy"]: one for one in said["policies"]}


async def measure(play: Play, policy: str, told: argparse.Namespace) -> dict[str, float]:
    """The log through a gateway to a mock fleet."""
    settings = MockSettings(
        workers=told.workers,
        slots=told.slots,
        t_fixed_s=play.fixed_s,
        t_kv_s=play.kv_s,
        kv_capacity=10**9,
        context_limit=10**8,
    )
    fleet = MockFleet(settings)
    fleet.steps = steps = PacedSteps(fleet.ranks, settings, told.pace)
    async with fleet:
        forecaster = endcast.kaplan_meier(play.output.tolist()), endcast.cold_start()
        pool = Pool(
            workers=tuple(WorkerConfig(url=url) for url in fleet.urls),
            slots=told.slots,
            policy=policy,
            forecaster="kaplan_meier" if policy not in ("least_kv", "br_0") else None,
            forecast_timeout_s=1.0,
        )
        limits = Limits(max_waiting=1_000_000, max_wait_s=100_000.0)
        config = Config(pools=(pool,), listen=Listen(port=0), limits=limits, health=Health(timeout_s=30.0))
        async with Server(Gateway(config, forecasts=lambda _: forecaster), config.listen) as server, client() as http:
            await _play(play, server.url, http, steps)
    return steps.measured.figures(play)


def client() -> aiohttp.ClientSession:
    """All clients."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


async def _play(play: Play, url: str, http: aiohttp.ClientSession, steps: PacedSteps) -> None:
    """Every request at its time; all must be answered."""

    async def one(i: int) -> None:
        body: dict[str, Any] = {
            "prompt": [7] * int(play.prompt[i]),
            "max_tokens": 1_000_000,
            "mock_output_tokens": int(play.output[i]),
            "stream": True,
        }
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            async for _ in answer.content.iter_any():
                pass
            assert answer.status == 200

    running: list[asyncio.Task[None]] = []
    steps.begin_clock()
    for i, at_s in enumerate(play.arrival_s):
        while steps.now_s() < at_s:
            await asyncio.sleep(0.002)
        running.append(asyncio.create_task(one(i)))
    while steps.now_s() <= play.arrival_s[-1]:
        await asyncio.sleep(0.01)
    for task in running:  # the rest is not measured
        task.cancel()
    for told in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(told, Exception):
            raise told


if __name__ == "__main__":
    main()
