"""The default scale of a simulated fleet: how long a step takes, and how fast requests arrive.

A step of a lockstep fleet takes dt = t_fixed + t_batch·max_g n_g + t_kv·max_g L_g. With the default scale a full and
perfectly balanced step takes 60 ms, of which 40 ms are spent reading KV: so results of different logs compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError, SimulationError
from endcast.survival import FloatArray, IntArray

#: Seconds of a step that no load changes, and seconds that reading the KV of a full batch of mean load takes.
FIXED_S = 0.020
FULL_BATCH_KV_S = 0.040


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds a decode step takes: ``fixed_s``, ``batch_s`` for each request of the largest batch, ``kv_s`` for each
    KV token of the heaviest worker. A worker of speed v counts as one of speed 1 with 1/v of its batch and its tokens."""

    fixed_s: float
    batch_s: float
    kv_s: float

    def __post_init__(self) -> None:
        for name in ("fixed_s", "batch_s", "kv_s"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0.0):
                raise InputError(name, f"must be a finite number of seconds from 0 on, not {value!r:.60}")
        if self.fixed_s + self.batch_s + self.kv_s <= 0.0:
            raise InputError("fixed_s", "a step must take some time")

    def of(self, batch: float, load: float) -> float:
        """Seconds of a step with ``batch`` requests and ``load`` KV tokens on the largest worker."""
        return self.fixed_s + self.batch_s * batch + self.kv_s * load


def mean_kv_per_slot(prompt: IntArray, output: IntArray) -> float:
    """L̄₁ in tokens: mean KV of a busy slot over decode steps, Σ s·o/Σ o + Σ o(o−1)/(2Σ o)."""
    s, o = prompt.astype(np.float64), output.astype(np.float64)
    return float((s @ o + 0.5 * (o @ (o - 1.0))) / o.sum())


def default_step_time(slots: float, kv_per_slot: float) -> StepTime:
    """20 ms, and 40 ms for the KV of ``slots`` requests of ``kv_per_slot`` tokens; of unlike workers, slots over speed."""
    return StepTime(fixed_s=FIXED_S, batch_s=0.0, kv_s=FULL_BATCH_KV_S / (slots * max(kv_per_slot, 1.0)))


def offered_rate(
    step: StepTime, *, utilization: float, workers: int, slots: int, kv_per_slot: float, output: IntArray
) -> float:
    """Requests a second at which ``workers`` × ``slots``, full and perfectly balanced, would be used to ``utilization``."""
    return fleet_rate(
        step,
        utilization=utilization,
        slots=np.full(workers, slots),
        speed=np.ones(workers),
        kv_per_slot=kv_per_slot,
        output=output,
    )


def fleet_rate(
    step: StepTime,
    *,
    utilization: float,
    slots: IntArray,
    speed: FloatArray,
    kv_per_slot: float,
    output: IntArray,
    tokens_per_step: float = 1.0,
) -> float:
    """Requests a second at which workers with ``slots`` and ``speed`` (G,), full and perfectly balanced, would be used
    to ``utilization``."""
    batch, balanced = float((slots / speed).max()), float(slots.sum() / speed.sum())
    tokens_per_s = tokens_per_step * float(slots.sum()) / step.of(batch, balanced * kv_per_slot)
    return utilization * tokens_per_s / float(output.mean())


def stretched(arrival_s: FloatArray, rate: float) -> FloatArray:
    """Arrivals (n,), moved to begin at 0 and stretched linearly so that n requests arrive at ``rate`` a second."""
    since: FloatArray = arrival_s - arrival_s[0]
    span = float(since[-1])
    if span <= 0.0:
        if len(arrival_s) > 1:
            raise SimulationError(
                "all requests of the log arrive at the same instant, so their rate cannot be set",
                hint="Give arrivals with --arrivals poisson or --arrivals LOG",
            )
        return since
    spread: FloatArray = since * (len(arrival_s) / rate / span)
    return spread
