"""A trace's digest depends on its values, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.datasets.schema import SCHEMA
from endcast.datasets.trace import Trace

_ROW = st.fixed_dictionaries(
    {"request_id": st.text(max_size=3), "output_tokens": st.integers(0, 5), "end": st.just("stop")},
    optional={
        "arrival_ns": st.none() | st.integers(0, 3),
        "model": st.none() | st.text(max_size=2),
        "prefix_blocks": st.none() | st.lists(st.integers(0, 2), max_size=2),
    },
)


def trace(rows: list[dict[str, Any]], cuts: int = 1) -> Trace:
    size = -(-len(rows) // cuts)
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Trace(pa.concat_tables([pa.Table.from_pylist(part, schema=SCHEMA) for part in parts]))


@settings(max_examples=80, deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=6), st.lists(_ROW, min_size=1, max_size=6), st.integers(1, 4))
def test_equal_tables_and_only_those_have_equal_digests(
    rows: list[dict[str, Any]], others: list[dict[str, Any]], cuts: int
) -> None:
    assert trace(rows, cuts).digest == trace(rows).digest
    same = trace(rows).table.equals(trace(others).table)
    assert (trace(rows).digest == trace(others).digest) == same


@pytest.mark.parametrize("rubbish", [0, 77])
def test_what_lies_under_nulls_does_not_matter(rubbish: int) -> None:
    base = trace([{"request_id": "a", "output_tokens": 1, "end": "stop"}] * 3)
    hidden = pa.array(np.full(3, rubbish), mask=np.array([True, True, True]))
    place = SCHEMA.get_field_index("max_tokens")
    assert Trace(base.table.set_column(place, SCHEMA.field(place), hidden)).digest == base.digest


@pytest.mark.parametrize("change", [lambda t: t.slice(1, 5), lambda t: t.take(pa.array([1, 2, 3, 4, 5]))])
def test_slices_and_copies_are_the_same(change: Callable[[pa.Table], pa.Table]) -> None:
    rows = [
        {
            "request_id": f"r{i}",
            "output_tokens": i,
            "end": "stop",
            "model": f"m{i}" if i % 2 else None,
            "prefix_blocks": [i],
        }
        for i in range(8)
    ]
    assert Trace(change(trace(rows).table)).digest == trace(rows[1:6]).digest
