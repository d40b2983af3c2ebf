"""A simulation's plan: a workload at the rate asked for, on a fleet of the scale asked for, and how one run of it is played."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from endcast.router.engine import play
from endcast.router.forecasts import ForecastSource, Landmarked, NoForecast
from endcast.router.policy import Policy, PolicySettings
from endcast.router.record import RunRecord
from endcast.router.scale import StepTime, default_step_time, fleet_rate, mean_kv_per_slot, stretched
from endcast.router.simulation_settings import SimulationSettings
from endcast.router.workload import Workload

#: A policy's class, as the registry names it.
MakePolicy = Callable[[PolicySettings], Policy]

#: Seed 0 plays the arrivals as they are, any other stretches them by up to this share. Runs are chaotic, but ties
#: alone do not tell those of BR-H apart: a result that a ten-thousandth of the arrivals' spacing changes is no finding.
_SEED_STRETCH = 1e-4


@dataclass(frozen=True)
class Plan:
    """A workload at the rate asked for, and the scale of the fleet that serves it."""

    workload: Workload
    settings: SimulationSettings
    step_time: StepTime
    kv_per_slot: float
    rate: float

    @classmethod
    def of(cls, workload: Workload, settings: SimulationSettings) -> Plan:
        """The workload's own order and pattern, stretched to the rate that ``settings`` ask for."""
        kv_per_slot = mean_kv_per_slot(workload.prompt, workload.output)
        slots, speed = settings.slots_each, settings.speed_each
        step_time = settings.step_time or default_step_time(float(slots.sum() / speed.sum()), kv_per_slot)
        rate = fleet_rate(
            step_time,
            utilization=settings.utilization,
            slots=slots,
            speed=speed,
            kv_per_slot=kv_per_slot,
            output=workload.output,
            tokens_per_step=settings.tokens_per_step,
        )
        at_rate = workload.at(stretched(workload.arrival_s, rate))
        return cls(at_rate, settings, step_time, kv_per_slot, rate)

    def play(
        self, policy: MakePolicy, source: ForecastSource | None, seed: int, tell: Callable[[int], None]
    ) -> RunRecord:
        """One run; ``tell`` hears how many requests have been served."""
        workload = self.workload
        if seed > 0:
            factor = 1.0 + _SEED_STRETCH * np.random.default_rng([seed, 1]).random()
            workload = workload.at(workload.arrival_s * factor)
        return self._play(workload, policy, source, seed, tell)

    def warm_up(self, policy: MakePolicy, source: ForecastSource | None) -> None:
        """Serve a few requests, so that compiling the kernels is not counted as time to decide."""
        few = np.arange(4)
        tiny = Workload.from_arrays(arrival_s=few.astype(np.float64), prompt=few, output=few + 1, cap=few + 1)
        stand_in: ForecastSource = NoForecast()
        if source is not None and source.shared is None:
            stand_in = Landmarked("", NoForecast().at_admission(few), few, np.ones_like(few), every=1)
        self._play(tiny, policy, stand_in, 0, None)

    def _play(
        self,
        workload: Workload,
        policy: MakePolicy,
        source: ForecastSource | None,
        seed: int,
        tell: Callable[[int], None] | None,
    ) -> RunRecord:
        return play(
            workload,
            policy(self.settings.for_policies()),
            slots=self.settings.slots_each,
            capacity=self.settings.capacity_each,
            step_time=self.step_time,
            forecasts=source,
            rng=np.random.default_rng(seed),
            kv=self.settings.for_memory(),
            conditions=self.settings.conditions(),
            progress=tell,
        )

    def describe(self) -> dict[str, Any]:
        """The settings as played, as JSON."""
        return {
            **asdict(self.settings),
            "max_overtakes": self.settings.for_policies().max_overtakes,
            "step_time": asdict(self.step_time),
            "kv_per_slot_tokens": self.kv_per_slot,
            "offered_rate": self.rate,
            "requests": len(self.workload),
            "left_out": {reason.replace(" ", "_"): count for reason, count in self.workload.left_out.items()},
        }

    def key(self, policy: str, source: ForecastSource | None, seed: int, told: str) -> str:
        """Names a run by all that it depends on: this plan, the policy, its forecasts and seed, and what else is ``told``."""
        text = f"{self.digest}|{policy}|{None if source is None else source.name}|{seed}|{told}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def digest(self) -> str:
        """Of the requests and of the settings but for seeds."""
        found = hashlib.sha256(f"{replace(self.settings, seed=0, seeds=1)}|{self.step_time}".encode())
        load = self.workload
        for array in (
            load.row,
            load.arrival_s,
            load.prompt,
            load.output,
            load.supposed,
            load.tenant,
            load.weight,
            load.cap,
        ):
            found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        for blocks in load.prefix_blocks:
            found.update(len(blocks).to_bytes(8, "little") + np.ascontiguousarray(blocks).tobytes())
        return found.hexdigest()
