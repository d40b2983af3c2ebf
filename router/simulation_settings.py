"""What a simulation may be told: the fleet, the load on it, and what is played beside the reference cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from endcast.errors import InputError
from endcast.router.admission import admission_rule
from endcast.router.cluster import UNLIMITED
from endcast.router.conditions import Conditions, KvRules
from endcast.router.olp.settings import OlpSettings
from endcast.router.outages import Outage, schedule
from endcast.router.parameters import with_parameters
from endcast.router.policy import PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.prefill import Prefill
from endcast.router.reports import LoadReports
from endcast.router.scale import StepTime
from endcast.router.speculation import Speculation
from endcast.survival import FloatArray, IntArray

#: What docs/simulating.md measures as the best that preempts fewer than 1 in 100; a prefill of 10,000 tokens a second.
DEFAULT_ADMISSION, DEFAULT_VICTIM, DEFAULT_RECOMPUTE_RATE = "headroom", "newest", 10_000.0


_MOST = 100_000


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """The fleet, the load on it and what policies may be told.

    ``workers`` G and ``slots`` B, ≥ 1; ``kv_capacity`` tokens a worker, or none, with ``admission`` rule (``RULE`` or
    ``RULE:NUMBER``), ``victim`` and ``recompute_rate`` tokens/s where it is bounded; ``utilization`` of the offered rate,
    > 0; ``max_overtakes`` four times all slots unless given; ``step_time`` by the default scale unless given; ``seeds``
    runs, numbered from ``seed`` on. ``PolicySettings`` has the others, ``olp`` the rewards and prices among them.

    Unlike workers: ``slots`` and ``kv_capacity`` may be G numbers, and ``speed`` G factors at which each reads KV.
    ``prefill_rate`` tokens/s of each of ``prefill_workers`` before decode, or no such stage; ``lose`` outages as
    ``endcast.router.outages`` writes them; ``report_every`` and ``report_delay`` seconds of load reports, to which policies
    that dispatch at once add their own (``report_own``); ``tokens_per_step`` mean tokens that a slot makes; ``parameters`` of policies
    as ``NAME=VALUE``, over what the fields above say.
    """

    workers: int = 8
    slots: int | tuple[int, ...] = 64
    kv_capacity: int | tuple[int, ...] | None = None
    speed: tuple[float, ...] | None = None
    admission: str = DEFAULT_ADMISSION
    victim: str = DEFAULT_VICTIM
    recompute_rate: float = DEFAULT_RECOMPUTE_RATE
    utilization: float = 1.0
    horizon: int = 20
    discount: float = 0.95
    candidates: int = 64
    max_overtakes: int | None = None
    olp: OlpSettings = field(default_factory=OlpSettings)
    step_time: StepTime | None = None
    prefill_rate: float | None = None
    prefill_workers: int = 1
    lose: tuple[str, ...] = ()
    report_every: float = 0.0
    report_delay: float = 0.0
    report_own: bool = True
    tokens_per_step: float = 1.0
    parameters: tuple[str, ...] = ()
    seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "seeds"):
            _check_whole(name, getattr(self, name), _MOST)
        _check_each("slots", self.slots, self.workers, _MOST)
        if self.kv_capacity is not None:
            _check_each("kv_capacity", self.kv_capacity, self.workers, UNLIMITED)
        if self.speed is not None and len(self.speed) != self.workers:
            raise InputError("speed", f"has {len(self.speed)} numbers for {self.workers} workers")
        if type(self.seed) is not int or self.seed < 0:
            raise InputError("seed", f"must be a whole number from 0 on, not {self.seed!r:.60}")
        for name in ("utilization", "recompute_rate"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0.0):
                raise InputError(name, f"must be a finite number above 0, not {value!r:.60}")
        self.for_policies()
        self.for_memory()
        schedule(self.conditions().outages, self.workers)

    @property
    def slots_each(self) -> IntArray:
        """(G,): B of each worker."""
        return np.broadcast_to(np.asarray(self.slots, dtype=np.int64), self.workers).copy()

    @property
    def capacity_each(self) -> IntArray:
        """(G,): KV tokens that each worker holds, ``UNLIMITED`` where there is no bound."""
        capacity = UNLIMITED if self.kv_capacity is None else self.kv_capacity
        return np.broadcast_to(np.asarray(capacity, dtype=np.int64), self.workers).copy()

    @property
    def speed_each(self) -> FloatArray:
        """(G,): how fast each worker reads KV, beside one of speed 1."""
        return np.ones(self.workers) if self.speed is None else np.array(self.speed, dtype=np.float64)

    def for_policies(self) -> PolicySettings:
        """What policies are made from. Where a step makes m tokens, H steps are H·m tokens of γ^(1/m) each."""
        bound = 4 * int(self.slots_each.sum()) if self.max_overtakes is None else self.max_overtakes
        made = self.tokens_per_step
        plain = PolicySettings(
            horizon=self.horizon,
            discount=self.discount,
            candidates=self.candidates,
            max_overtakes=bound,
            olp=self.olp,
        )
        told = with_parameters(plain, self.parameters)
        if made == 1.0:
            return told
        return replace(told, horizon=round(told.horizon * made), discount=float(told.discount ** (1.0 / made)))

    def for_memory(self) -> KvRules:
        """What holds where KV memory is bounded."""
        return KvRules(
            admission=admission_rule(self.admission),
            victim=VICTIMS.get(self.victim),
            recompute_rate=self.recompute_rate,
        )

    def conditions(self) -> Conditions:
        """What else is played beside the reference cluster."""
        return Conditions(
            speed=self.speed,
            prefill=None
            if self.prefill_rate is None
            else Prefill(rate=self.prefill_rate, workers=self.prefill_workers),
            outages=tuple(Outage.parse(text) for text in self.lose),
            reports=LoadReports(every_s=self.report_every, delay_s=self.report_delay, own=self.report_own),
            speculation=Speculation(self.tokens_per_step),
        )

    @property
    def looks_ahead(self) -> bool:
        """Whether admission needs forecasts, whatever the policy."""
        return self.kv_capacity is not None and admission_rule(self.admission).needs_forecast


def _check_whole(field: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        bounds = f"from 1 to {most}" if most < UNLIMITED else "from 1 on"
        raise InputError(field, f"must be a whole number {bounds}, not {value!r:.60}")


def _check_each(field: str, value: int | Sequence[int], workers: int, most: int) -> None:
    """One number for all workers, or one for each."""
    if isinstance(value, tuple):
        if len(value) != workers:
            raise InputError(field, f"has {len(value)} numbers for {workers} workers")
        for one in value:
            _check_whole(field, one, most)
    else:
        _check_whole(field, value, most)
