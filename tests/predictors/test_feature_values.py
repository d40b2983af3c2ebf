"""Features by hand, and the memory of lengths against a slow recomputation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Completion, EndReason, Request
from endcast.predictors.features import by_key
from endcast.predictors.features.clock import Clock
from endcast.predictors.features.keyed_lengths import (
    PRIOR_EVENTS,
    PRIOR_REQUESTS,
    SMOOTHING,
    STEP,
    TRUSTED,
    Key,
    KeyedLengths,
    in_steps,
)
from endcast.predictors.features.lengths import (
    STATISTICS,
    LengthMemory,
    RecentLengths,
    interval_table,
    key_of,
    raw_width,
)
from endcast.predictors.features.parameters import Parameters
from endcast.predictors.features.prompt_size import PromptSize, prompt_text
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid

#: Five intervals: (0, 2], (2, 5], (5, 10], (10, 20], (20, 40]; the pooled hazard is 0.1 a token.
GRID = IntervalGrid(np.array([0, 2, 5, 10, 20, 40]), np.log1p(-0.1) * np.arange(41))
NAN = math.nan


def values(group: Any, *requests: Request) -> Float32Array:
    found: Float32Array = group.transform(group.collect(list(requests))).values
    return found


def done(request: Request, tokens: int, end: str = "stop", finished_s: float | None = None) -> Completion:
    return Completion(request=request, output_tokens=tokens, end=EndReason(end), finished_s=finished_s)


# Prompt size


def test_prompt_size() -> None:
    message = {"role": "user", "content": "abc"}
    told = values(
        PromptSize(GRID),
        Request(request_id="a", prompt_tokens=2000, prompt="abc"),
        Request(request_id="b", messages=(message, {"role": "assistant", "content": None}, message)),
        Request(request_id="c"),
    )
    np.testing.assert_allclose(told[0], [math.log(2001), 2.0, math.log(4), 1.0], rtol=1e-6)
    np.testing.assert_allclose(told[1], [NAN, NAN, math.log(9), 3.0], rtol=1e-6)  # "abc\n\nabc"
    assert np.isnan(told[2]).all()


def test_prompt_text() -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "image_url", "image_url": {"url": "u"}}, {"text": "you"}]
    messages = ({"role": "system", "content": "Be brief"}, {"role": "user", "content": parts})
    assert prompt_text(Request(request_id="a", messages=messages, prompt="not this")) == "Be brief\nHello you"
    assert prompt_text(Request(request_id="a")) is None


# Parameters


@pytest.mark.parametrize(
    ("column", "parameters", "value"),
    [
        ("temperature", {"temperature": 0}, 0.0),
        ("temperature", {"temperature": 0.7}, 0.7),
        ("temperature", {"temperature": 99}, 10.0),
        ("temperature", {"temperature": -3}, 0.0),
        ("temperature", {"temperature": True}, NAN),
        ("temperature", {"temperature": "0.7"}, NAN),
        ("temperature", {"temperature": NAN}, NAN),
        ("temperature", {"temperature": math.inf}, NAN),
        ("top_p", {"top_p": 0.9}, 0.9),
        ("repetition_penalty", {"repetition_penalty": 1.1}, 1.1),
        ("choices", {"n": 3}, 3.0),
        ("choices", {"n": 10**400}, 1000.0),
        ("stop_strings", {"stop": "END"}, 1.0),
        ("stop_strings", {"stop": ["a", "b"]}, 2.0),
        ("stop_strings", {"stop": None}, NAN),
        ("log_min_tokens", {"min_tokens": 9}, math.log(10)),
        ("ignore_eos", {"ignore_eos": True}, 1.0),
        ("ignore_eos", {"ignore_eos": 1}, NAN),
        ("tools", {"tools": [{}, {}]}, 2.0),
        ("tool_choice", {"tool_choice": "none"}, 0.0),
        ("tool_choice", {"tool_choice": "auto"}, 1.0),
        ("tool_choice", {"tool_choice": "required"}, 2.0),
        ("tool_choice", {"tool_choice": {"type": "function"}}, 2.0),
        ("tool_choice", {"tool_choice": ["auto"]}, NAN),
        ("response_format", {"response_format": {"type": "text"}}, 0.0),
        ("response_format", {"response_format": {"type": "json_object"}}, 1.0),
        ("response_format", {"response_format": {"type": "json_schema"}}, 2.0),
        ("response_format", {"response_format": {"type": ["json"]}}, NAN),
        ("response_format", {"response_format": "json_object"}, NAN),
        ("thinking", {"enable_thinking": False}, 0.0),
        ("thinking", {"chat_template_kwargs": {"enable_thinking": True}}, 1.0),
        ("thinking", {"reasoning_effort": "high"}, 3.0),
        ("thinking", {"reasoning_effort": {}}, NAN),
        ("thinking", {}, NAN),
    ],
)
def test_parameters(column: str, parameters: dict[str, Any], value: float) -> None:
    group = Parameters(GRID)
    (told,) = values(group, Request(request_id="a", parameters={"seed": 1, **parameters}))
    assert told[group.columns.index(column)] == pytest.approx(value, nan_ok=True)
    others = np.delete(told, group.columns.index(column))
    assert np.isnan(others).all()


def test_the_cap_is_the_smallest_and_is_set_against_each_interval() -> None:
    group = Parameters(GRID)
    request = Request(request_id="a", max_tokens=50, context_limit=130, prompt_tokens=100)
    columns = group.transform(group.collect([request, Request(request_id="b")]))
    assert columns.values[0, 0] == pytest.approx(math.log(31)) and np.isnan(columns.values[1]).all()
    middles = np.log(np.array([1.0, 3.5, 7.5, 15.0, 30.0]) + 0.5)
    np.testing.assert_allclose(columns.intervals[0, :, 0], middles - math.log(31), rtol=1e-5)
    assert np.isnan(columns.intervals[1]).all()


def test_the_clock_is_a_point_on_two_circles() -> None:
    thursday_noon = Request(request_id="a", arrival_s=43_200.0)  # 1970-01-01 was a Thursday
    a_week_later = Request(request_id="b", arrival_s=43_200.0 + 604_800.0)
    told = values(Clock(GRID), thursday_noon, a_week_later, Request(request_id="c"))
    week = 2 * math.pi / 14
    np.testing.assert_allclose(told[0], [0.0, -1.0, math.sin(week), math.cos(week)], atol=1e-6)
    np.testing.assert_allclose(told[1], told[0], atol=1e-6)
    assert np.isnan(told[2]).all()


# Lengths under a key

PUSHES = st.lists(st.tuples(st.integers(1, 10_000), st.booleans()), min_size=1, max_size=60)


@given(pushes=PUSHES, size=st.integers(1, 20))
def test_recent_lengths_equal_their_recomputation(pushes: list[tuple[int, bool]], size: int) -> None:
    recent = RecentLengths(size, interval_table(GRID))
    for tokens, ended in pushes:
        recent.push(tokens, ended)
    kept = pushes[-size:]
    logs = np.log([tokens for tokens, _ in kept])
    row = np.empty(raw_width(GRID), dtype=np.float32)
    recent.write(row)
    np.testing.assert_allclose(row[:2], [len(kept), logs.mean()], rtol=1e-6, atol=1e-7)
    assert row[2] == pytest.approx(logs.std() if len(kept) > 1 else NAN, rel=1e-4, abs=1e-4, nan_ok=True)
    assert row[3] == pytest.approx(logs[-1], abs=1e-6)
    intervals = [min(int(np.searchsorted(GRID.edges, tokens, side="left")), 5) - 1 for tokens, _ in kept]
    events = [k for k, (_, ended) in zip(intervals, kept, strict=True) if ended]
    np.testing.assert_array_equal(row[STATISTICS : STATISTICS + 5], np.bincount(events, minlength=5))
    np.testing.assert_array_equal(row[STATISTICS + 5 :], np.bincount(intervals, minlength=5))


@given(pushes=PUSHES, size=st.integers(1, 5))
def test_what_was_pushed_out_leaves_no_trace(pushes: list[tuple[int, bool]], size: int) -> None:
    """Sums are exact: a long history cannot be told from its last lengths alone."""
    rows = []
    for some in (pushes, pushes[-size:]):
        recent = RecentLengths(size, interval_table(GRID))
        for tokens, ended in some:
            recent.push(tokens, ended)
        rows.append(np.empty(raw_width(GRID), dtype=np.float32))
        recent.write(rows[-1])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_equal_lengths_have_no_spread() -> None:
    recent = RecentLengths(64, interval_table(GRID))
    for _ in range(1000):
        recent.push(7, True)
    row = np.empty(raw_width(GRID), dtype=np.float32)
    recent.write(row)
    assert row[2] == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=60), st.integers(1, 4))
def test_the_key_fed_longest_ago_goes_first(pushes: list[tuple[int, int]], most_keys: int) -> None:
    memory = LengthMemory(3, most_keys, interval_table(GRID))
    slow: dict[int, list[int]] = {}
    for key, tokens in pushes:
        memory.push(key, tokens, True)
        if key not in slow and len(slow) == most_keys:
            del slow[next(iter(slow))]
        slow[key] = [*slow.pop(key, []), tokens][-3:]
    assert len(memory) == len(slow) <= most_keys
    assert list(memory.items()) == list(slow.items())
    assert memory.get(11) is None


def test_keys_are_the_same_in_every_process() -> None:
    assert key_of("tenant", 3) == 0x3D3005E7D64A746  # BLAKE2b of "tenant\x1f3", its first 60 bits
    assert key_of("a", None) is None and key_of("a", "b") != key_of("b", "a")
    assert 0 <= (key_of("\ud800") or -1) < 1 << 60


def group_of(key: Key, *lengths: tuple[Request, int, str]) -> KeyedLengths:
    group = KeyedLengths(GRID, key)
    for request, tokens, end in lengths:
        group.observe(done(request, tokens, end))
    return group


TENANT = partial(Request, request_id="r")


def test_keyed_lengths_against_loops() -> None:
    """Three ends and a cap of one tenant: counts, shrunk log-odds, smoothed hazard ratios, interval by interval."""
    t = TENANT(tenant="t")
    group = group_of(
        Key("tenant", lambda r: key_of(r.tenant), 10, ("tenant",)),
        (t, 1, "stop"),
        (t, 4, "stop"),
        (TENANT(tenant="other"), 2, "stop"),
        (t, 4, "length"),
        (t, 30, "stop"),
    )
    columns = group.transform(group.collect([t]))
    logs = np.log([1, 4, 4, 30])
    told = in_steps(np.array([math.log(5), logs.mean(), logs.std(), math.log(30)], dtype=np.float32))
    np.testing.assert_array_equal(columns.values[0], told)
    events, requests = [1, 1, 0, 0, 1], [1, 2, 0, 0, 1]
    pooled = 1.0 - 0.9 ** np.array([2, 3, 5, 10, 20])
    at_risk = [sum(requests[k:]) for k in range(5)]
    for k in range(5):
        own = (events[k] + PRIOR_REQUESTS * pooled[k]) / (at_risk[k] + PRIOR_REQUESTS)
        odds = math.log(own / (1 - own)) - math.log(pooled[k] / (1 - pooled[k]))
        near = range(max(k - SMOOTHING, 0), min(k + SMOOTHING + 1, 5))
        came, expected = sum(events[i] for i in near), sum(at_risk[i] * pooled[i] for i in near)
        ratio = math.log((came + PRIOR_EVENTS) / (expected + PRIOR_EVENTS))
        middle = math.log((GRID.edges[k] + GRID.edges[k + 1]) / 2 + 0.5)
        expected_row = [odds, ratio, math.log1p(at_risk[k]), middle - logs.mean(), middle - math.log(30)]
        told = columns.intervals[0, k]
        np.testing.assert_allclose(told, in_steps(np.array(expected_row, dtype=np.float32)), atol=1e-6)


def test_a_state_is_told_in_steps_and_many_requests_as_enough() -> None:
    """Neither the exact mean nor how many hundreds there were may name the moment."""
    t, few = TENANT(tenant="t"), TENANT(tenant="few")
    key = Key("tenant", lambda r: key_of(r.tenant), 100, ("tenant",))
    group = group_of(key, *[(t, 20 + i % 3, "stop") for i in range(80)], *[(few, 20, "stop")] * int(TRUSTED))
    columns = group.transform(group.collect([t, few]))
    assert columns.values[0, 0] == columns.values[1, 0]
    for numbers in (columns.values, columns.intervals):
        steps = numbers / STEP
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_a_request_without_the_key_is_not_filed() -> None:
    group = group_of(Key("tenant", lambda r: key_of(r.tenant), 10), (TENANT(), 5, "stop"))
    assert group.dump() == [] and not group.knows(TENANT()) and not group.knows(TENANT(tenant="t"))


@pytest.mark.parametrize(
    ("sizes", "count", "last"),
    [
        ([100], 1, 10),
        ([100, 105], 2, 10),  # the next cell: neighbours are counted, the last length is the own size's
        ([95, 100], 2, 11),
        ([95, 100, 105], 3, 11),
        ([95, 105], 2, 10),
        ([95], 1, 10),
        ([70], 0, None),  # too far
        ([100, 100], 2, 11),
    ],
)
def test_near_sizes_are_counted_together(sizes: list[int], count: int, last: int | None) -> None:
    group = by_key.near_size(GRID)
    for i, size in enumerate(sizes):
        group.observe(done(TENANT(prompt_tokens=size), 10 + i))
    (told,) = group.collect([TENANT(prompt_tokens=100)])  # exact numbers; columns tell them in steps
    assert told[0] == count
    lengths = np.log(np.arange(10, 10 + len(sizes)))
    if last is None:
        assert np.isnan(told[1:STATISTICS]).all()
        return
    assert told[1] == pytest.approx(lengths.mean(), rel=1e-5)
    assert told[2] == pytest.approx(lengths.std() if len(sizes) > 1 else NAN, rel=1e-3, nan_ok=True)
    assert told[3] == pytest.approx(math.log(last), rel=1e-5)


@pytest.mark.parametrize(
    ("group", "same", "other"),
    [
        (by_key.same_size, {"prompt_tokens": 9}, {"prompt_tokens": 10}),
        (by_key.model, {"model": "m"}, {"model": "M"}),
        (by_key.tenant, {"tenant": "t"}, {"tenant": "u"}),
        (by_key.tenant_model, {"tenant": "t", "model": "m"}, {"tenant": "t", "model": "n"}),
        (by_key.tenant_model, {"tenant": "t", "model": "m"}, {"tenant": "t"}),
        (by_key.same_prompt, {"prompt": "p"}, {"prompt": "p "}),
        (by_key.same_prefix, {"prefix_blocks": (1, 2)}, {"prefix_blocks": (2, 1)}),
        (by_key.same_prefix, {"prefix_blocks": (1, 2)}, {"prefix_blocks": (1,)}),
    ],
)
def test_what_requests_have_in_common(group: Any, same: dict[str, Any], other: dict[str, Any]) -> None:
    made = group(GRID)
    made.observe(done(TENANT(arrival_s=3.0, **same), 7))
    assert made.knows(TENANT(**same)) and not made.knows(TENANT(**other))
    told = values(made, TENANT(**same), TENANT(**other))
    assert told[0, 0] == pytest.approx(math.log(2), abs=STEP / 2) and told[1, 0] == 0.0


def test_a_key_remembers_its_latest_lengths_only() -> None:
    model = by_key.model(GRID)
    for i in range(500):
        model.observe(done(TENANT(tenant=str(i), model="m"), 2 if i < 100 else 30))
    told = model.collect([TENANT(model="m")])[0, :STATISTICS]
    np.testing.assert_allclose(told, [400, math.log(30), 0.0, math.log(30)], rtol=1e-5)
