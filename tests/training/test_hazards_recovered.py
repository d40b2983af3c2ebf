"""On a log whose hazards are known, training finds them again, through caps and clients who leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from endcast import Landmark
from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.synth_apps import App
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.survival import NO_CAP, FloatArray, SurvivalBatch
from endcast.training.select import split_trace
from endcast.training.served import serve_trace
from endcast.training.train import Settings, train

#: S is compared at these tokens.
TOKENS = np.unique(np.geomspace(1, 1_000, 30).astype(np.int64))


def app(kind: str, share: float) -> App:
    """One tenant who asks for one kind of thing; four answers in ten are capped, and clients leave.

    All have the same caps: else a cap would tell the tenant, and censoring would not be independent of length.
    """
    return App(
        name=kind,
        share=share,
        tenants=1,
        turns=1.0,
        system_tokens=100,
        new_tokens=60,
        kinds={kind: 1.0},
        models={"atlas-70b": 1.0},
        caps={60: 0.4},
        abort_rate=5e-4,
    )


@dataclass(frozen=True)
class Recovered:
    """A log, the bundle trained on its first 70 %, and what it forecast for the rest, caps left aside."""

    log: SynthLog
    bundle: Bundle
    rows: np.ndarray
    survival: FloatArray  #: (n, t)


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    apps = (app("brief", 0.4), app("json", 0.3), app("open", 0.3))
    log = synthesize(SynthSettings(requests=3_000, seed=5, hours=48.0, apps=apps))
    out: Path = tmp_path_factory.mktemp("recovered") / "bundle"
    train(log.trace, Settings(intervals=24, features=["tenant", "parameters"], options={"rounds": 90}), out)
    bundle = read_bundle(out)
    test = np.zeros(len(log.trace), dtype=bool)
    test[split_trace(log.trace, "last:0.3", 0).test] = True
    served = serve_trace(OnnxForecaster(bundle, aborts=False, recalibrate=False), log.trace, test)
    batch = SurvivalBatch(
        served.batch.table, served.batch.row, served.batch.position, np.full(len(served.rows), NO_CAP), 0
    )
    return Recovered(log, bundle, served.rows, batch.survival_at(TOKENS[:, None]).T)


def kaplan_meier_at(bundle: Bundle) -> FloatArray:
    return np.asarray(np.exp(bundle.kaplan_meier[np.minimum(TOKENS, len(bundle.kaplan_meier) - 1)]))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_tenants_curve_is_the_true_one(recovered: Recovered, place: int) -> None:
    """Within 0.05 of the true survival wherever the log reaches, though caps hide much of it; Kaplan-Meier is 0.25 off."""
    name = ("brief", "json", "open")[place]
    tenants = np.array(recovered.log.trace.table.column("tenant").to_pylist())[recovered.rows]
    mine = tenants == f"{name}-1"
    truth = recovered.log.truth.take(recovered.rows[mine]).survival(TOKENS).mean(axis=0)
    told = recovered.survival[mine].mean(axis=0)
    assert mine.sum() > 200
    assert np.abs(told - truth).max() < 0.05
    assert np.abs(kaplan_meier_at(recovered.bundle) - truth).max() > 0.25


def test_one_by_one_they_lie_close_too(recovered: Recovered) -> None:
    """What is left is the sessions' own level, which no feature tells."""
    truth = recovered.log.truth.take(recovered.rows).survival(TOKENS)
    error = np.abs(recovered.survival - truth).mean()
    pooled = np.abs(kaplan_meier_at(recovered.bundle) - truth).mean()
    assert error < 0.06 and error < 0.3 * pooled


def test_the_pooled_curve_does_not_take_a_cap_for_an_end(recovered: Recovered) -> None:
    """Kaplan-Meier of the censored log against the mean of the true curves, where enough is still at risk."""
    trace = recovered.log.trace
    part = split_trace(trace, "last:0.3", 0).train
    truth = recovered.log.truth.take(part).survival(TOKENS).mean(axis=0)
    told = kaplan_meier_at(recovered.bundle)
    naive = (trace.output_tokens[part][:, None] > TOKENS[None, :]).mean(axis=0)
    assert np.abs(told - truth).max() < 0.06
    assert np.abs(naive - truth).max() > 0.09


def test_the_abort_hazard_is_the_true_one(recovered: Recovered) -> None:
    assert recovered.bundle.manifest.abort_hazard == pytest.approx(5e-4, rel=0.2)


def test_it_says_that_trees_helped(recovered: Recovered) -> None:
    card, metrics = recovered.bundle.manifest.card, recovered.bundle.manifest.metrics["validation"]
    assert card["rounds"] > 10 and card["validation_gain_nats_a_request"] > 0.3
    assert metrics["log_loss_a_request"] < metrics["log_loss_a_request_uncorrected"] - 0.3
    assert set(card["importance"]) <= {"tenant", "parameters", "interval"}


def test_serving_is_asking_one_by_one(recovered: Recovered) -> None:
    """Curves made in batches while the log is lived through are those of a forecaster asked at each arrival."""
    trace = recovered.log.trace.take(np.arange(2_900, 3_000))
    together = serve_trace(
        OnnxForecaster(recovered.bundle), trace, np.arange(100) % 2 == 0, observed=np.arange(100) % 3 > 0
    )
    alone = OnnxForecaster(recovered.bundle)
    finished, requests, completions = trace.finished_s, list(trace.requests()), list(trace.completions())
    order = np.argsort(finished, kind="stable").tolist()
    place = 0
    for row, at in zip(together.rows.tolist(), range(len(together.rows)), strict=True):
        while place < 100 and finished[order[place]] <= trace.arrival_s[row]:
            if order[place] % 3 > 0:
                alone.observe([completions[order[place]]])
            place += 1
        expected = alone.forecast_batch([Landmark(request=requests[row])], 0)
        np.testing.assert_allclose(
            together.batch.take(np.array([at])).survival_at(TOKENS[:, None]),
            expected.survival_at(TOKENS[:, None]),
            atol=1e-6,
        )
    assert together.rows.tolist() == list(range(0, 100, 2)) and place > 50
