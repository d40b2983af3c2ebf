"""How far the forecasts of a fleet can be trusted, measured while it runs.

Placement lives on differences between workers: which of them will lose more of its load than the others? So that is what
is scored. Every few steps the expected loads L̂_g(h) of what runs are kept. k steps later it is known what became of the
same requests: y_g tokens are still there, f_g = L̂_g(k) were expected, and a_g would be there had nothing ended. With the
common share that is left taken off both,

    Δy_g = y_g − a_g·Σy/Σa,    Δf_g = f_g − a_g·Σf/Σa,    skill = Σ Δy·Δf / Σ Δf²,

the slope of what happened on what was forecast, cut to [0, 1]. Calibrated forecasts, sharp or blunt, have 1; overconfident
ones less; those that say nothing of any worker, or the opposite of what happens, 0. Old rounds are forgotten
exponentially, and until there are some the skill is held back towards 0: a new or broken model moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from endcast.compiled import njit
from endcast.router.policy import ClusterView
from endcast.survival import FloatArray, IntArray

#: What one comparison keeps of the weight of those before it, and how many weigh as much as knowing nothing.
_KEPT, _UNKNOWN = 0.98, 10.0


@dataclass
class WindowSkill:
    """Compares windows of H = ``horizon`` ≥ 1 steps with what happened, once half of a window has passed."""

    horizon: int
    _expected: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    _nothing_ends: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    _since: int = 0
    _products: float = 0.0
    _squares: float = 0.0
    _comparisons: float = 0.0

    @property
    def skill(self) -> float:
        """In [0, 1]."""
        if self._squares <= 0.0:
            return 0.0
        slope = min(max(self._products / self._squares, 0.0), 1.0)
        return slope * self._comparisons / (self._comparisons + _UNKNOWN)

    def observe(self, view: ClusterView) -> float:
        """Take in the fleet as it is now; the skill."""
        passed = view.steps - self._since
        if passed < 0:  # another fleet, from its first step
            self._products = self._squares = self._comparisons = 0.0
        if len(self._expected) != len(view.load) or not 0 <= passed <= self.horizon:
            self._keep(view)
        elif 2 * passed >= self.horizon:
            self._compare(view, passed)
            self._keep(view)
        return self.skill

    def _keep(self, view: ClusterView) -> None:
        assert view.forecast is not None
        self._since, self._expected = view.steps, view.forecast.load.copy()
        growth = np.outer(view.active, np.arange(self.horizon + 1))
        self._nothing_ends = (view.load[:, None] + growth).astype(np.float64)

    def _compare(self, view: ClusterView, passed: int) -> None:
        left = _left_of(view.running_prompt, view.running_generated, view.slots, passed)
        expected, everything = self._expected[:, passed], self._nothing_ends[:, passed]
        total = float(everything.sum())
        if total <= 0.0:
            return
        happened = left - everything * (left.sum() / total)
        forecast = expected - everything * (expected.sum() / total)
        self._products = _KEPT * self._products + float(happened @ forecast)
        self._squares = _KEPT * self._squares + float(forecast @ forecast)
        self._comparisons = _KEPT * self._comparisons + 1.0


@njit(cache=True)
def _left_of(prompt: IntArray, generated: IntArray, slots: IntArray, passed: int) -> FloatArray:
    """(G,): KV tokens of what runs on each worker and ran there ``passed`` steps ago; ``slots`` (G,) of each."""
    left, slot = np.zeros(slots.shape[0]), 0
    for g in range(slots.shape[0]):
        for _ in range(slots[g]):
            if generated[slot] > passed:
                left[g] += prompt[slot] + generated[slot]
            slot += 1
    return left
