"""``forecast``: start what fits as long as a quantile of the worker's forecast KV peak fits too (``peak.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from endcast.errors import InputError
from endcast.router.admission.gate import Gate
from endcast.router.admission.peak import peaks_of
from endcast.router.admission.rule import Fleet, make_gate


@dataclass(frozen=True)
class ForecastPeak:
    """``quantile`` of the KV to come that must fit, in (0, 1)."""

    quantile: float = 0.8

    needs_forecast = True
    needs_cap = False

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile < 1.0:
            raise InputError("admission", f"forecast takes a quantile between 0 and 1, not {self.quantile:g}")

    def gate(self, fleet: Fleet) -> Gate:
        """Claims are what is used, up to C, and beyond that the look ahead."""
        assert fleet.curves is not None
        slots, z = fleet.slots, NormalDist().inv_cdf(self.quantile)
        peaks = peaks_of(slots.start, slots.entries, slots.generated, fleet.curves(), z)
        return make_gate(fleet, limit=fleet.capacity, peaks=peaks)
