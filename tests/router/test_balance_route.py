"""The mathematics of BalanceRoute: F by hand and by its meaning, and the two stages against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
from endcast.router.balance_route import balance_route, discounts, placement_gain
from endcast.router.entries import FIELDS, PROMPT, read_only
from endcast.survival import FloatArray

FOUR_WORKERS = np.array([10.0, 7.0, 6.0, 5.0])


def imbalance(load: FloatArray) -> float:
    return float((load.max() - load).sum())


@pytest.mark.parametrize(("added", "after"), [(4, 8), (5, 11)])
def test_the_example_of_four_workers(added: int, after: int) -> None:
    """Loads 10, 7, 6, 5 have I = 12; the third worker's margin is 4."""
    assert imbalance(FOUR_WORKERS) == 12
    assert 12 - placement_gain(added, 4, 4) == after
    assert imbalance(FOUR_WORKERS + np.array([0, 0, added, 0])) == after


@given(hnp.arrays(np.float64, st.integers(1, 9), elements=st.integers(0, 1000)), st.integers(0, 2000), st.data())
def test_gain_is_what_placing_takes_off_the_imbalance(load: FloatArray, added: int, data: st.DataObject) -> None:
    g = data.draw(st.integers(0, len(load) - 1))
    placed = load.copy()
    placed[g] += added
    gain = placement_gain(added, load.max() - load[g], len(load))
    assert gain == imbalance(load) - imbalance(placed)


def test_discounts() -> None:
    assert discounts(3, 0.5).tolist() == [1.0, 0.5, 0.25, 0.125]
    assert discounts(0, 0.95).tolist() == [1.0]


def slow_balance_route(
    load: FloatArray,
    waiting: FloatArray,
    prompt: list[int],
    overtaken: list[int],
    free: list[int],
    room: list[int],
    accepting: list[bool],
    key: FloatArray,
    weight: FloatArray,
    candidates: int,
    max_overtakes: int,
) -> list[tuple[int, int]]:
    """Both stages as the paper words them, recomputing everything after each placement."""
    load, free, room, overtaken = load.copy(), list(free), list(room), list(overtaken)
    left, closed, placed = list(range(len(prompt))), set[int](), list[tuple[int, int]]()
    open_ = [g for g in range(len(free)) if accepting[g]]
    passed = bool(prompt) and overtaken[0] >= max_overtakes
    if passed and open_ and not any(free[g] > 0 and prompt[0] + 1 <= room[g] for g in open_):
        closed.add(max(open_, key=lambda g: (room[g], -g)))  # kept for the oldest
    while left:
        margins = load.max(axis=0) - load
        can = [g for g in range(len(free)) if free[g] > 0 and accepting[g] and g not in closed]
        if not can:
            break
        g = min(can, key=lambda g: (-float(weight @ margins[g]), key[g]))
        fits = [j for j in left[:candidates] if prompt[j] + 1 <= room[g]]
        if not fits:
            closed.add(g)
            continue
        best = max(fits, key=lambda j: (float(weight @ placement_gain(waiting[j], margins[g], len(free))), -j))
        if overtaken[left[0]] >= max_overtakes and left[0] in fits:
            best = left[0]
        for j in left:
            overtaken[j] += j < best
        left.remove(best)
        load[g] += waiting[best]
        free[g], room[g] = free[g] - 1, room[g] - prompt[best] - 1
        placed.append((best, g))
    return placed


def gate_of(prompt: list[int], room: list[int]) -> Gate:
    """Workers that use as much as leaves this room, and take what fits now."""
    waiting = np.zeros((FIELDS + 1, len(prompt)), dtype=np.int64)
    waiting[PROMPT] = prompt
    worker = np.zeros((5, len(room)), dtype=np.int64)
    worker[CAPACITY], worker[LIMIT], worker[HELD] = 10**9, 10**9, 1
    worker[USED] = worker[CLAIMED] = 10**9 - np.array(room)
    return Gate(True, read_only(waiting), 0, worker, CLAIM_USE, no_peaks(), nothing_kept(), no_headroom(), 0.0)


@st.composite
def rounds(draw: st.DrawFn) -> dict[str, object]:
    """Whole tokens, and discounts that are powers of two: sums are exact, so ties are ties in any order of adding."""
    workers, waiting, horizon = draw(st.integers(1, 5)), draw(st.integers(0, 9)), draw(st.integers(0, 6))
    tokens = st.integers(0, 50)
    overtaken = sorted(draw(st.lists(st.integers(0, 6), min_size=waiting, max_size=waiting)), reverse=True)
    return {
        "load": draw(hnp.arrays(np.float64, (workers, horizon + 1), elements=tokens)),
        "waiting": draw(hnp.arrays(np.float32, (waiting, horizon + 1), elements=tokens)),
        "prompt": draw(st.lists(tokens, min_size=waiting, max_size=waiting)),
        "overtaken": overtaken,
        "free": draw(st.lists(st.integers(0, 4), min_size=workers, max_size=workers)),
        "room": draw(st.lists(st.sampled_from([30, 60, 10**6]), min_size=workers, max_size=workers)),
        "accepting": draw(st.lists(st.booleans(), min_size=workers, max_size=workers)),
        "key": np.array(draw(st.permutations(range(workers))), dtype=np.float64),
        "weight": discounts(horizon, draw(st.sampled_from([0.5, 1.0]))),
        "candidates": draw(st.integers(1, 10)),
        "max_overtakes": draw(st.integers(0, 6)),
    }


@settings(deadline=None, max_examples=300)
@given(rounds())
def test_two_stages_are_those_of_the_paper(case: dict[str, object]) -> None:
    slow = slow_balance_route(**case)  # type: ignore[arg-type]
    waiting = np.asarray(case["waiting"], dtype=np.float32)
    shown = [
        np.asarray(case["load"]),
        waiting[::-1].copy(),  # rows in another order than the waiting set
        np.arange(len(waiting))[::-1].copy(),
        *(np.array(case[name], dtype=np.int64) for name in ("overtaken", "free")),
    ]
    accepting = read_only(np.array(case["accepting"], dtype=np.bool_))
    settings_ = (case["key"], case["weight"], case["candidates"], case["max_overtakes"])
    gate = gate_of(case["prompt"], case["room"])  # type: ignore[arg-type]
    no_toll = np.zeros((0, len(accepting)))
    position, worker = balance_route(*map(read_only, shown), gate, accepting, *settings_, no_toll)
    assert list(zip(position.tolist(), worker.tolist(), strict=True)) == slow
