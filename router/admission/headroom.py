"""``headroom``: keep as much room free as lets something end before the memory is used up.

A watermark is a share of the memory; what it has to hold is not. Let a worker have r tokens free, n running requests and
one end in every m tokens that it makes. A step makes n tokens, so r last for r/n steps, in which r tokens are made; that
nothing ends among them has the chance

    (1 − 1/m)^r ≈ exp(−r/m).

n, the size of requests and the size of the memory have all cancelled out: for a chance of at most ε, r = m·ln(1/ε)
tokens have to be free, 3.9·m for 2 in 100. m is counted in the fleet itself (``ends.py``), so nothing needs to be tuned
to a log. An end is taken to free enough for some time, which holds where prompts are not tiny beside m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError
from endcast.router.admission.gate import Gate
from endcast.router.admission.rule import Fleet, make_gate

#: No more than this share of C is kept free: a worker that holds two or three requests would else run one.
_MOST = 0.5


@dataclass(frozen=True)
class Headroom:
    """``risk``: accepted chance, in (0, 1), that a worker's memory is used up before anything ends there."""

    risk: float = 0.02

    needs_forecast = False
    needs_cap = False

    def __post_init__(self) -> None:
        if not 0.0 < self.risk < 1.0:
            raise InputError("admission", f"headroom takes a chance between 0 and 1, not {self.risk:g}")

    def gate(self, fleet: Fleet) -> Gate:
        """Claims are what is used, up to C − m·ln(1/risk)."""
        kept = np.minimum(fleet.tokens_per_end * math.log(1.0 / self.risk), _MOST * fleet.capacity)
        return make_gate(fleet, limit=fleet.capacity - np.ceil(kept).astype(np.int64))
