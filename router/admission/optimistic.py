"""``optimistic``: start what fits now, and keep a share of the memory free for growth, the *watermark*."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError
from endcast.router.admission.gate import Gate
from endcast.router.admission.rule import Fleet, make_gate


@dataclass(frozen=True)
class Optimistic:
    """``watermark``: share of C that is left free when something starts, in [0, 1); what runs may grow into it."""

    watermark: float = 0.02

    needs_forecast = False
    needs_cap = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.watermark < 1.0:
            raise InputError("admission", f"optimistic takes a share from 0 to below 1, not {self.watermark:g}")

    def gate(self, fleet: Fleet) -> Gate:
        """Claims are what is used, up to (1 − watermark)·C."""
        return make_gate(fleet, limit=fleet.capacity - np.ceil(self.watermark * fleet.capacity).astype(np.int64))
