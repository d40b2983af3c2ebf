"""Curves of a whole log, kept as they are made: the same in memory and in a file, shared or each request's own."""

from __future__ import annotations

import numpy as np
import pytest

from endcast.survival import NO_CAP, CurveTable, SurvivalBatch
from endcast.training import curve_room
from endcast.training.curve_room import CurveRoom

EDGES = np.array([0, 1, 4, 20])


def table(rng: np.random.Generator, curves: int) -> CurveTable:
    log = np.cumsum(-rng.random((curves, 3)), axis=1)
    return CurveTable.from_log_survival(EDGES, np.concatenate([np.zeros((curves, 1)), log], axis=1))


def batch(curves: CurveTable, rng: np.random.Generator, count: int) -> SurvivalBatch:
    row = rng.integers(0, len(curves.log_tail), count)
    return SurvivalBatch(curves, row, rng.integers(0, 9, count), np.full(count, NO_CAP), 0)


def survival(forecasts: SurvivalBatch) -> np.ndarray:
    return np.array([forecasts.survival_at(h) for h in (0, 1, 2, 7, 50)])


@pytest.mark.parametrize("in_memory", [0, 1 << 20], ids=["in a file", "in memory"])
@pytest.mark.parametrize("shared", [3, 1, 0])
def test_what_was_put_comes_back(in_memory: int, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches, rows in any order; the first ``shared`` of them point into one table."""
    monkeypatch.setattr(curve_room, "IN_MEMORY", in_memory)
    rng = np.random.default_rng(shared)
    common, order = table(rng, 4), rng.permutation(30)
    made = [batch(common if i < shared else table(rng, 5), rng, 10) for i in range(3)]
    kept = CurveRoom(30)
    for i, one in enumerate(made):
        kept.put(order[10 * i : 10 * i + 10], one)
    found = survival(kept.batch())
    for i, one in enumerate(made):
        np.testing.assert_array_equal(found[:, order[10 * i : 10 * i + 10]], survival(one))
    assert (kept.batch().table is common) == (shared == 3)


def test_a_file_holds_what_memory_should_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_room, "IN_MEMORY", 800)
    small, large = curve_room.room(10, 10), curve_room.room(11, 10)
    assert type(small) is type(large) is np.ndarray
    assert small.base is None
    assert isinstance(large.base, np.memmap)
