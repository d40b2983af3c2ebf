"""Columns that are kept by key are those that would be made anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import Completion, EndReason, Request
from endcast.predictors.features import made_rows
from endcast.predictors.features.keyed_lengths import Key, KeyedLengths
from endcast.predictors.features.pipeline import FeaturePipeline, join
from endcast.predictors.grid import IntervalGrid

LENGTHS = np.array([1, 2, 3, 5, 8, 8, 13, 40, 41, 90])
GRID = IntervalGrid.fit(LENGTHS, np.ones(len(LENGTHS), dtype=bool), 6)
REQUEST = st.builds(
    lambda i, tokens: Request(request_id=str(i), prompt_tokens=tokens),
    st.integers(0, 9),
    st.none() | st.integers(0, 40),
)
STEPS = st.lists(st.tuples(st.lists(REQUEST, min_size=1, max_size=4), st.lists(REQUEST, max_size=3)), max_size=8)


@settings(deadline=None, max_examples=100)
@given(STEPS, st.integers(1, 100))
def test_kept_columns_are_those_made_anew(steps: list[tuple[list[Request], list[Request]]], length: int) -> None:
    pipeline = FeaturePipeline(("prompt_size", "same_size", "near_size"), GRID)
    for asked, finished in steps:
        for _ in range(2):  # the second time they are kept
            np.testing.assert_array_equal(pipeline.features(asked), join(pipeline.transform(pipeline.collect(asked))))
        pipeline.observe([Completion(request=request, output_tokens=length) for request in finished])


def test_a_key_that_had_to_go_is_forgotten() -> None:
    group = KeyedLengths(GRID, Key("size", lambda request: request.prompt_tokens, 4, most_keys=2))
    first = Request(request_id="", prompt_tokens=1)
    for tokens in (1, 2):
        group.observe(Completion(request=Request(request_id="", prompt_tokens=tokens), output_tokens=7))
    known = group.rows_of([first]).copy()
    group.observe(Completion(request=Request(request_id="", prompt_tokens=3), output_tokens=7, end=EndReason.STOP))
    assert not np.array_equal(group.rows_of([first]), known, equal_nan=True)
    fresh = join(group.transform(group.collect([first])))
    np.testing.assert_array_equal(group.rows_of([first]), fresh)


def test_few_rows_are_kept() -> None:
    rows = made_rows.MadeRows(3)
    for start in range(0, 3 * made_rows.MOST_ROWS, 500):
        keys = list(range(start, start + 500))
        assert len(rows.missing(keys)) == 500
        rows.keep(keys, np.tile(np.array(keys, dtype=np.float32)[:, None], (1, 3)))
        np.testing.assert_array_equal(rows.rows(keys)[:, 0], keys)
        assert len(rows._place) <= made_rows.MOST_ROWS + 500
