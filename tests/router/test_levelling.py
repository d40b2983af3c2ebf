"""Levelling: the deviation by hand, the stages against a slow oracle, exchanges, bounded overtaking, progress, speeds."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.admission.gate import CAPACITY, CLAIMED, HELD, LIMIT, OPEN, USED, Gate
from endcast.router.balance_route import discounts
from endcast.router.cluster import UNLIMITED
from endcast.router.deviation import MEAN, OVERLOAD, SPREAD, deviation, least_deviation, moments, moments_of
from endcast.router.engine import RunRecord, play
from endcast.router.entries import FIELDS, PROMPT, read_only
from endcast.router.forecasts import ForecastSource, NoForecast, Oracle
from endcast.router.levelling import (
    TOWARDS_HEAVIEST,
    excess_over_level,
    exchange,
    levelling,
    mean_of_oldest,
    soften_loads,
    soften_oldest,
)
from endcast.router.policies.br_h import BrH
from endcast.router.policy import PolicySettings
from endcast.router.scale import StepTime
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray


def cost(excess: FloatArray, weight: FloatArray) -> float:
    return float(np.sum(weight * np.where(excess > 0, OVERLOAD, 1.0) * excess**2))


def test_deviation_by_hand() -> None:
    """Two steps, γ = 1/2: −3 + 1 = −2 costs 4; −1 + 2 = 1 lies above the level and costs A·1, half of it."""
    added = np.array([1.0, 2.0], dtype=np.float32)
    assert deviation(np.array([-3.0, -1.0]), added, 1.0, discounts(1, 0.5)) == 4.0 + 0.5 * OVERLOAD


def test_moments_by_hand() -> None:
    """Weights 2 and 1: 1 and 7 have the mean 3, and deviate from it by 2, twice, and 4."""
    mean, spread = moments(np.array([1.0, 7.0]), np.array([2.0, 1.0]))
    assert (mean, spread) == (3.0, pytest.approx(np.sqrt(8.0)))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**9))
def test_no_deviation_is_below_its_bound(seed: int) -> None:
    """And where windows are flat the bound is what it costs."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(1, 30))
    weight, scale, flat = discounts(steps - 1, 0.9), rng.uniform(0.2, 2.0), rng.random() < 0.2
    excess, added = rng.normal(rng.normal(0.0, 900.0), 300.0, steps), rng.uniform(0.0, 1500.0, steps).astype(np.float32)
    if flat:
        excess[:], added[:] = excess[0], added[0]
    own, its = moments(excess, weight), moments_of(added[None, :], 1, weight)[0]
    spread = abs(own[SPREAD] - scale * its[SPREAD])
    bound, cost = (
        least_deviation(own[MEAN] + scale * its[MEAN], spread, weight.sum()),
        deviation(excess, added, scale, weight),
    )
    assert bound <= cost
    assert not flat or bound == pytest.approx(cost, rel=1e-6)


def test_the_level_of_four_workers() -> None:
    """Loads 10, 7, 6, 5 and one slot for a request of 4: the mean will be 8, the heaviest is 10."""
    load = np.array([[10.0], [7.0], [6.0], [5.0]])
    free, yes, speed = np.array([0, 0, 1, 0]), np.ones(4, dtype=np.bool_), np.ones(4)
    excess = excess_over_level(load, np.array([4.0]), free, yes, speed, 9)
    np.testing.assert_allclose(load - excess, 8.0 + TOWARDS_HEAVIEST * 2.0)


def test_softened_windows_by_hand() -> None:
    load = np.array([[10.0, 4.0, 0.0]])
    waiting = np.array([[9.0, 9.0, 9.0], [5.0, 3.0, 0.0]], dtype=np.float32)
    one, two = soften_loads(load, np.array([2]), 0.5), soften_oldest(waiting, np.array([1]), np.array([5]), 0.5)
    np.testing.assert_allclose(one, [[10.0, 8.0, 7.0]])  # half of the forecast, half of 10, 12, 14
    np.testing.assert_allclose(two, [[5.0, 4.5, 3.5]])  # half of 5, 3, 0, half of 5, 6, 7


def case(seed: int) -> dict[str, object]:
    """A round with numbers that do not tie."""
    rng = np.random.default_rng(seed)
    workers, waiting, steps = rng.integers(1, 6), rng.integers(0, 12), rng.integers(1, 5)
    return {
        "load": rng.uniform(0, 1000, (workers, steps)),
        "waiting_load": rng.uniform(1, 400, (waiting, steps)).astype(np.float32),
        "overtaken": np.sort(rng.integers(0, 7, waiting))[::-1].copy(),
        "free": rng.integers(0, 4, workers),
        "accepting": rng.random(workers) < 0.8,
        "speed": rng.uniform(0.5, 2.0, workers),
        "key": rng.random(workers),
        "weight": discounts(int(steps) - 1, 0.9),
        "candidates": int(rng.integers(1, 14)),
        "max_overtakes": int(rng.integers(0, 8)),
        "room": rng.choice([150, 10**6], workers),
    }


def gate_of(prompt: IntArray, room: IntArray) -> Gate:
    """Workers that use as much as leaves this room, and take what fits now."""
    waiting = np.zeros((FIELDS + 1, max(len(prompt), 1)), dtype=np.int64)
    waiting[PROMPT, : len(prompt)] = prompt
    worker = np.zeros((5, len(room)), dtype=np.int64)
    worker[CAPACITY], worker[LIMIT], worker[HELD] = 10**9, 10**9, 1
    worker[USED] = worker[CLAIMED] = 10**9 - room
    return deepcopy(OPEN)._replace(bounded=True, waiting=read_only(waiting), worker=worker)


def run_kernel(c: dict[str, object], gate: Gate) -> list[tuple[int, int]]:
    names = ("load", "waiting_load", "overtaken", "free")
    arrays = (*(c[n] for n in names), gate, *(c[n] for n in ("accepting", "speed", "key", "weight")))
    nothing_lost = np.zeros((0, len(c["speed"])))  # type: ignore[arg-type]
    position, worker = levelling(*arrays, c["candidates"], c["max_overtakes"], c.get("lost", nothing_lost))
    return list(zip(position.tolist(), worker.tolist(), strict=True))


def slow_levelling(c: dict[str, object], prompt: IntArray, bounded: bool) -> tuple[list[tuple[int, int]], FloatArray]:
    """The stages as the module words them, without exchanges; and the excesses that they leave."""
    load, waiting, weight = (
        np.asarray(c["load"]),
        np.asarray(c["waiting_load"], dtype=np.float64),
        np.asarray(c["weight"]),
    )
    speed, key, accepting = np.asarray(c["speed"]), np.asarray(c["key"]), np.asarray(c["accepting"])
    free, room = np.asarray(c["free"]).copy(), np.asarray(c["room"]).copy()
    overtaken, n = np.asarray(c["overtaken"]).tolist(), len(waiting)
    candidates, bound = int(c["candidates"]), int(c["max_overtakes"])  # type: ignore[call-overload]
    mean = waiting[:candidates].mean(axis=0) if n else np.zeros(load.shape[1])
    rate = speed[accepting].sum() or 1.0
    level = (load[accepting].sum(axis=0) + min(free[accepting].sum(), n) * mean) / rate
    heaviest = (load / speed[:, None]).max(axis=0)
    level = level + TOWARDS_HEAVIEST * np.maximum(heaviest - level, 0.0)
    excess, left, placed = load / speed[:, None] - level, list(range(n)), list[tuple[int, int]]()
    closed = set(np.flatnonzero(~accepting).tolist())

    def fits(g: int, j: int) -> bool:
        return not bounded or int(prompt[j]) + 1 <= room[g]

    if bounded and n and overtaken[0] >= bound:
        able = [g for g in range(len(free)) if g not in closed]
        if able and not any(free[g] > 0 and fits(g, 0) for g in able):
            closed.add(max(able, key=lambda g: (room[g], -g)))
    while left and (can := [g for g in range(len(free)) if free[g] > 0 and g not in closed]):
        g = min(can, key=lambda g: (float(weight @ excess[g]), key[g]))
        due = [w for w in can if fits(w, left[0])] if overtaken[left[0]] >= bound else []
        if due:
            j = left[0]
            g = min(due, key=lambda w: cost(excess[w] + waiting[j] / speed[w], weight) - cost(excess[w], weight))
        else:
            others = excess[g] + (free[g] - 1) * mean / speed[g]
            able = [i for i in left[:candidates] if fits(g, i)]
            if not able:
                closed.add(g)
                continue
            j = min(able, key=lambda i: cost(others + waiting[i] / speed[g], weight))
        for i in left:
            overtaken[i] += i < j
        left.remove(j)
        excess[g] += waiting[j] / speed[g]
        free[g], room[g] = free[g] - 1, room[g] - prompt[j] - 1
        placed.append((j, g))
    return placed, excess


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**9), st.booleans())
def test_stages_and_exchanges(seed: int, bounded: bool) -> None:
    """The same requests as the slow stages choose, as many to each worker, no dearer than without exchanges; all fits."""
    c = case(seed)
    waiting, room = np.asarray(c["waiting_load"]), np.asarray(c["room"])
    prompt = waiting[:, 0].astype(np.int64)
    slow, excess = slow_levelling(c, prompt, bounded)
    found = run_kernel(c, gate_of(prompt, room) if bounded else OPEN)
    assert sorted(j for j, _ in found) == sorted(j for j, _ in slow)
    assert [g for _, g in found] == [g for _, g in slow]
    after = excess.copy()
    speed, weight = np.asarray(c["speed"]), np.asarray(c["weight"])
    for (j, g), (i, _) in zip(found, slow, strict=True):
        after[g] += (waiting[j].astype(np.float64) - waiting[i]) / speed[g]
    before = sum(cost(x, weight) for x in excess)
    assert sum(cost(x, weight) for x in after) <= before * (1 + 1e-9) + 1e-6
    for g in range(len(room)) if bounded else ():
        assert sum(int(prompt[j]) + 1 for j, worker in found if worker == g) <= room[g]


def test_an_exchange_by_hand() -> None:
    """The large one lifts the worker that lacks more."""
    position, worker = np.array([0, 1]), np.array([0, 1])
    waiting, excess = np.array([[90.0], [10.0]], dtype=np.float32), np.array([[60.0], [-80.0]])
    who, none, moment = np.arange(2), np.zeros((0, 2)), moments_of(waiting, 2, np.ones(1))
    assert exchange(position, worker, waiting, moment, who, excess, np.ones(2), np.ones(1), OPEN, none) == 1
    assert position.tolist() == [1, 0]
    assert excess[:, 0].tolist() == [-20.0, 0.0]


def test_a_faster_worker_gets_more() -> None:
    waiting = np.full((30, 1), 10.0, dtype=np.float32)
    speed, yes = np.array([1.0, 2.0]), np.ones(2, dtype=np.bool_)
    free, none = np.array([30, 30]), np.zeros(30, dtype=np.int64)
    _, worker = levelling(
        np.zeros((2, 1)),
        waiting,
        none,
        free,
        OPEN,
        yes,
        speed,
        np.array([0.2, 0.1]),
        np.ones(1),
        64,
        99,
        np.zeros((0, 2)),
    )
    assert np.bincount(worker).tolist() == [10, 20]


def test_the_mean_of_the_oldest() -> None:
    assert mean_of_oldest(np.array([[1.0], [3.0], [99.0]], dtype=np.float32), 2).tolist() == [2.0]


G, B = 4, 8


def served(load: Workload, source: ForecastSource, max_overtakes: int) -> RunRecord:
    return play(
        load,
        BrH(PolicySettings(max_overtakes=max_overtakes)),
        slots=np.full(G, B),
        capacity=np.full(G, UNLIMITED),
        step_time=StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-5),
        forecasts=source,
        rng=np.random.default_rng(0),
    )


def at_once(prompt: IntArray, output: IntArray) -> Workload:
    return Workload.from_arrays(arrival_s=np.zeros(len(prompt)), prompt=prompt, output=output)


@pytest.mark.parametrize("bound", [0, 7, 200])
@pytest.mark.parametrize("log", ["all at once", "a giant among dwarfs", "dwarfs among giants", "opposite forecasts"])
def test_adversarial_logs_make_progress_within_the_bound(log: str, bound: int) -> None:
    """Everything is served, in no more steps than one request after the other would take, and nobody is passed too often."""
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(1, 900, 800), rng.geometric(0.03, 800)
    if log == "a giant among dwarfs":
        prompt, output = np.full(800, 5), np.full(800, 3)
        prompt[10], output[10] = 500_000, 400
    if log == "dwarfs among giants":
        prompt = np.where(np.arange(800) % 50 == 0, 1, 90_000)
    load = at_once(prompt, output)
    source = Oracle(output.max() + 1 - output) if log == "opposite forecasts" else Oracle(output)
    record = served(load, source, bound)
    assert np.isfinite(record.finish_s).all()
    assert record.steps <= output.sum()
    step = record.admission_step
    passed = [int(np.sum(step[i + 1 :] < step[i])) for i in range(len(step))]
    assert max(passed) <= bound


def test_slots_are_filled_while_anything_waits() -> None:
    """No slot is held back: all at once, the fleet is full until the pool is empty."""
    rng = np.random.default_rng(2)
    record = served(at_once(rng.integers(1, 900, 400), np.full(400, 10)), NoForecast(), 10**6)
    waves = np.bincount(record.admission_step)
    assert waves[waves > 0].tolist() == [G * B] * (400 // (G * B)) + [400 % (G * B)]
