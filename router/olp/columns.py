"""Columns: what a request of ``length`` output tokens and ``prompt`` tokens takes if it starts at step ``start``.

It holds a slot in the steps start ≤ k < start + length, and prompt + (k − start) + 1 KV tokens in step k: its prompt and
the tokens made by the end of that step. Its cost is aᵀp, the prices along its way. With P, Q and W the running sums of
slot prices, KV prices and k·KV prices,

    aᵀp = [P(end) − P(start)] + (prompt + 1 − start)·[Q(end) − Q(start)] + [W(end) − W(start)],    end = start + length,

which is O(1) for any length. Steps beyond the horizon have no price: a long request pays for what lies within.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.olp.prices import KV, KV_MOMENT, KV_SUM, SLOT, SLOT_SUM
from endcast.survival import FloatArray, IntArray


@njit(cache=True)
def column_cost(sums: FloatArray, row: int, prompt: int, length: int, start: int) -> tuple[float, float]:
    """What its slot and what its KV costs on ``row``; ``sums`` (3, rows, K+1) of ``running_sums``."""
    steps = sums.shape[2] - 1
    first, end = min(start, steps), min(start + length, steps)
    slot = sums[SLOT_SUM, row, end] - sums[SLOT_SUM, row, first]
    kv = (prompt + 1 - start) * (sums[KV_SUM, row, end] - sums[KV_SUM, row, first])
    return slot, kv + sums[KV_MOMENT, row, end] - sums[KV_MOMENT, row, first]


@njit(cache=True)
def costs_now(sums: FloatArray, prompt: IntArray, length: IntArray) -> FloatArray:
    """(2, rows, n): slot and KV cost on each row of requests (n,) that start in this step."""
    costs = np.empty((2, sums.shape[1], prompt.shape[0]))
    for r in range(sums.shape[1]):
        for j in range(prompt.shape[0]):
            costs[SLOT, r, j], costs[KV, r, j] = column_cost(sums, r, prompt[j], length[j], 0)
    return costs


@njit(cache=True)
def add_column(slope: FloatArray, row: int, prompt: int, length: int, start: int, amount: float) -> None:
    """Take down ``amount`` of a column in O(1); ``slope`` (2, rows, K+1) becomes what columns take by ``fill``.

    A column takes 1 slot and (prompt + 1 − start) + k KV tokens in step k: constants and multiples of k that begin at
    its start and are taken back at its end.
    """
    steps = slope.shape[2] - 1
    first, end = min(start, steps), min(start + length, steps)
    slope[0, row, first] += amount
    slope[0, row, end] -= amount
    slope[1, row, first] += amount * (prompt + 1 - start)
    slope[1, row, end] -= amount * (prompt + 1 - start)


@njit(cache=True)
def fill(slope: FloatArray) -> FloatArray:
    """(2, rows, K): slots and KV tokens that the columns taken down in ``slope`` (2, rows, K+1) take in each step."""
    rows, steps = slope.shape[1], slope.shape[2] - 1
    taken = np.empty((2, rows, steps))
    for r in range(rows):
        slots = constant = 0.0
        for k in range(steps):
            slots, constant = slots + slope[0, r, k], constant + slope[1, r, k]
            taken[SLOT, r, k] = slots
            taken[KV, r, k] = constant + k * slots
    return taken


def explicit_column(rows: int, steps: int, *, row: int, prompt: int, length: int, start: int) -> FloatArray:
    """(2, rows, steps): the same column written out, the slow form that the others are tested against."""
    column = np.zeros((2, rows, steps))
    for k in range(start, min(start + length, steps)):
        column[SLOT, row, k] = 1.0
        column[KV, row, k] = prompt + (k - start) + 1
    return column
