"""Training: which rows and groups it uses, what it refuses, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import EndcastError, InputError, Landmark
from endcast.datasets.person_period import rows_each
from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth import SynthLog
from endcast.datasets.trace import Trace
from endcast.errors import TrainingError, UnknownNameError
from endcast.predictors.features import FEATURES
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models import MODELS
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.training import export as export_module
from endcast.training.crossfit import crossfit
from endcast.training.replay import prompt_groups
from endcast.training.select import ORDERED_GROUPS, active_groups, drawn_rows, split_trace, usable, validation_part
from endcast.training.train import Settings, Trained, train

Rows = Callable[[Sequence[Mapping[str, object]]], Trace]


@pytest.fixture(scope="module")
def timeless(small_log: SynthLog) -> Trace:
    """The small log without times."""
    rows = small_log.trace.table.to_pylist()[:600]
    columns = {
        name: [None if name in ("arrival_ns", "finished_ns") else row[name] for row in rows] for name in SCHEMA.names
    }
    return Trace(SCHEMA.empty_table().from_pydict(columns, schema=SCHEMA))


# Splits


def test_the_last_share_by_arrival_is_kept_for_evaluation(small_log: SynthLog) -> None:
    trace = small_log.trace
    parts = split_trace(trace, "last:0.3", 0)
    assert parts.kind == "time" and parts.cut_ns == trace.arrival_ns[parts.test].min()
    assert sorted([*parts.train, *parts.test, *parts.rest]) == list(range(len(trace)))
    assert len(parts.test) == pytest.approx(0.3 * len(trace), abs=2)
    cut_s = trace.arrival_s[parts.test].min()
    assert (trace.finished_s[parts.train] <= cut_s).all() and (trace.arrival_s[parts.rest] < cut_s).all()
    assert (trace.finished_s[parts.rest] > cut_s).all()


def test_without_arrivals_whole_prompts_are_kept(timeless: Trace) -> None:
    parts = split_trace(timeless, "last:0.3", 0)
    groups = prompt_groups(timeless)
    assert parts.kind == "prompt" and parts.cut_ns is None and len(parts.rest) == 0
    assert not set(groups[parts.train]) & set(groups[parts.test])
    assert 0.15 < len(parts.test) / len(timeless) < 0.45
    assert split_trace(timeless, "last:0.3", 1).test.tolist() != parts.test.tolist()


def test_all_keeps_nothing(small_log: SynthLog) -> None:
    parts = split_trace(small_log.trace, "all", 0)
    assert len(parts.train) == len(small_log.trace) and len(parts.test) == len(parts.rest) == 0


@pytest.mark.parametrize(
    "split", ["", "last", "last:", "last:0", "last:1", "last:1.5", "last:nan", "first:0.3", "last:x"]
)
def test_a_split_must_be_one(small_log: SynthLog, split: str) -> None:
    with pytest.raises(InputError, match="split"):
        split_trace(small_log.trace, split, 0)


# Groups and rows


def test_a_group_needs_something_to_read(small_log: SynthLog, timeless: Trace, trace_of: Rows) -> None:
    everything = active_groups(small_log.trace)
    assert everything == [name for name in FEATURES if name in everything] and len(everything) >= 8
    short = small_log.trace.take(np.arange(300))
    assert set(everything) - set(active_groups(short)) == {"clock"}  # less than three days
    assert set(everything) - set(active_groups(timeless)) == set(ORDERED_GROUPS) & set(everything)
    bare = trace_of([{"request_id": str(i), "arrival_ns": i, "output_tokens": 3, "end": "stop"} for i in range(9)])
    assert active_groups(bare) == ["prompt_size"]  # it needs nothing in particular
    assert active_groups(small_log.trace, ["tenant", "model"]) == ["tenant", "model"]
    with pytest.raises(UnknownNameError, match="prompt_size"):
        active_groups(small_log.trace, ["promt_size"])


def test_a_group_that_one_request_in_a_hundred_feeds_is_used(trace_of: Rows) -> None:
    def log(told: int) -> Trace:
        rows = [
            {
                "request_id": str(i),
                "arrival_ns": i,
                "output_tokens": 3,
                "end": "stop",
                "tenant": "t" if i < told else None,
            }
            for i in range(200)
        ]
        return trace_of(rows)

    assert "tenant" in active_groups(log(2)) and "tenant" not in active_groups(log(1))


def test_only_requests_with_output_and_without_an_engine_error_teach(trace_of: Rows) -> None:
    ends = [("stop", 5), ("length", 5), ("abort", 5), ("unfinished", 5), ("error", 5), ("stop", 0)]
    trace = trace_of(
        [{"request_id": str(i), "output_tokens": tokens, "end": end} for i, (end, tokens) in enumerate(ends)]
    )
    assert usable(trace, np.arange(6)).tolist() == [True, True, True, True, False, False]
    with pytest.raises(TrainingError, match="no request of the training part has output tokens"):
        usable(trace, np.array([4, 5]))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 500), min_size=5, max_size=200), st.integers(1, 2_000))
def test_rows_held_in_memory_are_bounded(lengths: list[int], most_rows: int) -> None:
    tokens = np.array(lengths)
    grid = IntervalGrid.fit(tokens, np.ones(len(tokens), dtype=bool), 16)
    drawn = drawn_rows(tokens, grid, most_rows, 0)
    each = rows_each(tokens, grid.edges)
    assert (np.diff(drawn) > 0).all() and 1 <= len(drawn) <= len(tokens)
    assert (len(drawn) == len(tokens)) or each.sum() > most_rows
    assert len(drawn) == 1 or len(drawn) * each.mean() <= most_rows or each.sum() <= most_rows


def test_the_later_part_validates(small_log: SynthLog) -> None:
    trace = small_log.trace
    rows = np.flatnonzero(trace.output_tokens > 0)
    fit, validation, block = validation_part(trace, rows, 0.2, 0)
    assert not set(fit) & set(validation) and len(block) == len(rows)
    assert len(validation) == pytest.approx(0.2 * len(rows), abs=2)
    cut = trace.arrival_s[rows[validation]].min()
    assert (trace.finished_s[rows[fit]] <= cut).all()
    assert (np.diff(block) >= 0).all() and 40 <= len(set(block[validation].tolist())) <= 62


def test_what_still_ran_when_validation_began_is_left_out(trace_of: Rows) -> None:
    second = 10**9
    rows = [
        {
            "request_id": str(i),
            "arrival_ns": i * second,
            "finished_ns": (i + (95 if i == 7 else 1)) * second,
            "output_tokens": 3,
            "end": "stop",
        }
        for i in range(100)
    ]
    fit, validation, _ = validation_part(trace_of(rows), np.arange(100), 0.2, 0)
    assert validation.tolist() == list(range(80, 100)) and fit.tolist() == [i for i in range(79) if i != 7]


def test_without_arrivals_whole_prompts_validate(timeless: Trace) -> None:
    rows = np.random.default_rng(0).permutation(len(timeless))
    fit, validation, block = validation_part(timeless, rows, 0.2, 0)
    groups = prompt_groups(timeless)[rows]
    assert not set(groups[fit]) & set(groups[validation]) and len(fit) + len(validation) == len(rows)
    assert (block == groups).all()


# What comes out


def test_the_manifest_says_where_the_bundle_comes_from(boosted: Trained, small_log: SynthLog) -> None:
    manifest, trace = boosted.manifest, small_log.trace
    told, parts = manifest.training, split_trace(trace, "last:0.3", 0)
    assert told["trace"] == trace.digest and told["split"] == "last:0.3" and told["split_by"] == "time"
    assert told["cut_ns"] == parts.cut_ns and told["requests"] == len(parts.train)
    assert told["unfinished_at_the_cut"] == len(parts.rest) and told["seed"] == 0
    assert told["window_ns"] == [trace.arrival_ns[parts.train].min(), trace.arrival_ns[parts.train].max()]
    assert sum(told["ends"].values()) == told["requests"]
    assert told["left_out"] == int((~usable(trace, parts.train)).sum()) > 0
    assert manifest.metrics["parity"] <= 1e-5 and manifest.metrics["validation"]["requests"] > 100
    assert {"endcast", "python", "numpy", "lightgbm", "onnx", "onnxruntime"} <= set(manifest.versions)
    assert load_forecaster(boosted.path).manifest["training"] == told


def test_state_after_training_is_the_training_parts_history(boosted: Trained) -> None:
    assert load_forecaster(boosted.path).state_version == boosted.manifest.training["requests"]


@pytest.mark.parametrize("model", list(MODELS))
def test_a_log_without_arrivals_trains(
    timeless: Trace, quick_settings: Callable[..., Settings], tmp_path: Path, model: str
) -> None:
    trained = train(timeless, quick_settings(model), tmp_path / "bundle")
    told = trained.manifest.training
    assert told["split_by"] == "prompt" and told["cut_ns"] is None and told["window_ns"] is None
    requests = list(timeless.take(np.arange(20)).requests())
    forecasts = load_forecaster(trained.path).forecast([Landmark(request=request) for request in requests])
    assert all(1.0 <= forecast.expected_remaining < 20_000 for forecast in forecasts)


def test_most_rows_are_kept_to(small_log: SynthLog, tmp_path: Path) -> None:
    told: list[str] = []
    trained = train(
        small_log.trace, Settings(model="kaplan_meier", most_rows=2_000), tmp_path / "bundle", tell=told.append
    )
    assert 20 < trained.manifest.training["drawn_to_fit"] < 300
    assert any("are drawn to fit" in text for text in told)
    assert load_forecaster(trained.path).state_version == trained.manifest.training["requests"]


def test_trees_that_do_not_help_are_left_out(trace_of: Rows, tmp_path: Path) -> None:
    """Lengths that nothing tells: the bundle is Kaplan-Meier, and says so."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "request_id": str(i),
            "arrival_ns": i * 10**9,
            "prompt_tokens": int(rng.integers(1, 5_000)),
            "output_tokens": int(rng.geometric(0.01)),
            "end": "stop",
        }
        for i in range(900)
    ]
    told: list[str] = []
    trained = train(trace_of(rows), Settings(intervals=16), tmp_path / "bundle", tell=told.append)
    assert trained.manifest.card["rounds"] == 0 and any("none is used" in text for text in told)
    forecaster = load_forecaster(trained.path, aborts=False)
    requests = list(trace_of(rows[:50]).requests())
    batch = forecaster.forecast_batch([Landmark(request=request) for request in requests], 300)
    assert (batch.survival == batch.survival[0]).all()


# What is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"validation": 0.0},
        {"validation": 1.0},
        {"validation": float("nan")},
        {"intervals": 1},
        {"most_rows": 0},
        {"threads": 0},
        {"seed": -1},
    ],
)
def test_settings_have_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": "lightgmb"}, "Known: kaplan_meier"),
        ({"model": "lightgbm", "options": {"objective": "regression"}}, "no option objective"),
        ({"model": "lightgbm", "options": {"rounds": "many"}}, "rounds must be a number"),
        ({"model": "lightgbm", "options": {"learning_rate": float("nan")}}, "learning_rate must be a number"),
        ({"model": "lightgbm", "options": {"num_leaves": 1}}, "LightGBM refuses"),
        ({"model": "kaplan_meier", "options": {"rounds": 3}}, "no option rounds. It has none"),
        ({"model": "kaplan_meier_by_size", "features": ["tenant"]}, "needs the feature group prompt_size"),
    ],
)
def test_what_cannot_be_trained_is_named(
    small_log: SynthLog, tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(EndcastError, match=told):
        train(small_log.trace.take(np.arange(200)), Settings(**settings), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_which_nothing_ended_cannot_be_learned_from(trace_of: Rows, tmp_path: Path) -> None:
    rows = [{"request_id": str(i), "arrival_ns": i * 10**9, "output_tokens": 9, "end": "abort"} for i in range(50)]
    with pytest.raises(TrainingError, match="ended by itself"):
        train(trace_of(rows), Settings(model="kaplan_meier"), tmp_path / "bundle")


def test_a_log_too_short_to_validate_on_is_refused(trace_of: Rows, tmp_path: Path) -> None:
    rows = [{"request_id": str(i), "arrival_ns": i, "output_tokens": 9, "end": "stop"} for i in range(4)]
    with pytest.raises(EndcastError):
        train(trace_of(rows), Settings(model="kaplan_meier"), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_from_its_model_is_not_written(
    small_log: SynthLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for difference in (1.1e-5, float("nan")):
        monkeypatch.setattr(export_module, "worst_difference", lambda *given, d=difference: d)
        with pytest.raises(TrainingError, match="differs from the model"):
            train(small_log.trace, Settings(model="kaplan_meier"), tmp_path / "bundle")
        assert list(tmp_path.iterdir()) == []


# Cross-fitting


def test_no_forecast_of_a_whole_log_saw_its_own_outcome(small_log: SynthLog) -> None:
    """Other outcomes in a half change the other half's curves only: Kaplan-Meier has no history, and the halves are too
    short for recalibration."""
    trace = small_log.trace.take(np.arange(180))
    rows = trace.table.to_pylist()
    early = trace.arrival_ns < np.sort(trace.arrival_ns)[90]
    changed = [
        {**row, "output_tokens": row["output_tokens"] * 3 + 1} if mine else row
        for row, mine in zip(rows, early, strict=True)
    ]
    settings = Settings(model="kaplan_meier", intervals=12)
    before, after = (
        crossfit(t, settings) for t in (trace, Trace(SCHEMA.empty_table().from_pylist(changed, schema=SCHEMA)))
    )
    assert len(before) == 180
    same = [
        batch.survival_at(np.array([[5], [50], [200]]))[:, mask]
        for mask in (early, ~early)
        for batch in (before, after)
    ]
    np.testing.assert_allclose(same[0], same[1], atol=1e-9)
    assert np.abs(same[2] - same[3]).max() > 0.05


def test_a_log_at_one_instant_has_no_halves(trace_of: Rows) -> None:
    rows = [{"request_id": str(i), "arrival_ns": 5, "output_tokens": 9, "end": "stop"} for i in range(50)]
    with pytest.raises(TrainingError, match="one instant"):
        crossfit(trace_of(rows), Settings(model="kaplan_meier"))
