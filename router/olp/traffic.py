"""What a policy learns of the traffic by watching views: how fast steps and arrivals come, and what lately arrived."""

from __future__ import annotations

import math

import numpy as np

from endcast.compiled import njit
from endcast.router.policy import ClusterView
from endcast.survival import FloatArray, IntArray

#: Seconds a decode step is taken to last until two have been seen.
_FIRST_STEP_S = 0.05
#: Share of the newest measurement in the running mean of a step's seconds.
_NEWEST = 0.05
#: Arrivals remembered: a sample of what is still to come.
_REMEMBERED = 512


class Traffic:
    """``step_s`` seconds a decode step, ``rate`` arrivals a step (over about ``memory`` steps), ``elapsed`` steps since
    the view before; of the last arrivals (≤ 512 each): ``prompt``, forecast ``length``, ``weight``."""

    def __init__(self, memory: int) -> None:
        self.step_s, self.rate, self.elapsed = _FIRST_STEP_S, 0.0, 0
        self._memory, self._seen = memory, 0
        self._prompt, self._length = np.zeros(_REMEMBERED, dtype=np.int64), np.ones(_REMEMBERED, dtype=np.int64)
        self._weight = np.ones(_REMEMBERED)
        self._latest_s, self._at_s, self._at_step = -math.inf, math.nan, -1

    def observe(self, view: ClusterView, length: IntArray, weight: FloatArray) -> IntArray:
        """Take in a view; ``length`` (n,) forecasts and ``weight`` (n,) of what waits. Positions of new arrivals."""
        new, latest_s, running = _remember(
            view.active, view.waiting_arrival_s, self._latest_s, view.waiting_prompt, length, weight, self._seen, self._prompt,
            self._length, self._weight,
        )  # fmt: skip
        self.elapsed = 0 if self._at_step < 0 else view.steps - self._at_step
        if self.elapsed > 0:
            self._measure(view.now_s, len(new), running)
        self._at_s, self._at_step = view.now_s, view.steps
        self._latest_s, self._seen = latest_s, self._seen + len(new)
        found: IntArray = new
        return found

    def _measure(self, now_s: float, arrivals: int, running: bool) -> None:
        share = -math.expm1(-self.elapsed / self._memory)
        self.rate += share * (arrivals / self.elapsed - self.rate)
        if running:  # else time may have jumped to the next arrival
            self.step_s += _NEWEST * ((now_s - self._at_s) / self.elapsed - self.step_s)

    def __len__(self) -> int:
        return min(self._seen, _REMEMBERED)

    @property
    def prompt(self) -> IntArray:
        """Tokens."""
        return self._prompt[: len(self)]

    @property
    def length(self) -> IntArray:
        """Forecast output tokens."""
        return self._length[: len(self)]

    @property
    def weight(self) -> FloatArray:
        """As they arrived with."""
        return self._weight[: len(self)]

    @property
    def kv_unit(self) -> float:
        """L̄₁ by forecasts: mean KV tokens of a busy slot, Σ s·ô/Σ ô + Σ ô(ô − 1)/(2 Σ ô); at least 1."""
        return float(_kv_unit(self._prompt, self._length, len(self)))


@njit(cache=True)
def _kv_unit(prompt: IntArray, length: IntArray, count: int) -> float:
    held = made = 0.0
    for i in range(count):
        held += length[i] * (prompt[i] + 0.5 * (length[i] - 1))
        made += length[i]
    return max(held / made, 1.0) if made > 0.0 else 1.0


@njit(cache=True)
def _remember(
    active: IntArray, arrival_s: FloatArray, latest_s: float, prompt: IntArray, length: IntArray, weight: FloatArray,
    seen: int, past_prompt: IntArray, past_length: IntArray, past_weight: FloatArray,
) -> tuple[IntArray, float, bool]:  # fmt: skip
    """Positions (k,) of what arrived after ``latest_s``, written into the rings behind the ``seen`` before; the latest of all;
    whether anything is ``active`` (G,)."""
    new, count, last_s = np.empty(arrival_s.shape[0], dtype=np.int64), 0, latest_s
    for j in range(arrival_s.shape[0]):
        if arrival_s[j] > latest_s:
            at = (seen + count) % past_prompt.shape[0]
            past_prompt[at], past_length[at], past_weight[at] = prompt[j], length[j], weight[j]
            new[count], last_s = j, max(last_s, arrival_s[j])
            count += 1
    return new[:count].copy(), last_s, active.max() > 0
