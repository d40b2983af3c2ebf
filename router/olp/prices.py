"""Bid prices: what one step of one slot, and of one KV token, costs on a row of workers in each of the next steps.

A *row* is a class of identical workers, or one worker. Prices are ``price`` (2, rows, K), rewards per slot·step and per
KV token·step; column k is the k-th step from now. A request that holds a slot and a growing KV for a while pays the
prices along its way: a sum over steps, read off running sums of the prices in O(1) (``endcast.router.olp.columns``).
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.survival import FloatArray

#: The two resources, as prices, supplies and demands are indexed.
SLOT, KV = range(2)
RESOURCES = ("slots", "KV")
#: Rows of running sums (3, rows, K+1): of slot prices, of KV prices, and of k times the KV price of step k.
SLOT_SUM, KV_SUM, KV_MOMENT = range(3)


@njit(cache=True)
def running_sums(price: FloatArray) -> FloatArray:
    """(3, rows, K+1): entry k sums the prices of the steps before k."""
    rows, steps = price.shape[1], price.shape[2]
    sums = np.zeros((3, rows, steps + 1))
    for r in range(rows):
        for k in range(steps):
            sums[SLOT_SUM, r, k + 1] = sums[SLOT_SUM, r, k] + price[SLOT, r, k]
            sums[KV_SUM, r, k + 1] = sums[KV_SUM, r, k] + price[KV, r, k]
            sums[KV_MOMENT, r, k + 1] = sums[KV_MOMENT, r, k] + k * price[KV, r, k]
    return sums


@njit(cache=True)
def shift(price: FloatArray, steps: int) -> None:
    """In place: ``steps`` ≥ 0 decode steps have passed. The furthest step keeps its price, as far as is known."""
    rows, length = price.shape[1], price.shape[2]
    for c in range(2):
        for r in range(rows):
            for k in range(length):
                price[c, r, k] = price[c, r, min(k + steps, length - 1)]


@njit(cache=True)
def project(price: FloatArray, demand: FloatArray, supply: FloatArray, capacity: FloatArray, step: FloatArray) -> None:
    """In place: p ← [p + step·(demand − supply)/capacity]^+, never negative.

    ``demand`` and ``supply`` (2, rows, K): what requests would take and what the horizon has left, slots and KV tokens;
    ``capacity`` (2, rows) > 0, of all workers of a row, ``step`` (2,) rewards per slot·step and per KV token·step.
    """
    for c in range(2):
        for r in range(price.shape[1]):
            for k in range(price.shape[2]):
                excess = (demand[c, r, k] - supply[c, r, k]) / capacity[c, r]
                price[c, r, k] = max(price[c, r, k] + step[c] * excess, 0.0)
