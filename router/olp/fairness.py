"""Fairness between tenants: who has lately held more than an equal share of the KV counts less, within bounds."""

from __future__ import annotations

import numpy as np

from endcast.router.policy import ClusterView
from endcast.survival import FloatArray, IntArray


class TenantShares:
    """What each tenant has held lately, KV tokens × seconds, halved in ``half_life_s`` seconds.

    Tenants are numbers ≥ 0, as dense as the caller can make them: they index an array. Requests of unknown tenant
    (−1) count as one tenant.
    """

    def __init__(self, *, strength: float, bound: float, half_life_s: float) -> None:
        self._strength, self._bound, self._half_life_s = strength, bound, half_life_s
        self._held: FloatArray = np.zeros(1)  # unknown first, then tenant 0, 1, …

    def charge(self, view: ClusterView, seconds: float) -> None:
        """What runs has held its KV for so long."""
        tokens = (view.running_prompt + view.running_generated).astype(np.float64)
        added = np.bincount(view.running_tenant + 1, weights=tokens * seconds)
        self._reach(len(added) - 1)
        self._held *= 0.5 ** (seconds / self._half_life_s)
        self._held[: len(added)] += added

    def factor(self, tenant: IntArray) -> FloatArray:
        """(n,), (equal share / own share)^strength of each request's tenant, within [1/bound, bound].

        The equal share is that of all tenants who have held something or wait now. 1 while nobody has held anything.
        """
        present = tenant + 1
        self._reach(int(present.max(initial=0)))
        total = float(self._held.sum())
        if total <= 0.0:
            return np.ones(len(tenant))
        known = self._held > 0.0
        known[present] = True
        ratio = total / np.count_nonzero(known) / np.maximum(self._held[present], 1e-12 * total)
        factor: FloatArray = np.clip(ratio**self._strength, 1.0 / self._bound, self._bound)
        return factor

    def _reach(self, index: int) -> None:
        if index >= len(self._held):
            self._held = np.pad(self._held, (0, index + 1 - len(self._held)))
