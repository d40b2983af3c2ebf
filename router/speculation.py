"""Speculative decoding: a step makes the tokens of a draft that the model accepts, and one more.

A draft of eight tokens is checked from its beginning, and each is accepted with the same chance α as long as all before
it were: a step makes 1 + min(X, 8) tokens with P(X ≥ i) = αⁱ, in the mean Σ_{i ≤ 8} αⁱ. That mean is what engines
report; α follows from it. A request's last step makes what it still lacks, so lengths stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.entries import NOTHING, REQUEST
from endcast.router.slots import Slots
from endcast.survival import FloatArray, IntArray

#: Tokens of a draft.
DRAFT = 8
_HALVINGS = 60


@dataclass(frozen=True)
class Speculation:
    """``mean`` tokens that a slot makes in a step, in [1, 9)."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.mean < DRAFT + 1:
            raise InputError(
                "tokens_per_step", f"must be at least 1 and below {DRAFT + 1}, not {self.mean!r:.60}",
                hint=f"Drafts have {DRAFT} tokens",
            )  # fmt: skip

    @property
    def acceptance(self) -> float:
        """α: the chance that a drafted token is accepted, given that all before it were."""
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if sum(middle**i for i in range(DRAFT + 1)) < self.mean else (low, middle)
        return 0.5 * (low + high)


class Drafts:
    """Draws of one run, from its own random numbers: those of the policy are not touched."""

    def __init__(self, speculation: Speculation, slots: int, rng: np.random.Generator) -> None:
        self.tokens: IntArray = np.ones(slots, dtype=np.int64)
        self._acceptance, self._plain = speculation.acceptance, speculation.mean == 1.0
        self._rng = np.random.default_rng(0) if self._plain else rng.spawn(1)[0]

    def draw(self, slots: Slots, left: IntArray, capacity: IntArray) -> IntArray:
        """(S,): tokens that each slot may make in the step to come. A worker that lacks KV room for all of them
        drafts none: each request makes the one token for which its memory is there."""
        if not self._plain:
            uniform = self._rng.random(len(self.tokens))
            _draw(
                self.tokens, uniform, self._acceptance, slots.start, slots.entries[REQUEST], left, slots.load, capacity
            )
        return self.tokens


@njit(cache=True)
def _draw(
    tokens: IntArray, uniform: FloatArray, acceptance: float, start: IntArray, request: IntArray, left: IntArray,
    load: IntArray, capacity: IntArray,
) -> None:  # fmt: skip
    for g in range(load.shape[0]):
        room = capacity[g] - load[g]
        for slot in range(start[g], start[g + 1]):
            accepted, chance = 0, acceptance
            while accepted < DRAFT and uniform[slot] < chance:
                accepted += 1
                chance *= acceptance
            tokens[slot] = 1 + accepted
            if request[slot] != NOTHING:
                room -= min(tokens[slot], left[slot])
        if room < 0:
            for slot in range(start[g], start[g + 1]):
                tokens[slot] = 1
