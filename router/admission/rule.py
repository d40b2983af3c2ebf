"""What an admission rule is: it says when a worker's KV memory has room for another request.

Rules are orthogonal to policies: every policy, the workers' own queues and requests that come back after a preemption
go through the same gate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from endcast.router.admission.ends import EndRate
from endcast.router.admission.gate import CAPACITY, CLAIM_USE, CLAIMED, HELD, LIMIT, USED, Gate, no_headroom
from endcast.router.admission.peak import Curves, Peaks, no_peaks
from endcast.router.slots import Slots
from endcast.survival import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Fleet:
    """What a rule reads: what runs in the ``slots``, ``capacity`` (G,) KV tokens, the pool's entries (fields, …) with the
    oldest in column ``head``, when requests ``ended`` lately, ``kept`` (2,) for the gate, and forecasts where the rule needs
    them. Not to be changed."""

    slots: Slots
    capacity: IntArray
    waiting: IntArray
    head: int
    ended: EndRate
    kept: IntArray
    curves: Callable[[], Curves] | None = None


@runtime_checkable
class AdmissionRule(Protocol):
    """Made from one number, or none for its default, by the class that the registry names."""

    @property
    def needs_forecast(self) -> bool:
        """Whether ``Fleet.curves`` must be there."""

    @property
    def needs_cap(self) -> bool:
        """Whether every request must have a cap on its output tokens."""

    def gate(self, fleet: Fleet) -> Gate:
        """A fresh gate for one round."""


def make_gate(
    fleet: Fleet,
    *,
    limit: IntArray | FloatArray,
    claimed: IntArray | None = None,
    assumed_cap: int = CLAIM_USE,
    peaks: Peaks | None = None,
    ends: FloatArray | None = None,
    margin: float = 0.0,
) -> Gate:
    """A gate where claims may go up to ``limit`` (G,); ``claimed`` (G,) so far, what is used unless given."""
    slots = fleet.slots
    worker = np.empty((5, len(fleet.capacity)), dtype=np.int64)
    worker[CAPACITY], worker[HELD], worker[LIMIT] = fleet.capacity, slots.active, limit
    np.add(slots.load, slots.active, out=worker[USED])
    worker[CLAIMED] = worker[USED] if claimed is None else claimed
    looks = no_peaks() if peaks is None else peaks
    headroom = no_headroom() if ends is None else ends
    return Gate(True, fleet.waiting, fleet.head, worker, assumed_cap, looks, fleet.kept, headroom, margin)
