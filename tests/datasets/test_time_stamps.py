"""Times are read exactly: nanoseconds as integers, offsets, mixtures (CASES 24)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.times import Unit, format_ns, has_offset, instant, instants


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-16 18:15:46.6805901", 1_700_158_546_680_590_100),
        ("2023-11-16T18:15:46.680590123Z", 1_700_158_546_680_590_123),
        ("2023-11-16 18:15:46.680590123999", 1_700_158_546_680_590_123),  # cut, not rounded
        ("2024-05-10 00:00:00.009930+00:00", 1_715_299_200_009_930_000),
        ("2024-05-10 00:00:00+00:00", 1_715_299_200_000_000_000),
        ("2024-05-10 02:00:00+02:00", 1_715_299_200_000_000_000),
        ("2024-05-09 18:30:00.5-0530", 1_715_299_200_500_000_000),
        ("2024-05-09 16:00:00-08", 1_715_299_200_000_000_000),
        ("  2024-05-10 00:00  ", 1_715_299_200_000_000_000),
        ("1700000000", 1_700_000_000_000_000_000),
        ("1700000000.123456789", 1_700_000_000_123_456_789),
        ("1700000000123", 1_700_000_000_123_000_000),
        ("1700000000123456", 1_700_000_000_123_456_000),
        ("1700000000123456789", 1_700_000_000_123_456_789),
        ("19440110.0", 19_440_110_000_000_000),
        (1700000000.123456, 1_700_000_000_123_456_000),
        (0, 0),
        (Decimal("1.123456789"), 1_123_456_789),
        (datetime(2024, 5, 10, tzinfo=timezone(timedelta(hours=2))), 1_715_292_000_000_000_000),
    ],
)
def test_one_instant(text: object, expected: int) -> None:
    assert instant(text) == expected
    column = pa.array([text, None, ""]) if isinstance(text, str) else [text, None, ""]
    values, given_, valid = instants(column)
    assert (values[0], given_.tolist(), valid.tolist()) == (expected, [True, False, False], [True, False, False])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "soon",
            "2023-13-01 00:00:00",
            "2023-02-30 00:00:00",
            "2023-11-16 24:00:01",
            "2023-11-16",
            "1e309",
            "NaN",
        ),
        *("Infinity", "1e400", "99999999999999999999", "9999-01-01 00:00:00", "0001-01-01 00:00:00", "1e999999999"),
        *(True, [], {}, float("nan"), float("inf")),
    ],
)
def test_no_instant(text: object) -> None:
    assert instant(text) is None


def test_a_column_with_one_impossible_date_keeps_the_others() -> None:
    values, given_, valid = instants(pa.array(["2023-11-16 18:15:46.5", "2023-02-30 00:00:00", "1970-01-01T00:00:01Z"]))
    assert given_.all()
    assert valid.tolist() == [True, False, True]
    assert values[[0, 2]].tolist() == [1_700_158_546_500_000_000, 1_000_000_000]


@pytest.mark.parametrize(("unit", "expected"), [(Unit.NS, 12), (Unit.US, 12_345), (Unit.MS, 12_345_678), (Unit.S, 0)])
def test_units_shift_the_decimal_point(unit: Unit, expected: int) -> None:
    text = "12.345678"
    if unit is Unit.S:
        expected = 12_345_678_000
    assert instant(text, unit) == expected
    assert instants(pa.array([text]), unit)[0][0] == expected


_NS = st.integers(min_value=-(2**62), max_value=2**62)


@given(_NS, st.integers(min_value=-14 * 60, max_value=14 * 60))
def test_iso_text_round_trips_at_any_offset(moment: int, offset_minutes: int) -> None:
    seconds, rest = divmod(moment, 10**9)
    local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds + 60 * offset_minutes)
    sign = "-" if offset_minutes < 0 else "+"
    hours, minutes = divmod(abs(offset_minutes), 60)
    text = f"{local:%Y-%m-%d %H:%M:%S}.{rest:09d}{sign}{hours:02d}:{minutes:02d}"
    assert instant(text) == moment
    values, _, valid = instants(pa.array([text]))
    assert valid[0]
    assert values[0] == moment


@given(st.lists(st.decimals(min_value=0, max_value=10**9, places=9), max_size=20))
def test_columns_agree_with_single_values(numbers: list[object]) -> None:
    texts = [f"{number:f}" for number in numbers]
    values, _, valid = instants(pa.array(texts, pa.string()), Unit.S)
    assert valid.all()
    assert values.tolist() == [instant(text, Unit.S) for text in texts]


@given(st.integers(min_value=0, max_value=2**62))
def test_format_is_read_back(moment: int) -> None:
    assert instant(format_ns(moment)) == moment


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_parquet_time_stamps_of_any_resolution(unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    values, given_, valid = instants(pa.array([1_715_302_923, None, -5], pa.int64()).cast(kind))
    assert values[[0, 2]].tolist() == [1_715_302_923 * 10 ** Unit[unit.upper()], -5 * 10 ** Unit[unit.upper()]]
    assert given_.tolist() == valid.tolist() == [True, False, True]


def test_parquet_time_stamps_beyond_64_bits_are_no_times() -> None:
    values, given_, valid = instants(pa.array([2**60, 2**33, -(2**63)], pa.int64()).cast(pa.timestamp("s")))
    assert given_.all()
    assert valid.tolist() == [False, True, False]
    assert values[1] == 2**33 * 10**9


def test_offsets_are_seen_only_after_a_time() -> None:
    texts = ["2023-11-16", "2023-11-16 18:15", "2023-11-16 18:15:46.5-08:00", "2023-11-16 18:15:46Z", None]
    assert has_offset(pa.array(texts)).tolist() == [False, False, True, True, False]
