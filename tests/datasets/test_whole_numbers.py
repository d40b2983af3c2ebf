"""Counts are whole numbers in any writing, and nothing is rounded into one (CASES 6 for logs)."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.numbers import is_blank, whole_number, whole_numbers

_MOST, _LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (5.0, 5),
        ("5", 5),
        (" +5 ", 5),
        ("5.000", 5),
        ("-5", -5),
        ("007", 7),
        (Decimal("5.0"), 5),
        (10**400, _MOST),
        (float("inf"), _MOST),
        (float("-inf"), _LEAST),
        ("9" * 50, _MOST),
        ("9" * 400, _MOST),
        (Decimal("1e999999999"), _MOST),
        (True, None),
        (5.5, None),
        ("5.5", None),
        (Decimal("5.5"), None),
        ("1e3", None),
        ("five", None),
        ("5,000", None),
        ([5], None),
        ({}, None),
    ],
)
def test_one_value(value: object, expected: int | None) -> None:
    assert whole_number(value) == expected


@pytest.mark.parametrize("value", [None, float("nan"), Decimal("nan"), "", "  ", "null", "None", "NaN", "n/a", "-"])
def test_blanks_are_not_given(value: object) -> None:
    assert is_blank(value)
    assert not whole_numbers([value, 0]).given[0]


@given(
    st.lists(st.none() | st.integers(-(10**20), 10**20).map(str) | st.text(max_size=4) | st.sampled_from(["3.0", "x"]))
)
def test_columns_of_text_agree_with_single_values(texts: list[str | None]) -> None:
    found = whole_numbers(pa.array(texts, pa.string()))
    for i, text in enumerate(texts):
        blank = is_blank(text)
        assert found.given[i] == (not blank)
        expected = None if blank else whole_number(text)
        assert found.valid[i] == (expected is not None)
        assert found.values[i] == (expected or 0)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()])
def test_columns_of_any_numeric_type(kind: pa.DataType) -> None:
    found = whole_numbers(pa.array([7, None, 0], kind))
    assert found.values.tolist() == [7, 0, 0]
    assert found.given.tolist() == found.valid.tolist() == [True, False, True]
    assert whole_numbers(pa.array([2**64 - 1], pa.uint64())).values.tolist() == [_MOST]
    assert np.array_equal(whole_numbers(pa.array([0.5, 1e300])).valid, [False, True])
