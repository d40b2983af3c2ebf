"""A tenant that nobody met is forecast no worse than by a bundle that knows no tenants; a known one better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.predictors.bundle import read_bundle
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.grid import IntervalGrid
from endcast.training.dropout import forget_names
from endcast.training.evaluate import evaluate
from endcast.training.replay import replay
from endcast.training.select import active_groups
from endcast.training.train import Settings, train

NAMED = ("tenant", "tenant_model")
HORIZON = 64


def strangers(trace: Trace) -> Trace:
    """The same requests, each from a tenant of its own."""
    names = pa.array([f"stranger {i}" for i in range(len(trace))], pa.string())
    place = trace.table.schema.get_field_index("tenant")
    return Trace(trace.table.set_column(place, trace.table.schema.field(place), names))


@pytest.fixture(scope="module")
def parts() -> tuple[Trace, Trace]:
    """The first and the second half of a log with tenants who differ."""
    trace = synthesize(SynthSettings(requests=8_000, seed=11, hours=48.0)).trace
    return trace.take(np.arange(4_000)), trace.take(np.arange(4_000, 8_000))


@pytest.fixture(scope="module")
def brier(
    parts: tuple[Trace, Trace], quick_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], float]:
    """Brier score by what the bundle knows (tenants, none) and who asks (known, strangers)."""
    early, late = parts
    everything = active_groups(early)
    found = {}
    for name, features in (("tenants", everything), ("none", [group for group in everything if group not in NAMED])):
        out = tmp_path_factory.mktemp("unseen") / name
        train(early, quick_settings("lightgbm", split="all", features=features, options={"rounds": 60}), out)
        for who, log in (("known", late), ("strangers", strangers(late))):
            evaluation = evaluate(read_bundle(out), log, split="all", horizons=(HORIZON,), recalibrate=False)
            found[name, who] = evaluation.horizons[str(HORIZON)].brier
    return found


def test_a_stranger_is_forecast_as_well_as_without_tenants(brier: dict[tuple[str, str], float]) -> None:
    assert brier["tenants", "strangers"] <= brier["none", "strangers"] * 1.005


def test_a_known_tenant_is_forecast_better(brier: dict[tuple[str, str], float]) -> None:
    assert brier["tenants", "known"] < brier["none", "known"] * 0.995


def test_names_are_forgotten_in_a_share_of_the_rows(parts: tuple[Trace, Trace], tmp_path: Path) -> None:
    part = parts[0].take(np.arange(1_500))
    grid = IntervalGrid.fit(part.output_tokens[part.output_tokens > 0], part.is_event[part.output_tokens > 0], 16)
    pipeline = FeaturePipeline(["prompt_size", "tenant"], grid)
    _, raw = replay(part, pipeline, np.ones(len(part), dtype=bool))
    size, tenant = forget_names(raw, pipeline, seed=1, share=0.25)
    assert (size == raw[0])[~np.isnan(size)].all()
    changed = (tenant[:, 0] == 0) & (raw[1][:, 0] > 0)
    assert 0.18 < changed.sum() / (raw[1][:, 0] > 0).sum() < 0.32
    kept = ~changed & (raw[1][:, 0] > 0)
    assert np.array_equal(tenant[kept], raw[1][kept], equal_nan=True)
