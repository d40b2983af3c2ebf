"""Arrivals for logs that tell none, flags that suppose a length, and workloads made from traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from endcast.datasets.schema import SCHEMA
from endcast.datasets.trace import Trace
from endcast.errors import SimulationError
from endcast.router.arrivals import borrowed_arrivals, poisson_arrivals
from endcast.router.forecasts import kaplan_meier_of_log
from endcast.router.length_class import LONG, SHORT, UNKNOWN_LENGTH, supposed_tokens
from endcast.router.scale import stretched
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.workload import Workload


def test_poisson_arrivals() -> None:
    times = poisson_arrivals(20_000, np.random.default_rng(0))
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() == pytest.approx(1.0, rel=0.03)
    assert np.mean(gaps > 1.0) == pytest.approx(np.exp(-1), abs=0.01)
    assert len(poisson_arrivals(1, np.random.default_rng(0))) == 1


def test_borrowed_arrivals_are_repeated_or_cut() -> None:
    other = np.array([12.0, 10.0, 16.0])
    assert borrowed_arrivals(2, other).tolist() == [0.0, 2.0]
    assert borrowed_arrivals(7, other).tolist() == [0.0, 2.0, 6.0, 9.0, 11.0, 15.0, 18.0]
    with pytest.raises(SimulationError, match="no pattern of arrivals"):
        borrowed_arrivals(3, np.array([1.0]))


def test_arrivals_at_one_instant_cannot_be_stretched() -> None:
    assert stretched(np.array([5.0]), 1.0).tolist() == [0.0]
    with pytest.raises(SimulationError, match="same instant"):
        stretched(np.array([5.0, 5.0]), 1.0)


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [
        ({}, UNKNOWN_LENGTH),
        ({"max_tokens": 5}, UNKNOWN_LENGTH),
        ({"tools": [{"type": "function"}]}, SHORT),
        ({"tools": []}, UNKNOWN_LENGTH),
        ({"chat_template_kwargs": {"enable_thinking": True}, "tools": [1]}, LONG),
        ({"chat_template_kwargs": {"enable_thinking": False}}, UNKNOWN_LENGTH),
        ({"chat_template_kwargs": {"thinking": True}}, LONG),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, LONG),
        ({"thinking": {"type": "disabled"}}, UNKNOWN_LENGTH),
        ({"enable_thinking": True}, LONG),
        ({"reasoning_effort": "low"}, LONG),
        ({"reasoning_effort": "none"}, UNKNOWN_LENGTH),
        ({"reasoning": {"effort": "high"}}, LONG),
    ],
)
def test_lengths_supposed_from_flags(parameters: dict[str, Any], tokens: int) -> None:
    assert supposed_tokens(parameters) == tokens


def trace(rows: list[dict[str, Any]]) -> Trace:
    filled = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    for i, row in enumerate(filled):
        row["request_id"], row["end"] = str(i), row["end"] or "stop"
    return Trace(pa.Table.from_pylist(filled, schema=SCHEMA))


def test_a_workload_keeps_the_rows_of_its_trace() -> None:
    log = trace(
        [
            {"arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 0},
            {"arrival_ns": 1_000_000_000, "prompt_tokens": 6, "output_tokens": 3, "prefix_blocks": [4, 5]},
            {"arrival_ns": 1_500_000_000, "prompt_tokens": None, "output_tokens": 3},
            {"arrival_ns": 2_000_000_000, "prompt_tokens": 7, "output_tokens": 4, "parameters": '{"tools": [1]}'},
        ]
    )
    load = Workload.from_trace(log)
    assert load.row.tolist() == [1, 3]
    assert load.arrival_s.tolist() == [1.0, 2.0]
    assert (load.prompt.tolist(), load.output.tolist()) == ([6, 7], [3, 4])
    assert load.supposed.tolist() == [UNKNOWN_LENGTH, SHORT]
    assert [blocks.tolist() for blocks in load.prefix_blocks] == [[4, 5], []]
    assert load.left_out == {"no output": 1, "unknown prompt": 1}
    later = Workload.from_trace(log, arrival_s=np.array([9.0, 8.0, 7.0, 6.0]))
    assert later.row.tolist() == [3, 1]
    assert [blocks.tolist() for blocks in later.prefix_blocks] == [[], [4, 5]]
    report = simulate(load, SimulationSettings(workers=2, slots=1), policies=["prefix_affinity", "length_bucket"])
    assert len(report.results) == 2


def test_kaplan_meier_of_a_log_knows_why_requests_ended() -> None:
    """Ended at 2 and left at 4; the one cut at its cap of 3 and the one still running after 9 are censored."""
    rows = [(2, "stop", None), (4, "abort", None), (3, "length", 3), (9, "unfinished", None)]
    log = trace(
        [
            {"arrival_ns": i, "prompt_tokens": 5, "output_tokens": o, "end": end, "max_tokens": cap}
            for i, (o, end, cap) in enumerate(rows)
        ]
    )
    batch = kaplan_meier_of_log(log).curves(np.arange(4), np.zeros(4, dtype=np.int64))
    assert batch.survival_at(2).tolist() == pytest.approx([0.75] * 4)
    assert batch.survival_at(3).tolist() == pytest.approx([0.75, 0.75, 0.0, 0.75])
    assert batch.survival_at(4).tolist() == pytest.approx([0.375, 0.375, 0.0, 0.375])


def test_a_log_without_prefix_blocks_has_none() -> None:
    load = Workload.from_trace(trace([{"arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 1}]))
    assert load.prefix_blocks == ()


def test_arrivals_must_be_in_order_and_finite() -> None:
    load = Workload.from_arrays(arrival_s=np.arange(2.0), prompt=np.ones(2, dtype=int), output=np.ones(2, dtype=int))
    for wrong in ([1.0, 0.0], [0.0, np.inf], [np.nan, 1.0]):
        with pytest.raises(SimulationError, match="order of arrival"):
            load.at(np.array(wrong))
