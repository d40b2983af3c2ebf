"""The pairs of request and elapsed tokens that accuracy is measured over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import InputError
from endcast.datasets.trace import Trace
from endcast.errors import TrainingError
from endcast.training import population
from endcast.training.population import TIME_BLOCKS, clusters, draw_pairs, measurable
from endcast.training.replay import prompt_groups

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=20).map(np.array)

Rows = Callable[[Sequence[Mapping[str, object]]], Trace]


@given(LENGTHS, st.sampled_from(["decode_steps", "checkpoints"]))
def test_a_pair_is_a_running_request(lengths: np.ndarray, name: str) -> None:
    pairs = draw_pairs(lengths, name, np.random.default_rng(0))
    assert (pairs.elapsed >= 0).all() and (pairs.remaining >= 1).all()
    assert (pairs.elapsed + pairs.remaining == lengths[pairs.request]).all()


@given(LENGTHS)
def test_few_steps_are_all_taken(lengths: np.ndarray) -> None:
    """Each decode step of each request once: requests in proportion to their length, elapsed uniform within each."""
    pairs = draw_pairs(lengths, "decode_steps", np.random.default_rng(0))
    steps = [(i, e) for i, length in enumerate(lengths.tolist()) for e in range(length)]
    assert list(zip(pairs.request.tolist(), pairs.elapsed.tolist(), strict=True)) == steps


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=10).map(np.array))
def test_checkpoints_come_every_32_tokens_below_4096(lengths: np.ndarray) -> None:
    pairs = draw_pairs(lengths, "checkpoints", np.random.default_rng(0))
    steps = [(i, e) for i, length in enumerate(lengths.tolist()) for e in range(0, min(length, 4096), 32)]
    assert list(zip(pairs.request.tolist(), pairs.elapsed.tolist(), strict=True)) == steps


def test_of_many_steps_some_are_drawn_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "MOST_DRAWS", 60_000)
    lengths = np.array([100, 100_000, 300_000, 1])
    pairs = draw_pairs(lengths, "decode_steps", np.random.default_rng(0))
    share = np.bincount(pairs.request, minlength=4) / 60_000
    assert len(pairs.request) == 60_000
    np.testing.assert_allclose(share, lengths / lengths.sum(), atol=0.008)
    within = pairs.elapsed[pairs.request == 2] / 300_000
    np.testing.assert_allclose(np.quantile(within, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.01)
    again = draw_pairs(lengths, "decode_steps", np.random.default_rng(0))
    assert (again.request == pairs.request).all() and (again.elapsed == pairs.elapsed).all()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=3, max_size=60).map(np.array))
def test_a_router_meets_long_requests_more_often(lengths: np.ndarray) -> None:
    """Length bias: the mean length met is Σo²/Σo, and the mean remaining is half of that and a half."""
    pairs = draw_pairs(lengths, "decode_steps", np.random.default_rng(0))
    met = lengths[pairs.request].mean()
    assert met == pytest.approx((lengths**2).sum() / lengths.sum())
    assert met >= lengths.mean() - 1e-9 and pairs.remaining.mean() == pytest.approx((met + 1) / 2)


def test_a_population_must_be_known() -> None:
    with pytest.raises(InputError, match="decode_steps, checkpoints"):
        draw_pairs(np.array([3]), "requests", np.random.default_rng(0))


ENDS: list[tuple[dict[str, object], bool]] = [
    ({"end": "stop"}, True),
    ({"end": "stop", "max_tokens": 7}, True),
    ({"end": "length", "max_tokens": 7}, True),  # at a cap that was known
    ({"end": "length", "max_tokens": 9, "context_limit": 12, "prompt_tokens": 5}, True),
    ({"end": "length"}, False),  # at a cap that nobody told
    ({"end": "length", "max_tokens": 9}, False),  # not there
    ({"end": "abort"}, False),
    ({"end": "error"}, False),
    ({"end": "unfinished", "max_tokens": 7}, False),
    ({"end": "stop", "output_tokens": 0}, False),
]


def test_only_ends_that_could_be_forecast_are_measured(trace_of: Rows) -> None:
    trace = trace_of([{"request_id": str(i), "output_tokens": 7, **row} for i, (row, _) in enumerate(ENDS)])
    assert measurable(trace, np.arange(len(trace))).tolist() == [measured for _, measured in ENDS]
    assert measurable(trace, np.array([9, 0])).tolist() == [False, True]
    with pytest.raises(TrainingError, match="Nothing to measure"):
        measurable(trace, np.array([4, 5]))


def test_clusters_are_prompts_sessions_or_stretches_of_time(trace_of: Rows) -> None:
    rows: list[dict[str, object]] = [
        {"request_id": str(i), "output_tokens": 5, "end": "stop", "arrival_ns": i * 10**9, "session": f"s{i % 3}"}
        for i in range(12)
    ]
    named = trace_of(rows)
    some = np.array([1, 2, 4, 9])
    sessions = clusters(named, some, None)
    assert sessions[0] == sessions[2] and len(set(sessions.tolist())) == 3
    unnamed = trace_of([{**row, "session": None if i == 5 else row["session"]} for i, row in enumerate(rows)])
    times = clusters(unnamed, np.arange(12), None)
    assert (np.diff(times) > 0).all() and times[0] == 0 and times[-1] == TIME_BLOCKS - 1
    prompts = trace_of(
        [{"request_id": str(i), "prompt": p, "output_tokens": 5, "end": "stop"} for i, p in enumerate("aba")]
    )
    by_prompt = clusters(prompts, np.arange(3), prompt_groups(prompts))
    assert by_prompt.tolist() == [0, 1, 0]
