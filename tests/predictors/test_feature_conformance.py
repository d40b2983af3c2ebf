"""One suite for every registered feature group: by being registered, it goes through all of this."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast import BundleError, Completion, EndReason, Request
from endcast.datasets.synth import SynthLog
from endcast.predictors.features import FEATURES
from endcast.predictors.features.pipeline import LIMIT, FeaturePipeline, join
from endcast.predictors.features.protocol import Columns, FeatureGroup, Float32Array
from endcast.predictors.grid import IntervalGrid

TINY = IntervalGrid(np.array([0, 1]), np.array([0.0, -1.0]))
WITH_INPUTS = [name for name in FEATURES if FEATURES.get(name)(TINY).inputs]
WITH_MEMORY = [name for name in FEATURES if FEATURES.get(name)(TINY).stateful]
FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def grid(small_log: SynthLog) -> IntervalGrid:
    trace = small_log.trace
    some = trace.output_tokens > 0
    return IntervalGrid.fit(trace.output_tokens[some], trace.is_event[some], 20)


@pytest.fixture(scope="module")
def completions(small_log: SynthLog) -> list[Completion]:
    return list(small_log.trace.completions())


@pytest.fixture(scope="module")
def requests(completions: list[Completion], odd_requests: tuple[Request, ...]) -> list[Request]:
    return [completion.request for completion in completions[500:560]] + list(odd_requests)


@pytest.fixture(scope="module", params=list(FEATURES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fed(name: str, grid: IntervalGrid, completions: Sequence[Completion]) -> FeatureGroup:
    """A group that has seen these completions."""
    group = FEATURES.get(name)(grid)
    for completion in completions:
        group.observe(completion)
    return group


@pytest.fixture(scope="module")
def group(name: str, grid: IntervalGrid, completions: list[Completion]) -> FeatureGroup:
    """Each registered group after 500 completions; nobody feeds it more."""
    return fed(name, grid, completions[:500])


def columns_of(group: FeatureGroup, requests: Sequence[Request]) -> Columns:
    return group.transform(group.collect(requests))


def assert_same(left: Columns, right: Columns) -> None:
    np.testing.assert_array_equal(left.values, right.values)
    np.testing.assert_array_equal(left.intervals, right.intervals)


def test_it_says_what_it_is(name: str, group: FeatureGroup) -> None:
    assert group.name == name
    columns = (*group.columns, *group.interval_columns)
    assert columns and len(set(columns)) == len(columns)
    assert set(group.inputs) <= set(Request.__struct_fields__)
    assert group.stateful == (group.dump() is not None)


def test_shapes_and_types(group: FeatureGroup, grid: IntervalGrid, requests: list[Request]) -> None:
    for asked in (requests, requests[:1], []):
        raw = group.collect(asked)
        assert raw.dtype == np.float32 and raw.shape == (len(asked), raw.shape[1])
        columns = group.transform(raw)
        assert columns.values.dtype == columns.intervals.dtype == np.float32
        assert columns.values.shape == (len(asked), len(group.columns))
        assert columns.intervals.shape == (len(asked), len(grid), len(group.interval_columns))


def test_unknown_is_nan_and_nothing_is_infinite(group: FeatureGroup, requests: list[Request]) -> None:
    columns = columns_of(group, requests)
    for numbers in (columns.values, columns.intervals):
        assert not np.isinf(numbers).any()
        assert (np.abs(numbers[~np.isnan(numbers)]) <= LIMIT).all()


@pytest.mark.parametrize("name", WITH_INPUTS)
def test_without_its_inputs_it_knows_nothing(name: str, grid: IntervalGrid, completions: list[Completion]) -> None:
    """What it says of a request without any of its inputs is what it said before it had seen anything."""
    group = fed(name, grid, completions[:200])
    bare = [Request(request_id="bare", arrival_s=None if "arrival_s" in group.inputs else 5.0)]
    columns = columns_of(group, bare)
    assert_same(columns, columns_of(FEATURES.get(name)(grid), bare))
    told = columns.values[~np.isnan(columns.values)]
    assert (told == 0.0).all()  # a count of nothing, at most


@FEW
@given(data=st.data())
def test_no_row_depends_on_another(group: FeatureGroup, requests: list[Request], data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, len(requests) - 1), min_size=1, max_size=12))
    raw = group.collect(requests)
    np.testing.assert_array_equal(group.collect([requests[i] for i in some]), raw[some])
    whole = group.transform(raw)
    assert_same(group.transform(raw[some]), Columns(whole.values[some], whole.intervals[some]))


def test_collecting_and_transforming_change_nothing(group: FeatureGroup, requests: list[Request]) -> None:
    before = group.dump()
    raw = group.collect(requests)
    kept = raw.copy()
    group.transform(raw)
    np.testing.assert_array_equal(raw, kept)
    assert group.dump() == before


TEXT = "List ten facts about Łódź.\nKeep it short — 用中文"


def shapes(**known: object) -> list[Request]:
    """The same prompt as a string, as a message, and as content parts (CASES 5)."""
    contents = (TEXT, [{"type": "text", "text": TEXT}], ({"type": "text", "text": TEXT[:9]}, {"text": TEXT[9:]}))
    asked = [Request(request_id="string", prompt=TEXT, **known)]  # type: ignore[arg-type]
    for content in contents:
        message = {"role": "user", "content": content}
        asked.append(Request(request_id="message", messages=(message,), **known))  # type: ignore[arg-type]
    return asked


@pytest.mark.parametrize("taught", range(4))
def test_the_shape_of_a_prompt_does_not_matter(name: str, grid: IntervalGrid, taught: int) -> None:
    """Whatever shape it was learned in, whatever shape is asked for."""
    lesson = [Completion(request=shapes(tenant="t")[taught], output_tokens=n) for n in (50, 60)]
    group = fed(name, grid, lesson)
    columns = columns_of(group, shapes(tenant="t", arrival_s=7.0))
    for row in (1, 2, 3):
        np.testing.assert_array_equal(columns.values[row], columns.values[0])
        np.testing.assert_array_equal(columns.intervals[row], columns.intervals[0])


@FEW
@given(cut=st.integers(0, 120))
def test_a_dumped_memory_goes_on_as_the_original(
    name: str, grid: IntervalGrid, completions: list[Completion], requests: list[Request], cut: int
) -> None:
    """Through the bytes that bundles and snapshots hold, exactly."""
    one, other = fed(name, grid, completions[:cut]), FEATURES.get(name)(grid)
    other.load(msgspec.msgpack.decode(msgspec.msgpack.encode(one.dump())))
    for completion in completions[cut:140]:
        one.observe(completion)
        other.observe(completion)
    assert msgspec.msgpack.encode(one.dump()) == msgspec.msgpack.encode(other.dump())
    assert_same(columns_of(one, requests), columns_of(other, requests))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=3) | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@FEW
@given(memory=PLAIN | st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(-5, 5)))))
def test_a_damaged_memory_is_refused(name: str, grid: IntervalGrid, memory: object) -> None:
    group = FEATURES.get(name)(grid)
    try:
        group.load(memory)
    except BundleError as error:
        assert name in str(error)
        return
    columns = columns_of(group, [Request(request_id="a", prompt_tokens=3, prefix_blocks=(1,))])
    assert not np.isinf(columns.values).any()


@pytest.mark.parametrize(
    ("tokens", "end"),
    [(0, EndReason.STOP), (0, EndReason.LENGTH), *((9, e) for e in EndReason if e not in ("stop", "length"))],
)
def test_aborted_failed_and_empty_ends_teach_nothing(
    group: FeatureGroup, completions: list[Completion], tokens: int, end: EndReason
) -> None:
    before = msgspec.msgpack.encode(group.dump())
    for completion in completions[500:510]:
        group.observe(Completion(request=completion.request, output_tokens=tokens, end=end, finished_s=1e9))
    assert msgspec.msgpack.encode(group.dump()) == before


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_what_ended_teaches(name: str, grid: IntervalGrid) -> None:
    """The same request again: every group that remembers knows it now, and tells a short answer from a long one."""
    request = shapes(model="m", tenant="t", session="s", prompt_tokens=77, prefix_blocks=(1, 2, 3), arrival_s=100.0)[0]
    told: list[Float32Array] = []
    for tokens in (3, 300):
        group = FEATURES.get(name)(grid)
        nothing = columns_of(group, [request])
        group.observe(Completion(request=request, output_tokens=tokens, finished_s=50.0))
        columns = columns_of(group, [request])
        assert not np.array_equal(columns.values, nothing.values, equal_nan=True)
        told.append(join(columns))
    assert not np.array_equal(told[0], told[1], equal_nan=True)


def test_a_pipeline_is_its_groups_side_by_side(
    grid: IntervalGrid, completions: list[Completion], requests: list[Request]
) -> None:
    pipeline = FeaturePipeline(list(FEATURES), grid)
    pipeline.observe(completions[:200])
    assert pipeline.observed == 200 and pipeline.names == tuple(FEATURES)
    whole = pipeline.features(requests)
    assert whole.shape == (len(requests), pipeline.width) and whole.dtype == np.float32
    columns = pipeline.transform(pipeline.collect(requests))
    at = wide = 0
    for name in FEATURES:
        alone = columns_of(fed(name, grid, completions[:200]), requests)
        f, c = alone.values.shape[1], alone.intervals.shape[2]
        assert pipeline.columns[at : at + f] == tuple(f"{name}.{column}" for column in FEATURES.get(name)(grid).columns)
        np.testing.assert_array_equal(columns.values[:, at : at + f], alone.values)
        np.testing.assert_array_equal(columns.intervals[:, :, wide : wide + c], alone.intervals)
        at, wide = at + f, wide + c
    assert (at, wide) == (len(pipeline.columns), len(pipeline.interval_columns))
    np.testing.assert_array_equal(join(columns), whole)


def test_a_pipeline_without_groups_gives_empty_vectors(grid: IntervalGrid) -> None:
    pipeline = FeaturePipeline([], grid)
    assert pipeline.features([Request(request_id="a"), Request(request_id="b")]).shape == (2, 0)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"observed": 3, "groups": {}})])
def test_a_pipeline_refuses_a_memory_that_is_not_its_own(grid: IntervalGrid, damage: bytes) -> None:
    with pytest.raises(BundleError, match="memory of finished requests"):
        FeaturePipeline(["model", "prompt_size"], grid).load(damage)
