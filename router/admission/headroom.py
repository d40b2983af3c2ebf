"""``headroom``: fill the memory as far as what is put to use is worth the risk that it runs out.

Let a worker have r tokens free and one end in every m tokens that it makes. That nothing ends while it makes r tokens has
the chance (1 − 1/m)^r ≈ exp(−r/m), whatever the number of its requests and the size of its memory. A request that takes d
tokens and leaves r of them free raises that chance by

    exp(−r/m) − exp(−(r + d)/m) = exp(−r/m)·(1 − exp(−d/m)).

What it gains is memory put to use, d tokens of it. So it starts if the chance that it adds is at most ε·d/m: the same price
for each token, which fills memory best at a given number of requests thrown out. That is,

    r ≥ m·(ln(1/ε) − ln(x/(1 − exp(−x)))),    x = d/m,

m·ln(1/ε) tokens for the smallest request, and fewer for a large one, which would leave more of the memory idle if it had
to wait. m is what the worker makes over the ends to be expected there, of what runs by its age and of the newcomer
(``ends.py``), while m·ln(1/ε) tokens are made. So nothing needs to be tuned to a log. An end is taken to free enough for
some time, which holds where prompts are not tiny beside m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError
from endcast.router.admission.gate import MOST_KEPT, Gate
from endcast.router.admission.rule import Fleet, make_gate


@dataclass(frozen=True)
class Headroom:
    """``risk`` ε, in (0, 1): the chance that memory is used up before anything ends, accepted for m tokens put to use."""

    risk: float = 0.003

    needs_forecast = False
    needs_cap = False

    def __post_init__(self) -> None:
        if not 0.0 < self.risk < 1.0:
            raise InputError("admission", f"headroom takes a chance between 0 and 1, not {self.risk:g}")

    def gate(self, fleet: Fleet) -> Gate:
        """Claims are what is used; beside them headroom is kept."""
        margin = math.log(1.0 / self.risk)
        steps = fleet.ended.tokens_per_end * margin / np.maximum(fleet.slots.active, 1)
        ends = fleet.ended.expected(fleet.slots, np.maximum(np.rint(steps), 1.0))
        kept = margin * (fleet.slots.active + 1) / ends.sum(axis=0)
        limit = fleet.capacity - np.ceil(np.minimum(kept, MOST_KEPT * fleet.capacity)).astype(np.int64)
        return make_gate(fleet, limit=limit, ends=ends, margin=margin)
