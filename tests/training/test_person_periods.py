"""Person-period rows against a slow loop, whole and in chunks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.person_period import PersonPeriods, chunked_person_periods, person_periods, rows_each
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.product_limit import at_risk_and_events

REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=25)
EDGES = st.sets(st.integers(1, 50), min_size=1, max_size=12).map(lambda inner: np.array([0, *sorted(inner)]))


def slow(requests: list[tuple[int, bool]], edges: list[int]) -> list[tuple[int, int, float, float]]:
    """(request, interval, event, weight) of every interval that a request reached."""
    rows = []
    for i, (length, ended) in enumerate(requests):
        for k in range(len(edges) - 1):
            start, stop = edges[k], edges[k + 1]
            if length <= start:
                break
            if length > stop or (length == stop and not ended):
                rows.append((i, k, 0.0, 1.0))  # survived it all
            elif ended:
                rows.append((i, k, 1.0, 1.0))
            else:
                rows.append((i, k, 0.0, (length - start) / (stop - start)))
    return rows


def arrays(requests: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([length for length, _ in requests], dtype=np.int64), np.array([e for _, e in requests], dtype=bool)


def as_rows(made: PersonPeriods) -> list[tuple[int, int, float, float]]:
    columns = (made.request.tolist(), made.interval.tolist(), made.event.tolist(), made.weight.tolist())
    return list(zip(*columns, strict=True))


@given(REQUESTS, EDGES)
def test_rows_against_a_loop(requests: list[tuple[int, bool]], edges: np.ndarray) -> None:
    lengths, ended = arrays(requests)
    made = person_periods(lengths, ended, edges)
    assert made.event.dtype == made.weight.dtype == np.float32 and len(made) == len(made.request)
    expected = [(i, k, y, float(np.float32(w))) for i, k, y, w in slow(requests, edges.tolist())]
    assert as_rows(made) == expected
    assert rows_each(lengths, edges).tolist() == [sum(row[0] == i for row in expected) for i in range(len(requests))]


@given(REQUESTS, EDGES, st.integers(1, 30))
def test_in_chunks_the_rows_are_the_same(requests: list[tuple[int, bool]], edges: np.ndarray, size: int) -> None:
    lengths, ended = arrays(requests)
    chunks = list(chunked_person_periods(lengths, ended, edges, requests_a_chunk=size))
    assert [row for chunk in chunks for row in as_rows(chunk)] == as_rows(person_periods(lengths, ended, edges))


@given(REQUESTS.filter(lambda requests: len(requests) > 0))
def test_one_token_intervals_are_the_product_limit(requests: list[tuple[int, bool]]) -> None:
    """Events over weights in each interval is the hazard that Kaplan and Meier have."""
    lengths, ended = arrays(requests)
    edges = np.arange(lengths.max() + 1)
    made = person_periods(lengths, ended, edges)
    at_risk, events = at_risk_and_events(lengths, ended)
    np.testing.assert_array_equal(
        np.bincount(made.interval, weights=made.weight, minlength=len(edges) - 1), at_risk[1:]
    )
    np.testing.assert_array_equal(np.bincount(made.interval, weights=made.event, minlength=len(edges) - 1), events[1:])


def test_the_grids_interval_is_the_rows_last_one() -> None:
    lengths = np.array([1, 2, 3, 9, 10, 11])
    grid = IntervalGrid(np.array([0, 2, 9, 10]), np.linspace(0.0, -1.0, 11))
    assert (rows_each(lengths, grid.edges) - 1).tolist() == grid.interval_of(lengths).tolist() == [0, 0, 1, 1, 2, 2]
