"""Small bundles that many tests look at: each model family is trained once a session, on one synthetic log."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded: tests share their cores

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.predictors.models import MODELS
from endcast.training.train import Settings, Trained, train

# Machines are noisy: no example fails for its time. Where all must be able to repeat a run, examples are the same each time.
settings.register_profile(
    "endcast", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("endcast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first (the Makefile lets xdist keep this order): none is left for one core at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


#: What makes a family quick enough for tests.
QUICK: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "lightgbm": {"rounds": 20},
        "logistic": {"strength": 0.003, "bands": 3},
        "neural": {"epochs": 2, "hidden": 32},
        "text": {
            "epochs": 2,
            "hidden": 16,
            "learning_rate": 0.01,
            "batch": 64,
            "encoder_layers": 1,
            "encoder_units": 16,
        },
        "length_class": {"rounds": 5, "classes": 4},
        "regression": {"rounds": 10},
        "ranking": {"rounds": 10},
        "distilled": {"teacher_rounds": 20, "epochs": 3, "hidden": 32},
    }
)


@pytest.fixture(scope="session")
def trace_of() -> Callable[[Sequence[Mapping[str, object]]], Trace]:
    """A function that makes a trace of rows; what a row does not name is unknown."""

    def trace(rows: Sequence[Mapping[str, object]]) -> Trace:
        columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA}
        return Trace(pa.table(columns, schema=SCHEMA))

    return trace


@pytest.fixture(scope="session")
def small_log() -> SynthLog:
    """1,200 requests with texts, over six days."""
    return synthesize(SynthSettings(requests=1_200, seed=3, text=True, hours=144.0))


@pytest.fixture(scope="session")
def quick_settings() -> Callable[..., Settings]:
    """A function that gives settings to train a family in seconds."""

    def settings(model: str, **more: Any) -> Settings:
        quick = {"model": model, "intervals": 24, "options": QUICK.get(model, {}), "read_outputs": False}
        return Settings(**{**quick, **more})

    return settings


@pytest.fixture(scope="session")
def bundle_of(
    small_log: SynthLog, quick_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Trained]:
    """A function that gives the bundle of a model family, trained on ``small_log`` when first asked for."""
    made: dict[str, Trained] = {}

    def bundle(model: str) -> Trained:
        if model not in made:
            out = tmp_path_factory.mktemp("bundles") / model
            made[model] = train(small_log.trace, quick_settings(model), out)
        return made[model]

    return bundle


@pytest.fixture(scope="session", params=list(MODELS))
def trained(request: pytest.FixtureRequest, bundle_of: Callable[[str], Trained]) -> Trained:
    """The bundle of every registered model family, one after the other."""
    return bundle_of(request.param)


@pytest.fixture(scope="session")
def boosted(bundle_of: Callable[[str], Trained]) -> Trained:
    """The default family's bundle."""
    return bundle_of("lightgbm")


@pytest.fixture(scope="session")
def reading(
    small_log: SynthLog, quick_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """The default family's bundle with the model that reads outputs; its trees are used, few as their data are."""
    out = tmp_path_factory.mktemp("bundles") / "reading"
    options = {**QUICK["lightgbm"], "min_data_in_leaf": 30}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("endcast.predictors.models.lightgbm.DOUBT", -float("inf"))
        return train(small_log.trace, quick_settings("lightgbm", read_outputs=True, options=options), out)
