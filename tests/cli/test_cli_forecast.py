"""``endcast forecast``: readable, and as JSON the same answer as the service's."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

import pytest

import endcast
from endcast import Forecast, Landmark
from endcast.cli import main
from endcast.cli.forecast import PLOT_COLUMNS, survival_plot
from endcast.testing import ConstantHazardForecaster

Run = Callable[..., tuple[int, str, str]]


class Recording(ConstantHazardForecaster):
    """Keeps the landmarks that it was asked for."""

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        self.asked = list(landmarks)
        return super().forecast(landmarks)


@pytest.fixture
def forecaster(monkeypatch: pytest.MonkeyPatch) -> Recording:
    made = Recording(0.01, bundle="sha256:abc")
    monkeypatch.setattr(endcast, "load_forecaster", lambda path: made, raising=False)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(["forecast", "bundle", *arguments])
        return (int(exit_.value.code or 0), *capsys.readouterr())

    return call


def test_it_is_readable(forecaster: Recording, run: Run) -> None:
    code, out, err = run("--prompt-tokens", "374", "--generated-tokens", "64", "--model", "m", "--max-tokens", "512")
    assert code == 0 and err == ""
    assert "sha256:abc, 64 tokens so far" in out
    assert "14.9 %" in out and "47.4 %" in out  # 1 − .99^16, 1 − .99^64
    assert "known               prompt_tokens, model" in out and "unknown             prompt, tenant, output" in out
    assert "50 % by 69, 90 % by 230" in out


def test_json_is_the_services_answer(forecaster: Recording, run: Run) -> None:
    code, out, _ = run("--prompt", "hi", "--horizons", "64, 16,16", "--quantiles", "0.9", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["bundle"] == "sha256:abc" and told["state_version"] == 0
    (forecast,) = told["forecasts"]
    assert list(forecast["p_end"]) == ["16", "64"] and forecast["p_end"]["16"] == pytest.approx(1 - 0.99**16)
    assert forecast["quantiles"] == {"0.9": 230.0} and "curve" not in forecast


def test_every_option_reaches_the_forecaster(forecaster: Recording, run: Run) -> None:
    run(
        "--prompt", "hi", "--prompt-tokens", "3", "--generated-tokens", "5", "--output", "so far", "--max-tokens", "9",
        "--context-limit", "100", "--model", "m", "--tenant", "t", "--session", "s",
    )  # fmt: skip
    (asked,) = forecaster.asked
    assert (asked.generated_tokens, asked.output) == (5, "so far")
    request = asked.request
    assert (request.prompt, request.prompt_tokens, request.max_tokens, request.context_limit) == ("hi", 3, 9, 100)
    assert (request.model, request.tenant, request.session) == ("m", "t", "s")
    assert dict(request.parameters) == {"max_tokens": 9}


def test_nothing_needs_to_be_known(forecaster: Recording, run: Run) -> None:
    code, out, _ = run()
    assert code == 0 and "known               nothing" in out
    assert forecaster.asked[0].request.prompt_tokens is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--horizons", "16,many"), "'many' is no whole number"),
        (("--quantiles", "half"), "'half' is no number"),
        (("--quantiles", "1"), "quantile: must lie strictly between 0 and 1"),
        (("--horizons", "-5"), "horizon: must lie between 0 and"),
        (("--prompt-tokens", "-1"), "prompt_tokens: must lie between 0 and"),
        (("--max-tokens", "0"), "max_tokens: must lie between 1 and"),
        (("--generated-tokens", "1.5"), "--generated-tokens"),
    ],
)
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_wrong_values_exit_with_2(
    forecaster: Recording, run: Run, arguments: tuple[str, ...], message: str, json_too: tuple[str, ...]
) -> None:
    code, out, err = run(*arguments, *json_too)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


@pytest.mark.parametrize("max_tokens", [1, 2, 50, None])
def test_the_plot_falls_from_one(max_tokens: int | None) -> None:
    request = endcast.Request(request_id="r", max_tokens=max_tokens)
    (made,) = ConstantHazardForecaster(0.01).forecast([Landmark(request=request)])
    bar, axis = str(survival_plot(made)).split("\n")
    heights = [" ▁▂▃▄▅▆▇█".index(block) for block in bar[2:].ljust(PLOT_COLUMNS)]
    assert len(heights) == PLOT_COLUMNS and heights[0] == 8 and heights == sorted(heights, reverse=True)
    assert axis.strip().startswith("0") and axis.endswith(str(max_tokens or 459))


def test_a_bundle_that_is_none_is_one_line(run: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: pathlib.Path) -> ConstantHazardForecaster:
        raise endcast.BundleError(f"{path} is no bundle", hint="endcast train writes one")

    monkeypatch.setattr(endcast, "load_forecaster", refuse, raising=False)
    assert run() == (1, "", "error: bundle is no bundle. endcast train writes one\n")
