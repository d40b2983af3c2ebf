"""Shortest expected output first: against a slow reading of its rule, with its bound, rooms and workers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.router.admission.gate import (
    CAPACITY,
    CLAIM_USE,
    CLAIMED,
    HELD,
    LIMIT,
    USED,
    Gate,
    no_headroom,
    nothing_kept,
)
from endcast.router.admission.peak import no_peaks
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.entries import FIELDS, PROMPT, read_only
from endcast.router.policy import PolicySettings
from endcast.router.shortest_first import ShortestFirst, _shortest_first
from endcast.router.simulator import SimulationSettings, simulate_policy
from endcast.router.workload import Workload


def slow(
    key: list[float],
    prompt: list[int],
    overtaken: list[int],
    load: list[int],
    free: list[int],
    room: list[int],
    candidates: int,
    bound: int,
) -> list[tuple[int, int]]:
    """Slot by slot: the least loaded worker; the oldest if it was passed too often and fits, else the least key."""
    waiting, closed, placed = list(range(len(key))), set[int](), []
    if waiting and overtaken[0] >= bound and not any(f and prompt[0] + 1 <= r for f, r in zip(free, room, strict=True)):
        closed.add(max(range(len(room)), key=lambda g: (room[g], -g)))  # kept for the oldest
    passed = list(overtaken)
    while waiting:
        workers = [g for g in range(len(load)) if free[g] > 0 and g not in closed]
        if not workers:
            break
        g = min(workers, key=lambda g: load[g])
        fitting = [j for j in waiting[:candidates] if prompt[j] + 1 <= room[g]]
        oldest = waiting[0]
        if not fitting:
            closed.add(g)
            continue
        chosen = oldest if passed[oldest] >= bound and oldest in fitting else min(fitting, key=lambda j: (key[j], j))
        placed.append((chosen, g))
        load[g], free[g], room[g] = load[g] + prompt[chosen], free[g] - 1, room[g] - prompt[chosen] - 1
        waiting.remove(chosen)
        for j in waiting:
            passed[j] += j < chosen
    return placed


@given(st.data())
def test_it_is_the_slow_reading_of_the_rule(data: st.DataObject) -> None:
    count, workers = data.draw(st.integers(0, 8)), data.draw(st.integers(1, 3))

    def whole(least: int, most: int, size: int) -> list[int]:
        return data.draw(st.lists(st.integers(least, most), min_size=size, max_size=size))

    key, prompt = [float(k) for k in whole(0, 5, count)], whole(0, 30, count)
    overtaken = sorted(whole(0, 4, count), reverse=True)
    load = data.draw(st.lists(st.integers(0, 99), min_size=workers, max_size=workers, unique=True))
    load = [1000 * value for value in load]  # no two become equal
    free, room = whole(0, 4, workers), whole(0, 60, workers)
    candidates, bound = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 5))
    waiting = np.zeros((FIELDS + 1, count), dtype=np.int64)
    waiting[PROMPT] = prompt
    used = np.zeros((5, workers), dtype=np.int64)
    used[CAPACITY], used[LIMIT], used[HELD] = 10**6, 10**6, 1
    used[USED] = used[CLAIMED] = 10**6 - np.array(room)
    position, worker = _shortest_first(
        np.array(key),
        np.array(prompt, dtype=np.int64),
        np.array(overtaken, dtype=np.int64),
        np.array(load, dtype=float),
        np.array(free),
        Gate(True, read_only(waiting), 0, used, CLAIM_USE, no_peaks(), nothing_kept(), no_headroom(), 0.0),
        np.ones(workers, dtype=np.bool_),
        np.zeros(workers),
        candidates,
        bound,
    )
    expected = slow(key, prompt, overtaken, load, free, room, candidates, bound)
    assert list(zip(position.tolist(), worker.tolist(), strict=True)) == expected


def test_it_gives_nothing_to_workers_that_do_not_accept() -> None:
    policy = ShortestFirst(np.arange(9.0), PolicySettings())
    state = ClusterState(slots=np.full(3, 3), capacity=np.full(3, UNLIMITED), policy=policy)
    state.accept(1, False)
    new = np.arange(9)
    state.arrive(new, new, new.astype(float))
    assert set(policy.decide(state.view(), np.random.default_rng(0)).worker.tolist()) == {0, 2}


@pytest.mark.parametrize("bound", [0, 5, 60])
def test_overtaking_is_bounded(bound: int) -> None:
    rng = np.random.default_rng(0)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, 300)), prompt=rng.integers(1, 90, 300), output=rng.geometric(0.05, 300)
    )
    fleet = SimulationSettings(workers=2, slots=4, utilization=1.3, candidates=1000, max_overtakes=bound)
    order = partial(ShortestFirst, load.output.astype(float))
    assert simulate_policy(load, fleet, "shortest", order).mean["overtakings_max"] == bound
