"""``reserve_cap``: start what fits even if everything runs up to its cap; nothing is preempted, and memory lies idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.admission.gate import Gate, claim
from endcast.router.admission.rule import Fleet, make_gate
from endcast.router.entries import MAX_TOKENS, NOTHING, PROMPT, REQUEST
from endcast.survival import IntArray


@dataclass(frozen=True)
class ReserveCap:
    """``assumed``: output tokens reserved for a request without a cap, ≥ 1; 0: every request must have one."""

    assumed: float = 0.0

    needs_forecast = False

    def __post_init__(self) -> None:
        if not (0.0 <= self.assumed < 1e9 and self.assumed == int(self.assumed)):
            raise InputError("admission", f"reserve_cap takes a whole number of output tokens, not {self.assumed:g}")

    @property
    def needs_cap(self) -> bool:
        """Unless one is assumed."""
        return self.assumed == 0.0

    def gate(self, fleet: Fleet) -> Gate:
        """Claims are prompt and cap, or what is used if that is more, up to C."""
        slots, assumed = fleet.slots, int(self.assumed)
        claimed = _claimed(slots.start, slots.entries, slots.generated, fleet.capacity, assumed)
        return make_gate(fleet, limit=fleet.capacity, claimed=claimed, assumed_cap=assumed)


@njit(cache=True)
def _claimed(start: IntArray, entries: IntArray, generated: IntArray, capacity: IntArray, assumed_cap: int) -> IntArray:
    claimed = np.zeros(capacity.shape[0], dtype=np.int64)
    for g in range(claimed.shape[0]):
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                claimed[g] += claim(
                    entries[PROMPT, slot], generated[slot], entries[MAX_TOKENS, slot], assumed_cap, capacity[g]
                )
    return claimed
