"""Every family is trained with outputs in the log: with a second model that reads them, or plainly without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import endcast
from endcast.datasets.synth import SynthLog
from endcast.predictors.models import MODELS
from endcast.predictors.models.protocol import reads_outputs
from endcast.training.train import Settings, train

#: Tested whole elsewhere: the default everywhere, ``text`` in test_text_models.
ELSEWHERE = ("lightgbm", "text")


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ELSEWHERE])
def test_it_reads_outputs_or_says_that_it_does_not(
    model: str, small_log: SynthLog, quick_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    log = small_log.trace.take(np.arange(600))
    trained = train(log, quick_settings(model, read_outputs=True), tmp_path / "bundle")
    assert (trained.manifest.output is not None) == reads_outputs(MODELS.get(model)())
    forecaster = endcast.load_forecaster(trained.path)
    request = endcast.Request(request_id="r", prompt_tokens=50, prompt="Say it in two sentences.")
    text = endcast.Landmark(request=request, generated_tokens=16, output="That is one sentence. And this is")
    (forecast,) = forecaster.forecast([text])
    assert forecast.known["output"] == (trained.manifest.output is not None)
    assert 0.0 < forecast.p_end(16) < 1.0
