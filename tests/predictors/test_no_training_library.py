"""A bundle is loaded and asked where no training library is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from endcast.training.train import Trained

CODE = """
import sys
for name in ("lightgbm", "sklearn", "onnx", "torch", "transformers", "scipy", "pandas"):
    sys.modules[name] = None  # importing it fails
import endcast
forecaster = endcast.load_forecaster(sys.argv[1])
request = endcast.Request(request_id="a", prompt="Hello", model="atlas-70b", max_tokens=100)
stream = forecaster.open(request)
stream.append("Hi", 3)
forecast = stream.forecast()
assert 0 < forecast.expected_remaining <= 97
stream.close(end="stop", output_tokens=9, finished_s=4.0)
forecaster.restore(forecaster.snapshot())
assert forecaster.forecast([endcast.Landmark(request=request)])[0].p_end(100) == 1.0
assert not any(name.startswith("endcast.training") for name in sys.modules)
print(forecaster.bundle)
"""


def test_forecasting_needs_no_training_library(trained: Trained) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, str(trained.path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == trained.id, done.stderr


def test_the_code_above_would_notice() -> None:
    code = CODE.replace("import endcast\n", "import endcast\nimport endcast.training.train\n", 1)
    done = subprocess.run([sys.executable, "-c", code, "."], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "import of" in done.stderr


@pytest.mark.parametrize("name", ["kaplan_meier", "lightgbm"])
def test_naming_a_family_loads_none(name: str) -> None:
    code = (
        "import sys; from endcast.predictors.models import MODELS; from endcast.predictors.features import FEATURES; "
        f"assert {name!r} in MODELS; assert not {{'lightgbm', 'onnx', 'sklearn'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
