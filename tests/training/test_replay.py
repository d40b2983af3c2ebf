"""A log lived through again: nobody sees what had not finished when they came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.predictors.features import FEATURES
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.grid import IntervalGrid
from endcast.training.replay import CHUNK, events, prompt_groups, replay

START_NS = 1_700_000_000 * 10**9

Rows = Callable[[Sequence[Mapping[str, object]]], Trace]


@pytest.fixture(scope="module")
def busy() -> Trace:
    """150 requests in an hour, all with the time of their end: sessions, shared prefixes, many at once."""
    trace = synthesize(SynthSettings(requests=150, seed=11, text=True, hours=1.0)).trace
    ends = trace.arrival_ns.min() + (trace.finished_s * 1e9).astype(np.int64)
    table = trace.table
    return Trace(table.set_column(table.schema.get_field_index("finished_ns"), SCHEMA.field("finished_ns"), [ends]))


@pytest.fixture(scope="module")
def grid(busy: Trace) -> IntervalGrid:
    some = busy.output_tokens > 0
    return IntervalGrid.fit(busy.output_tokens[some], busy.is_event[some], 12)


def features_of(trace: Trace, request_id: str, grid: IntervalGrid) -> list[np.ndarray]:
    """Raw numbers of one request, from all registered groups."""
    wanted = np.array(trace.table.column("request_id").to_pylist()) == request_id
    rows, raw = replay(trace, FeaturePipeline(list(FEATURES), grid), wanted)
    assert rows.tolist() == np.flatnonzero(wanted).tolist()
    return list(raw)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_feature_sees_what_has_not_finished(
    busy: Trace, grid: IntervalGrid, data: st.DataObject, trace_of: Rows
) -> None:
    """Requests that had not finished when this one came are removed, or turn out otherwise: nothing changes."""
    at = data.draw(st.integers(1, len(busy) - 1), label="request")
    rows = busy.table.to_pylist()
    arrival = rows[at]["arrival_ns"]
    hidden = [i for i, row in enumerate(rows) if row["finished_ns"] > arrival and i != at]
    removed = set(data.draw(st.lists(st.sampled_from(hidden), max_size=9), label="removed") if hidden else [])
    for i in data.draw(st.sets(st.sampled_from([*hidden, at]), max_size=9), label="changed"):
        rows[i]["output_tokens"] = rows[i]["output_tokens"] * 3 + 1
        rows[i]["end"] = "length" if rows[i]["end"] == "stop" else "stop"
        if i != at:
            rows[i]["tenant"] = rows[at]["tenant"]
            rows[i]["session"] = rows[at]["session"]
            rows[i]["prompt_tokens"] = rows[at]["prompt_tokens"]
    changed = trace_of([row for i, row in enumerate(rows) if i not in removed])
    before, after = (features_of(trace, rows[at]["request_id"], grid) for trace in (busy, changed))
    for left, right in zip(before, after, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_features_do_see_what_has_finished(busy: Trace, grid: IntervalGrid, trace_of: Rows) -> None:
    """The same change to a request that had finished shows: the test above can fail."""
    rows = busy.table.to_pylist()
    at = len(rows) - 1
    done = max(
        i for i, row in enumerate(rows[:at]) if row["finished_ns"] <= rows[at]["arrival_ns"] and row["end"] == "stop"
    )
    before = features_of(busy, rows[at]["request_id"], grid)
    rows[done]["output_tokens"] = rows[done]["output_tokens"] * 3 + 1
    after = features_of(trace_of(rows), rows[at]["request_id"], grid)
    assert any(not np.array_equal(left, right, equal_nan=True) for left, right in zip(before, after, strict=True))


TIMES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=15)


@given(times=TIMES)
def test_events_come_in_the_order_in_which_they_happened(times: list[tuple[int, int]], trace_of: Rows) -> None:
    """Rows may be in any order; an end at an arrival's instant comes first; everything ends at last."""
    second = 10**9
    trace = trace_of(
        [
            {
                "request_id": str(i),
                "arrival_ns": START_NS + arrival * second,
                "finished_ns": START_NS + (arrival + service) * second,
                "output_tokens": i + 1,
                "end": "stop",
            }
            for i, (arrival, service) in enumerate(times)
        ]
    )
    happened = list(events(trace))
    arrived = [event.row for event in happened if event.kind == "arrives"]
    assert [times[row][0] for row in arrived] == sorted(arrival for arrival, _ in times)
    finished: set[int] = set()
    seen: set[int] = set()
    for event in happened:
        assert event.request.request_id == str(event.row)
        if event.completion is not None:
            assert event.kind == "finishes" and event.row in seen and event.row not in finished
            assert event.completion.output_tokens == event.row + 1
            finished.add(event.row)
        else:
            now = times[event.row][0]
            assert finished == {row for row in seen if sum(times[row]) <= now}
            seen.add(event.row)
    assert finished == seen == set(range(len(times)))


def test_where_no_end_is_told_it_is_supposed(trace_of: Rows) -> None:
    """0.2 s, 1 s for each 10,000 prompt tokens, 0.03 s a token: the first ends 3.3 s after its arrival."""
    first = {"request_id": "a", "arrival_ns": 0, "prompt_tokens": 1_000, "output_tokens": 100, "end": "stop"}
    for milliseconds, seen in ((3_299, False), (3_300, True)):
        second = {
            "request_id": "b",
            "arrival_ns": milliseconds * 10**6,
            "output_tokens": 1,
            "end": "stop",
            "model": "m",
        }
        order = [(event.kind, event.row) for event in events(trace_of([first, second]))]
        assert (order.index(("finishes", 0)) < order.index(("arrives", 1))) == seen


PROMPTS = ["a", "b", None, "a", "c", "b", None, "a"]


@given(seed=st.integers(0, 1000))
def test_without_arrivals_no_request_sees_an_answer_to_its_own_prompt(seed: int, trace_of: Rows) -> None:
    rows = [
        {"request_id": str(i), "prompt": prompt, "output_tokens": 5, "end": "stop"} for i, prompt in enumerate(PROMPTS)
    ]
    trace = trace_of(rows)
    assert prompt_groups(trace).tolist() == [0, 1, 2, 0, 3, 1, 4, 0]
    finished: list[int] = []
    for event in events(trace, seed):
        if event.kind == "finishes":
            finished.append(event.row)
        else:
            own = {i for i, prompt in enumerate(PROMPTS) if prompt == PROMPTS[event.row] and prompt is not None}
            assert not own & set(finished)
    assert sorted(finished) == list(range(len(PROMPTS)))


def test_without_arrivals_the_seed_chooses_the_order(trace_of: Rows) -> None:
    trace = trace_of([{"request_id": str(i), "prompt": str(i), "output_tokens": 5, "end": "stop"} for i in range(30)])

    def order(seed: int) -> list[tuple[str, int]]:
        return [(event.kind, event.row) for event in events(trace, seed)]

    assert order(1) == order(1) != order(2)


def test_replay_collects_what_is_wanted_and_remembers_everything(busy: Trace, grid: IntervalGrid) -> None:
    wanted = np.zeros(len(busy), dtype=bool)
    wanted[[3, 70, 149]] = True
    pipeline = FeaturePipeline(list(FEATURES), grid)
    told: list[int] = []
    rows, raw = replay(busy, pipeline, wanted, advance=told.append)
    assert rows.tolist() == [3, 70, 149] and all(len(part) == 3 for part in raw)
    assert pipeline.observed == sum(told) == len(busy)
    by_hand = FeaturePipeline(list(FEATURES), grid)
    requests = {event.row: event.request for event in events(busy)}
    by_hand.observe([event.completion for event in events(busy) if event.completion is not None])
    asked = [requests[row] for row in (3, 70, 149)]
    np.testing.assert_array_equal(by_hand.features(asked), pipeline.features(asked))


def test_nothing_wanted_nothing_collected(busy: Trace, grid: IntervalGrid) -> None:
    rows, raw = replay(busy, FeaturePipeline(["model"], grid), np.zeros(len(busy), dtype=bool))
    assert len(rows) == 0 and list(raw) == []


def test_rows_stay_together_over_chunks(grid: IntervalGrid, trace_of: Rows) -> None:
    """Stateless groups are collected a chunk at a time, the others one by one: row i is the same request in both."""
    n = CHUNK + 7
    rows = [
        {
            "request_id": str(i),
            "arrival_ns": i * 10**9,
            "prompt_tokens": i,
            "output_tokens": 1,
            "end": "stop",
            "model": "m",
        }
        for i in range(n)
    ]
    _, (sizes, of_model) = replay(
        trace_of(rows), FeaturePipeline(["prompt_size", "model"], grid), np.ones(n, dtype=bool)
    )
    np.testing.assert_allclose(sizes[:, 0], np.log1p(np.arange(n)), rtol=1e-6)
    np.testing.assert_array_equal(of_model[:5, 0], [0, 1, 2, 3, 4])  # each ends before the next one comes
