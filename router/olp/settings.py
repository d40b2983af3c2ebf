"""What an operator may set of rewards and prices; bounds are checked here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError

_WEIGHTS = ("w_throughput", "w_latency", "w_ttft", "w_tail")
_SECONDS = ("latency_scale_s", "tail_scale_s", "tail_threshold_s", "unit_s")


@dataclass(frozen=True, kw_only=True)
class OlpSettings:
    """Rewards, prices and fairness. Weights have no unit: scaling all of them changes no order.

    ``reward`` a name of ``endcast.router.olp.rewards.REWARDS``; ``w_…`` ≥ 0, at least one of those that it reads above 0.
    ``latency_scale_s`` T and ``tail_scale_s`` θ, seconds, of the urgency form; ``unit_s`` seconds that count as one unit
    of time and ``tail_threshold_s`` the completion that counts as late, both of the published form.
    ``price_horizon`` decode steps that prices reach, ≥ 1; ``step_size`` η ≥ 0 (0: no prices); ``updates`` price updates
    in a row, ≥ 1, made each ``update_every`` ≥ 1 steps on ``batch`` ≥ 1 requests; ``share_prices`` one row of prices
    for all workers with as many slots and as much KV, else one for each worker; ``shed`` refuses arrivals whose reward
    does not pay for what they take.
    ``urgency`` μ ≥ 0 what a mean reward's worth of surplus counts beside a mean request's KV of imbalance filled, where
    BR-H places (0: order decides only who is a candidate); ``shortlist`` how many with the highest surplus are candidates
    there, ≥ 1; ``patience`` ≥ 0 times the policies' ``max_overtakes`` is how
    many later arrivals may pass a waiting request.
    ``fairness`` ≥ 0 how far a tenant's recent share lowers its requests (0: not at all), by no more than
    ``fairness_bound`` ≥ 1 times either way, with a memory of ``fairness_s`` seconds.
    """

    reward: str = "urgency"
    w_throughput: float = 0.0
    w_latency: float = 1.0
    w_ttft: float = 0.3
    w_tail: float = 0.8
    latency_scale_s: float = 60.0
    tail_scale_s: float = 100.0
    tail_threshold_s: float = 60.0
    unit_s: float = 1.0
    price_horizon: int = 512
    step_size: float = 0.2
    updates: int = 2
    update_every: int = 4
    batch: int = 32
    share_prices: bool = True
    shed: bool = False
    urgency: float = 0.2
    shortlist: int = 40
    patience: float = 2.0
    fairness: float = 0.0
    fairness_bound: float = 4.0
    fairness_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("price_horizon", "updates", "update_every", "batch", "shortlist"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 100_000:
                raise InputError(name, f"must be a whole number from 1 to 100000, not {value!r:.60}")
        for name in (*_WEIGHTS, "step_size", "urgency", "patience", "fairness"):
            self._check(name, 0.0, inclusive=True)
        for name in (*_SECONDS, "fairness_s"):
            self._check(name, 0.0, inclusive=False)
        self._check("fairness_bound", 1.0, inclusive=True)
        if not any(getattr(self, name) > 0.0 for name in _WEIGHTS):
            raise InputError("w_latency", "at least one weight must be above 0")

    def _check(self, name: str, least: float, *, inclusive: bool) -> None:
        value = getattr(self, name)
        if not (np.isfinite(value) and (value > least or (inclusive and value == least))):
            bound = "from" if inclusive else "above"
            raise InputError(name, f"must be a finite number {bound} {least:g}, not {value!r:.60}")
