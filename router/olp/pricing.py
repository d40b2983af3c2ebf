"""Prices kept up from round to round, and what each waiting request is worth and costs at them.

This is all that orders the queue; who places is another matter. A policy calls ``observe`` once a round, then ``score``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from endcast.compiled import njit
from endcast.router.olp.columns import costs_now
from endcast.router.olp.dual import Batch, improve
from endcast.router.olp.fairness import TenantShares
from endcast.router.olp.prices import KV, SLOT, running_sums, shift
from endcast.router.olp.rewards import REWARDS
from endcast.router.olp.settings import OlpSettings
from endcast.router.olp.supply import Supply
from endcast.router.olp.traffic import Traffic
from endcast.router.policy import ClusterView
from endcast.survival import FloatArray, IntArray

#: Outputs are not taken to be longer: forecasts that know nothing expect more than any fleet will see.
_LONGEST = 1_000_000
#: Relative prices of a fleet that earns less than this are not told apart from it.
_LEAST_YIELD = 1e-300


@dataclass(frozen=True, eq=False)
class Scores:
    """n waiting requests at the present prices, if they start now.

    ``length`` (n,) forecast output tokens; ``parts`` (parts, n) of the reward, priority and fairness in them, and their sum,
    ``reward`` (n,); ``costs`` (2, rows, n) of slot and KV on each row of prices, and ``surplus`` (rows, n), the reward less
    these; ``row`` (G,) the row that each worker has; ``new`` positions of those that were not there a round before.
    """

    length: IntArray
    parts: FloatArray
    reward: FloatArray
    costs: FloatArray
    surplus: FloatArray
    row: IntArray
    new: IntArray

    @cached_property
    def best(self) -> FloatArray:
        """(n,): surplus on the cheapest row, by which the queue is ordered."""
        best: FloatArray = self.surplus.max(axis=0)
        return best


class Pricing:
    """Prices of one fleet. It begins anew when a view says that nothing has been dispatched yet."""

    def __init__(self, settings: OlpSettings) -> None:
        self.settings = settings
        self.reward = REWARDS.get(settings.reward)(settings)
        self.price: FloatArray = np.zeros((2, 1, settings.price_horizon))
        self.traffic = Traffic(settings.price_horizon)
        self._scale: FloatArray = np.ones(2)
        self._since, self._priced = 0, False  # whether any price is above 0

    @property
    def relative_price(self) -> FloatArray:
        """(2, rows, K): prices over what a slot, or L̄₁ KV tokens, earns a step on average: 1 is as dear as its yield."""
        relative: FloatArray = self.price / np.maximum(self._scale, _LEAST_YIELD)[:, None, None]
        return relative

    def observe(self, view: ClusterView, rng: np.random.Generator) -> None:
        """Take in a round's view: move prices on by the steps that have passed, and improve them where that is due."""
        assert view.forecast is not None
        if view.dispatched == 0:
            self._begin(view)
        self._length = _whole(view.forecast.outlook.expected_output(view.forecast.waiting_row))
        self._weight = view.waiting_weight
        if self._tenants is not None:
            self._weight = self._weight * self._tenants.factor(view.waiting_tenant)
        self._new = self.traffic.observe(view, self._length, self._weight)
        if self._priced:
            shift(self.price, self.traffic.elapsed)
        if self.settings.step_size > 0.0:
            self._supply.look(view)
        self._since += self.traffic.elapsed
        if self._since >= self.settings.update_every:
            self._update(view, rng)

    def score(self, view: ClusterView) -> Scores:
        """What waits in the view that was last observed, at the prices as they are."""
        traffic = self.traffic
        wait_s: FloatArray = view.now_s - view.waiting_arrival_s
        parts = self.reward(wait_s, self._length * traffic.step_s, traffic.step_s)
        reward, costs, surplus = _score(
            parts, self._weight, self.price, self._priced, view.waiting_prompt, self._length
        )
        return Scores(self._length, parts, reward, costs, surplus, self._supply.row, self._new)

    def _begin(self, view: ClusterView) -> None:
        s = self.settings
        self.traffic = Traffic(s.price_horizon)
        self._supply = Supply(view, steps=s.price_horizon, every=4 * s.update_every, shared=s.share_prices)
        self.price = np.zeros((2, self._supply.rows, s.price_horizon))
        self._since, self._priced = s.update_every, False
        self._tenants = None
        if s.fairness > 0.0:
            self._tenants = TenantShares(strength=s.fairness, bound=s.fairness_bound, half_life_s=s.fairness_s)

    def _update(self, view: ClusterView, rng: np.random.Generator) -> None:
        if self._tenants is not None:
            self._tenants.charge(view, self._since * self.traffic.step_s)
        self._since = 0
        if self.settings.step_size == 0.0:
            return
        supply, capacity = self._supply.left(view)
        requests = len(view.waiting) + self.traffic.rate * self.settings.price_horizon
        self._scale = improve(
            self.price,
            self._sample(view, requests, rng),
            rounds=self.settings.updates,
            requests=requests,
            supply=supply,
            capacity=capacity,
            step_size=self.settings.step_size,
            kv_unit=self.traffic.kv_unit,
        )
        self._priced = bool(self.price.any())

    def _sample(self, view: ClusterView, requests: float, rng: np.random.Generator) -> Batch:
        """Of all updates of a round together. Waiting requests at step 0 with their real wait, in the pool's share of all
        ``requests``; for the others, past arrivals at a step drawn evenly from the horizon, with none. All of them
        starting now would pile the price onto the next steps."""
        size, traffic = self.settings.batch * self.settings.updates, self.traffic
        wait_s, start, prompt, length, weight = _draw(
            rng.random((3, size)), len(view.waiting) / requests, view.now_s, view.waiting_arrival_s, view.waiting_prompt,
            self._length, self._weight, traffic.prompt, traffic.length, traffic.weight, self.settings.price_horizon,
        )  # fmt: skip
        reward = self.reward(wait_s, length * traffic.step_s, traffic.step_s).sum(axis=0) * weight
        return Batch(prompt, length, start[:, None], reward[:, None])


@njit(cache=True)
def _whole(expected: FloatArray) -> IntArray:
    """(n,): as whole tokens, at least one."""
    length = np.empty(expected.shape[0], dtype=np.int64)
    for j in range(expected.shape[0]):
        length[j] = int(min(max(np.rint(expected[j]), 1.0), _LONGEST))
    return length


@njit(cache=True)
def _score(
    parts: FloatArray, weight: FloatArray, price: FloatArray, priced: bool, prompt: IntArray, length: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Rewards (n,), costs (2, rows, n) and surpluses (rows, n); ``parts`` (parts, n) are multiplied by the ``weight`` (n,)."""
    reward = np.zeros(weight.shape[0])
    for i in range(parts.shape[0]):
        for j in range(reward.shape[0]):
            parts[i, j] *= weight[j]
            reward[j] += parts[i, j]
    costs = np.zeros((2, price.shape[1], reward.shape[0]))
    if priced:
        costs = costs_now(running_sums(price), prompt, length)
    return reward, costs, reward - costs[SLOT] - costs[KV]


@njit(cache=True)
def _draw(
    uniform: FloatArray, share: float, now_s: float, arrival_s: FloatArray, prompt: IntArray, length: IntArray,
    weight: FloatArray, past_prompt: IntArray, past_length: IntArray, past_weight: FloatArray, horizon: int,
) -> tuple[FloatArray, IntArray, IntArray, IntArray, FloatArray]:  # fmt: skip
    """Wait, start, prompt, length and weight (m,) of requests drawn by ``uniform`` (3, m) numbers in [0, 1)."""
    size = uniform.shape[1]
    wait_s, start = np.zeros(size), np.zeros(size, dtype=np.int64)
    prompts, lengths, weights = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size)
    for i in range(size):
        if uniform[0, i] < share:
            j = int(uniform[1, i] * prompt.shape[0])
            wait_s[i] = now_s - arrival_s[j]
            prompts[i], lengths[i], weights[i] = prompt[j], length[j], weight[j]
        else:
            j = int(uniform[1, i] * past_prompt.shape[0])
            start[i] = int(uniform[2, i] * horizon)
            prompts[i], lengths[i], weights[i] = past_prompt[j], past_length[j], past_weight[j]
    return wait_s, start, prompts, lengths, weights
