"""Every registered family on a log whose answers have nothing to do with their prompts (CASES 1), and whose lengths are
so alike that the load must be seen to go down token by token (CASES 3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from endcast import Landmark, Request
from endcast.datasets.schema import SCHEMA
from endcast.datasets.trace import Trace
from endcast.predictors.models import MODELS
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.training.train import Settings, train

PROMPTS = (None, 0, 1, 300, 195_000, 100_000_000)


def unrelated_log(requests: int = 800) -> Trace:
    """Prompts of 10 to 200,000 tokens; answers of 300 tokens, give or take 30."""
    rng = np.random.default_rng(5)
    columns: dict[str, object] = {
        "request_id": [str(i) for i in range(requests)],
        "arrival_ns": np.sort(rng.integers(10**13, size=requests)),
        "prompt_tokens": np.exp(rng.uniform(np.log(10), np.log(200_000), size=requests)).astype(np.int64),
        "output_tokens": np.rint(rng.normal(300, 30, size=requests)).astype(np.int64),
        "end": ["stop"] * requests,
    }
    columns = {name: columns.get(name, pa.nulls(requests, SCHEMA.field(name).type)) for name in SCHEMA.names}
    return Trace(pa.table(columns, schema=SCHEMA))


@pytest.fixture(scope="module", params=[name for name in MODELS if name != "text"])  # this log has no text
def forecaster(
    request: pytest.FixtureRequest,
    quick_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> OnnxForecaster:
    out: Path = tmp_path_factory.mktemp("unrelated") / "bundle"
    train(unrelated_log(), quick_settings(request.param), out)
    return load_forecaster(out)


def test_no_prompt_changes_the_length(forecaster: OnnxForecaster) -> None:
    asked = [Landmark(request=Request(request_id=str(p), prompt_tokens=p)) for p in PROMPTS]
    for forecast in forecaster.forecast(asked):
        assert forecast.expected_output_tokens == pytest.approx(300, rel=0.05)
        assert forecast.quantile(0.05) > 200 and forecast.quantile(0.95) < 400


@pytest.mark.parametrize("prompt", PROMPTS)
def test_what_remains_falls_with_every_token(forecaster: OnnxForecaster, prompt: int | None) -> None:
    batch = forecaster.forecast_batch([Landmark(request=Request(request_id="r", prompt_tokens=prompt))], 50)
    at = [batch.advance(generated) for generated in range(340)]
    remaining = np.concatenate([there.expected_remaining for there in at])
    assert (remaining >= 0.0).all()
    assert (np.diff(remaining[:260:10]) < -3.0).all()  # below a token each: having come this far tells something too
    assert (np.diff(remaining) >= -1.0 - 1e-9).all()  # but no faster than tokens come
    p_end = np.concatenate([at[generated].p_end for generated in (0, 200, 230, 260, 290)])
    assert p_end[0] < 0.001 and p_end[-1] > 0.5 and (np.diff(p_end) > 0.0).all()


def test_a_cap_is_approached_token_by_token(forecaster: OnnxForecaster) -> None:
    request = Request(request_id="r", max_tokens=120)
    batch = forecaster.forecast_batch([Landmark(request=request)], 1)
    remaining = np.concatenate([batch.advance(generated).expected_remaining for generated in range(130)])
    assert (np.diff(remaining[:121]) < 0.0).all() and (remaining[120:] == 0.0).all()
