"""A bundle is loaded and asked where no training library is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from endcast.datasets.synth import SynthLog
from endcast.datasets.write import write_trace
from endcast.predictors.models import MODELS
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


SERVE = """
import asyncio, json, sys
for name in ("lightgbm", "sklearn", "onnx", "torch", "transformers", "safetensors"):
    sys.modules[name] = None
import httpx
from endcast.cli import main
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings

async def ask(path):
    app = create_app(Settings(), load_forecaster(path))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        request = {"request_id": "a", "prompt": "Write a list", "model": "atlas-70b", "generated_tokens": 5}
        reply = await client.post("/v1/forecasts", json={"horizons": [16], "requests": [request]})
        assert reply.status_code == 200, reply.text
        assert 0.0 < reply.json()["forecasts"][0]["p_end"]["16"] < 1.0
        return reply.json()["bundle"]

log, *bundles = sys.argv[1:]
print(json.dumps([asyncio.run(ask(path)) for path in bundles]), flush=True)
fleet = ["--policies", "br_h", "--workers", "2", "--slots", "4"]
sys.argv[1:] = ["simulate", log, "--forecast", ",".join(bundles), *fleet, "--json"]
main()
"""


def test_all_families_are_served_and_routed_with_without_any(
    bundle_of: Callable[[str], Trained], small_log: SynthLog, tmp_path: Path
) -> None:
    bundles = [bundle_of(name) for name in MODELS]
    write_trace(tmp_path / "log.parquet", small_log.trace.take(np.arange(60)))
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "log.parquet"), *(str(bundle.path) for bundle in bundles)],
        capture_output=True,
        text=True,
        check=False,
    )
    served, _, report = done.stdout.partition("\n")
    assert done.returncode == 0 and json.loads(served) == [bundle.id for bundle in bundles], done.stderr
    played = json.loads(report)["policies"]
    assert [one["forecast"] for one in played] == [bundle.id for bundle in bundles]
    assert all(one["policy"] == "br_h" and 0.0 < one["efficiency"] <= 1.0 for one in played)


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
