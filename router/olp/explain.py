"""Prices and decisions in words: which resource is scarce, where and when, and why a request was released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.router.balance_route import placement_gain
from endcast.router.olp.prices import KV, RESOURCES, SLOT
from endcast.router.olp.pricing import Pricing, Scores
from endcast.router.policy import ClusterView, Decisions
from endcast.survival import FloatArray, IntArray

#: A resource is called scarce where a step of it costs at least this share of what it earns on average.
_SCARCE = 0.1


@dataclass(frozen=True, kw_only=True)
class Release:
    """Why a request was started: ``surplus`` = ``reward`` − ``slot_cost`` − ``kv_cost``, all in the reward's own units.

    ``parts`` of the reward by name, priority and fairness in them. ``balance`` is the imbalance that it filled, F_H in
    mean requests' KV, where that had a say. ``best_alternative`` is the request with the highest surplus that still waits,
    with its surplus; ``None`` if nothing does. ``overtaken`` later arrivals had passed it.
    """

    request: int
    worker: int
    wait_s: float
    expected_output_tokens: int
    overtaken: int
    reward: float
    parts: dict[str, float]
    slot_cost: float
    kv_cost: float
    surplus: float
    best_alternative: int | None
    alternative_surplus: float | None
    balance: float | None = None

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {value:.3g}" for name, value in self.parts.items())
        other = ""
        if self.best_alternative is not None:
            other = f"; request {self.best_alternative} would have had {self.alternative_surplus:.3g}"
        if self.balance is not None:
            other = f", fills {self.balance:.2g} of imbalance{other}"
        return (
            f"request {self.request} on worker {self.worker}: surplus {self.surplus:.3g} = reward {self.reward:.3g} "
            f"({parts}) - slot {self.slot_cost:.3g} - KV {self.kv_cost:.3g}, after {self.wait_s:.1f} s{other}"
        )


@dataclass(frozen=True, kw_only=True)
class Scarcity:
    """``resource`` is scarce on ``workers`` in the steps ``first`` … ``last`` from now; ``price`` is the highest there,
    over what the resource earns a step on average."""

    resource: str
    workers: tuple[int, ...]
    first: int
    last: int
    price: float

    def __str__(self) -> str:
        names = _ranges(self.workers)
        plural = "s" if len(self.workers) > 1 else ""
        verb = "is" if self.resource == RESOURCES[KV] else "are"
        return (
            f"{self.resource} on worker{plural} {names} {verb} scarce in {self.first}-{self.last} steps "
            f"(up to {self.price:.2g} of average yield)"
        )


def releases(pricing: Pricing, scores: Scores, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
    """One record for each placement, in order; to be asked for before the decisions are carried out."""
    left = np.ones(len(view.waiting), dtype=np.bool_)
    left[decisions.position] = False
    left[decisions.refused] = False
    other = int(np.argmax(np.where(left, scores.best, -np.inf))) if left.any() else None
    return tuple(
        _release(pricing, scores, view, int(j), int(g), other)
        for j, g in zip(decisions.position, decisions.worker, strict=True)
    )


def _release(pricing: Pricing, scores: Scores, view: ClusterView, j: int, g: int, other: int | None) -> Release:
    row = scores.row[g]
    return Release(
        request=int(view.waiting[j]),
        worker=g,
        wait_s=float(view.now_s - view.waiting_arrival_s[j]),
        expected_output_tokens=int(scores.length[j]),
        overtaken=int(view.waiting_overtaken[j]),
        reward=float(scores.reward[j]),
        parts={name: float(part[j]) for name, part in zip(pricing.reward.parts, scores.parts, strict=True)},
        slot_cost=float(scores.costs[SLOT, row, j]),
        kv_cost=float(scores.costs[KV, row, j]),
        surplus=float(scores.surplus[row, j]),
        best_alternative=None if other is None else int(view.waiting[other]),
        alternative_surplus=None if other is None else float(scores.best[other]),
    )


def balance_filled(view: ClusterView, decisions: Decisions, weight: FloatArray, unit: float) -> list[float]:
    """F_H of each placement, in the order made, over ``unit`` KV tokens; ``weight`` (H+1,) discounts the window."""
    assert view.forecast is not None
    load, found = view.forecast.load.copy(), list[float]()
    for j, g in zip(decisions.position, decisions.worker, strict=True):
        added = view.forecast.waiting_load[view.forecast.waiting_row[j]].astype(np.float64)
        gain = placement_gain(added, load.max(axis=0) - load[g], len(load))
        found.append(float(gain @ weight) / unit)
        load[g] += added
    return found


def scarcities(relative_price: FloatArray, row: IntArray, *, least: float = _SCARCE) -> tuple[Scarcity, ...]:
    """Where a resource is scarce, the dearest first.

    ``relative_price`` (2, rows, K) as ``Pricing.relative_price`` has it; ``row`` (G,) of each worker; ``least`` > 0.
    """
    found = []
    for resource, prices in zip(RESOURCES, relative_price, strict=True):
        for r, price in enumerate(prices):
            workers = tuple(np.flatnonzero(row == r).tolist())
            for first, last in _stretches(price >= least):
                top = float(price[first : last + 1].max())
                found.append(Scarcity(resource=resource, workers=workers, first=first, last=last, price=top))
    return tuple(sorted(found, key=lambda s: -s.price))


def _stretches(holds: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], holds.astype(np.int8), [0]])))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def _ranges(numbers: tuple[int, ...]) -> str:
    """1, 2, 3, 7 as ``1-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
