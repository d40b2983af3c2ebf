"""Windows worked out some steps ahead: as read anew after every step, whatever happens otherwise than foreseen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from endcast.router.cluster import ClusterState
from endcast.router.policies.br_h import BrH
from endcast.router.policy import Decisions, PolicySettings
from endcast.router.running import BLOCK
from endcast.survival import NO_CAP, CurveTable, IntArray, SurvivalBatch

WORKERS, SLOTS, HORIZON = 3, 24, 20
EDGES = np.array([0, 1, 2, 3, 5, 8, 13, 40, 41, 90, 300])


def lasting(rng: np.random.Generator, count: int) -> SurvivalBatch:
    """Of requests that will run for long."""
    table = CurveTable.from_log_survival(np.array([0, 1]), np.array([[0.0, -0.004]]))
    where = np.zeros(count, dtype=np.int64)
    return SurvivalBatch(table, where, where, np.full(count, NO_CAP), HORIZON)


def forecasts(rng: np.random.Generator, count: int) -> SurvivalBatch:
    """Of every kind: flat, steep, certain to end within a block, far along their curve."""
    hazard = np.where(rng.random((count, len(EDGES) - 1)) < 0.2, rng.beta(0.3, 2.0, (count, len(EDGES) - 1)), 0.005)
    log = np.concatenate([np.zeros((count, 1)), np.cumsum(np.log1p(-np.minimum(hazard, 0.9)), axis=1)], axis=1)
    table = CurveTable.from_log_survival(EDGES, log)
    cap = rng.choice([2, 5, 11, 60, NO_CAP], count)
    return SurvivalBatch(table, np.arange(count), rng.integers(0, 60, count), cap, HORIZON)


class Watched:
    """A fleet, and beside it what each running request's forecast was and when it was made."""

    def __init__(self, seed: int, make: Callable[[np.random.Generator, int], SurvivalBatch] = forecasts) -> None:
        self.rng, self.make, self.next = np.random.default_rng(seed), make, 0
        policy = BrH(PolicySettings(horizon=HORIZON))
        sizes, room = np.full(WORKERS, SLOTS), np.full(WORKERS, 10**9)
        self.state = ClusterState(slots=sizes, capacity=room, policy=policy)
        self.made: dict[int, tuple[SurvivalBatch, int]] = {}

    def start(self, count: int) -> None:
        count = min(count, WORKERS * SLOTS - int(self.state.slots.active.sum()))
        new, made = np.arange(self.next, self.next + count), self.make(self.rng, count)
        self.state.arrive(new, self.rng.integers(0, 900, count), new.astype(float), forecasts=made)
        self.next += count
        free = np.repeat(np.arange(WORKERS), self.state.view().free)
        started = self.state.apply(Decisions(np.arange(count), self.rng.permutation(free)[:count]))
        self.made |= {r: (made.take(np.array([i])), 0) for i, r in enumerate(new.tolist())}
        assert started.request.tolist() == new.tolist()

    def news(self, slot: int) -> None:
        if (request := int(self.state.slots.request[slot])) >= 0:
            made = forecasts(self.rng, 1)
            self.state.news(np.array([slot]), made)
            self.made[request] = (made, int(self.state.slots.generated[slot]))

    def check(self) -> None:
        forecast, slots, h = self.state.view().forecast, self.state.slots, np.arange(HORIZON + 1)
        assert forecast is not None
        anew = np.zeros((WORKERS, HORIZON + 1))
        for slot in np.flatnonzero(slots.request >= 0):
            made, at = self.made[int(slots.request[slot])]
            survival = made.advance(int(slots.generated[slot]) - at).survival_at(h[:, None])[:, 0]
            survival[0] = 1.0  # it is there now, whatever its cap says
            anew[slots.worker[slot]] += (slots.entries[1, slot] + slots.generated[slot] + h) * survival
        np.testing.assert_allclose(forecast.load, anew, rtol=3e-6, atol=2e-3)


def quiet(rng: np.random.Generator, total: int) -> IntArray:
    """A token each; now and then one stands still, or makes more."""
    tokens = np.ones(total, dtype=np.int64)
    tokens[rng.random(total) < 0.01] = rng.integers(0, 4)
    return tokens


def lively(rng: np.random.Generator, total: int) -> IntArray:
    return rng.integers(0, 3, total)


@pytest.mark.parametrize("tokens", [quiet, lively], ids=["one a step", "as it comes"])
@pytest.mark.parametrize("seed", range(4))
def test_windows_are_those_of_reading_anew(seed: int, tokens: Callable[[np.random.Generator, int], IntArray]) -> None:
    fleet, total = Watched(seed), WORKERS * SLOTS
    fleet.start(total - 5)
    for step in range(6 * BLOCK + 40):
        fleet.check()
        fleet.start(int(fleet.rng.integers(0, 3)))
        if step % 5 == 0:
            fleet.news(int(fleet.rng.integers(total)))
        if step % 7 == 0:
            fleet.check()  # looked at twice in a step
        if step == 3 * BLOCK:
            fleet.state.lose(1)
            fleet.state.accept(1, True)
        for _ in range(BLOCK + 3 if step % 29 == 0 else 1):  # nobody looks for more than a block
            ended = np.flatnonzero(fleet.rng.random(total) < 0.02)
            fleet.state.stepped(tokens(fleet.rng, total), ended)


def test_curves_are_read_once_for_a_block() -> None:
    """Where nothing happens otherwise than foreseen, a worker's sums are made every ``BLOCK`` steps, by turns."""
    fleet, began = Watched(0, lasting), []
    fleet.start(WORKERS * SLOTS)
    assert fleet.state.book is not None
    for _ in range(6 * BLOCK):
        fleet.state.view()
        began.append(fleet.state.book._blocks.block[0].tolist())
        fleet.state.stepped(np.ones(WORKERS * SLOTS, dtype=np.int64), np.zeros(0, dtype=np.int64))
    settled = began[3 * BLOCK :]
    assert {step - at for step, now in enumerate(settled, 3 * BLOCK) for at in now} == set(range(BLOCK))
    assert all(len(set(now)) == WORKERS for now in settled)
