"""The dual of the allocation problem, and projected steps on it (arXiv 2607.03948; Li, Ye 2022).

A request may take one *column* (worker, start) or none; columns together must leave no worker short of slots or KV in any
step. With prices p of what is left (``supply``), the dual of that linear program is

    min_{p ≥ 0}  supplyᵀp + N · mean_j max_{column of j} (r − aᵀp)^+ ,

one hinge for each request, over its best column. Its subgradient at p is the supply less what N such requests would
take at these prices; a small batch tells that well enough, because the step is short and prices start where they were:

    p ← [ p + η·(r̄/ō)·(N · mean_batch 1{r* > a*ᵀp}·a* − supply)/capacity ]^+ .

Prices fall wherever less is asked for than there is. η·(r̄/ō) makes η a pure number: r̄/ō is what a slot earns a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.router.olp.columns import add_column, column_cost, fill
from endcast.router.olp.prices import KV, SLOT, project, running_sums
from endcast.survival import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Batch:
    """m requests, a sample of N.

    ``prompt`` (m,) tokens; ``length`` (m,) forecast output tokens, ≥ 1; ``start`` (m, c) steps in which each may start,
    −1 for none; ``reward`` (m, c) for starting there, on whichever worker.
    """

    prompt: IntArray
    length: IntArray
    start: IntArray
    reward: FloatArray


@njit(cache=True)
def _best_column(
    sums: FloatArray, j: int, prompt: int, length: int, start: IntArray, reward: FloatArray
) -> tuple[int, int, float]:
    """Row, start and surplus of the best column; ties go to another row for each request j, so that rows share them."""
    rows, best_row, best_start, best = sums.shape[1], -1, -1, -np.inf
    for c in range(start.shape[0]):
        if start[c] < 0:
            continue
        for i in range(rows):
            row = (i + j) % rows
            slot, kv = column_cost(sums, row, prompt, length, start[c])
            if reward[c] - slot - kv > best:
                best_row, best_start, best = row, start[c], reward[c] - slot - kv
    return best_row, best_start, best


@njit(cache=True)
def demand(
    price: FloatArray, prompt: IntArray, length: IntArray, start: IntArray, reward: FloatArray
) -> tuple[FloatArray, float]:
    """What a mean request of a batch would take, (2, rows, K), and its mean surplus: only columns that pay are taken."""
    sums, surplus, requests = running_sums(price), 0.0, prompt.shape[0]
    slope = np.zeros((2, sums.shape[1], sums.shape[2]))
    for j in range(requests):
        row, first, best = _best_column(sums, j, prompt[j], length[j], start[j], reward[j])
        if best > 0.0:
            add_column(slope, row, prompt[j], length[j], first, 1.0 / requests)
            surplus += best / requests
    return fill(slope), surplus


@njit(cache=True)
def _improve(
    price: FloatArray, prompt: IntArray, length: IntArray, start: IntArray, reward: FloatArray, rounds: int,
    requests: float, supply: FloatArray, capacity: FloatArray, step_size: float, kv_unit: float,
) -> FloatArray:  # fmt: skip
    scale, size = np.empty(2), prompt.shape[0] // rounds
    for i in range(rounds):
        own = slice(i * size, (i + 1) * size)
        scale[SLOT] = reward[own, 0].mean() / length[own].mean()
        scale[KV] = scale[SLOT] / kv_unit
        taken, _ = demand(price, prompt[own], length[own], start[own], reward[own])
        project(price, requests * taken, supply, capacity, step_size * scale)
    return scale


def improve(
    price: FloatArray,
    batch: Batch,
    *,
    requests: float,
    supply: FloatArray,
    capacity: FloatArray,
    step_size: float,
    kv_unit: float,
    rounds: int = 1,
) -> FloatArray:
    """Projected steps in place, each on its own part of the batch: the last one's r̄/ō (2,), rewards a slot·step and a
    KV token·step.

    ``requests`` N; ``supply`` (2, rows, K) and ``capacity`` (2, rows) as ``project`` has them; ``step_size`` η;
    ``kv_unit`` KV tokens, L̄₁, that count as much as a slot.
    """
    scale: FloatArray = _improve(
        price, batch.prompt, batch.length, batch.start, batch.reward, rounds, requests, supply, capacity, step_size,
        kv_unit,
    )  # fmt: skip
    return scale


def dual_value(price: FloatArray, batch: Batch, *, requests: float, supply: FloatArray) -> float:
    """The dual objective: an upper bound on what any allocation to ``requests`` such requests could earn."""
    _, surplus = demand(price, batch.prompt, batch.length, batch.start, batch.reward)
    value: float = float(np.sum(supply * price)) + requests * surplus
    return value
