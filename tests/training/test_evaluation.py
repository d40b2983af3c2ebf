"""Evaluation: its figures against an independent computation, what it leaves out, and what it refuses to measure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import brier_score_loss, log_loss

from endcast import InputError
from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.errors import TrainingError
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.training import evaluate as evaluate_module
from endcast.training.evaluate import Evaluation, evaluate
from endcast.training.evaluation_report import write_plots, write_report
from endcast.training.fingerprints import BY_CHANCE, MOST, fingerprints, overlap, sample
from endcast.training.train import Settings, Trained, train

Rows = Callable[[Sequence[Mapping[str, object]]], Trace]
HORIZONS = (1, 16, 80)


@pytest.fixture(scope="module")
def bundle(boosted: Trained) -> Bundle:
    return read_bundle(boosted.path)


@pytest.fixture(scope="module")
def measured(bundle: Bundle, small_log: SynthLog) -> Evaluation:
    return evaluate(bundle, small_log.trace, horizons=HORIZONS)


class ByHand:
    """The test part of the small log and Kaplan-Meier of its training part, from the rows alone."""

    def __init__(self, trace: Trace) -> None:
        rows = trace.table.to_pylist()
        start = rows[0]["arrival_ns"]
        arrivals = sorted(row["arrival_ns"] for row in rows)
        cut = arrivals[round(0.7 * len(rows))]
        self.training, self.test = [], []
        for row in rows:
            told = row["finished_ns"]
            supposed = row["arrival_ns"] + 1e9 * (0.2 + row["prompt_tokens"] / 10_000 + 0.03 * row["output_tokens"])
            finished = supposed if told is None else told
            if row["arrival_ns"] >= cut:
                self.test.append(row)
            elif finished - start <= cut - start:
                self.training.append(row)
        learned = [row for row in self.training if row["output_tokens"] > 0 and row["end"] != "error"]
        self.survival = [1.0]
        for t in range(1, max(row["output_tokens"] for row in learned) + 1):
            reached = sum(row["output_tokens"] >= t for row in learned)
            ended = sum(row["output_tokens"] == t and row["end"] == "stop" for row in learned)
            self.survival.append(self.survival[-1] * (1 - ended / reached))
        self.requests = [(row["output_tokens"], self.cap(row)) for row in self.test if self.is_end(row)]

    @staticmethod
    def cap(row: Mapping[str, int]) -> int:
        room = row["context_limit"] - row["prompt_tokens"]
        return min(room, row["max_tokens"] or room)

    def is_end(self, row: Mapping[str, object]) -> bool:
        """By itself, or at a cap that was known."""
        at_cap = row["end"] == "length" and row["output_tokens"] == self.cap(row)  # type: ignore[arg-type]
        return bool(row["output_tokens"]) and (row["end"] == "stop" or at_cap)

    def s(self, t: int) -> float:
        """S(t), with the mean hazard beyond the last length."""
        last = len(self.survival) - 1
        return self.survival[t] if t <= last else self.survival[-1] ** (t / last)

    def pairs(self, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Forecast, outcome, forecast within, tokens within, of every decode step of every request measured."""
        table = np.array([self.s(t) for t in range(max(length for length, _ in self.requests) + horizon + 1)])
        rows = []
        for length, cap in self.requests:
            for e in range(length):
                chances = [table[e + h] / table[e] if e + h < cap else 0.0 for h in range(horizon + 1)]
                rows.append((1 - chances[-1], length - e <= horizon, sum(chances[:-1]), min(length - e, horizon)))
        p, y, told, true = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        return p, y, told, true


@pytest.fixture(scope="module")
def by_hand(small_log: SynthLog) -> ByHand:
    return ByHand(small_log.trace)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_kaplan_meier_figures_agree_with_an_independent_computation(
    measured: Evaluation, by_hand: ByHand, horizon: int
) -> None:
    p, y, told, true = by_hand.pairs(horizon)
    figures = measured.baselines["kaplan_meier"]["horizons"][str(horizon)]
    assert measured.n_requests == len(by_hand.requests) and measured.n_draws == len(p)
    assert figures.base_rate == pytest.approx(y.mean())
    assert figures.brier == pytest.approx(brier_score_loss(y, p), rel=1e-6)
    assert figures.log_loss == pytest.approx(log_loss(y, np.clip(p, 1e-6, 1 - 1e-6)), rel=1e-6)
    ranks = rankdata(np.round(p, 9))
    positive = y == 1
    auc = (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum())
    assert figures.auc == pytest.approx(auc, abs=1e-3)  # equal chances differ in their last bits
    assert figures.rmse_within == pytest.approx(math.sqrt(((told - true) ** 2).mean()), rel=1e-6)
    assert figures.mae_within == pytest.approx(np.abs(told - true).mean(), rel=1e-6)
    assert figures.brier_skill == 0.0


def test_kaplan_meier_at_admission(measured: Evaluation, by_hand: ByHand) -> None:
    """The mean is Σ S(t) up to the cap, the median the first token by which half have ended."""
    told = measured.baselines["kaplan_meier"]["admission"]
    median = next(t for t, s in enumerate(by_hand.survival) if s <= 0.5)
    expected = [abs(min(median, cap) - length) for length, cap in by_hand.requests]
    assert told.mae_median == pytest.approx(np.mean(expected))
    curve = np.array([by_hand.s(t) for t in range(20_000)])
    means = [curve[:cap].sum() for _, cap in by_hand.requests]
    errors = [abs(mean - length) for mean, (length, _) in zip(means, by_hand.requests, strict=True)]
    assert told.mae_mean == pytest.approx(np.mean(errors), rel=1e-4)


def test_the_model_is_compared_with_it(measured: Evaluation) -> None:
    for horizon in HORIZONS:
        figures = measured.horizons[str(horizon)]
        pooled = measured.baselines["kaplan_meier"]["horizons"][str(horizon)]
        assert figures.brier_skill == pytest.approx(1 - figures.brier / pooled.brier)
        assert figures.base_rate == pooled.base_rate
        low, high = figures.intervals["brier_skill"]
        assert low < figures.brier_skill < high and high - low < 0.5
    assert measured.horizons["80"].brier_skill > 0.03
    assert measured.horizons["80"].auc > measured.baselines["kaplan_meier"]["horizons"]["80"].auc + 0.03
    assert measured.admission.c_index > measured.baselines["kaplan_meier"]["admission"].c_index + 0.02


def test_what_is_left_out_is_counted(measured: Evaluation, by_hand: ByHand) -> None:
    reasons = Counter(
        "no output" if row["output_tokens"] == 0 else row["end"] for row in by_hand.test if not by_hand.is_end(row)
    )
    assert measured.excluded == dict(reasons) and reasons["abort"] > 5
    assert measured.n_requests + sum(measured.excluded.values()) == len(by_hand.test)


def test_survival_as_it_happened(measured: Evaluation, by_hand: ByHand) -> None:
    curves = measured.survival
    lengths = np.array([length for length, _ in by_hand.requests])
    assert curves.happened == [float((lengths > t).mean()) for t in curves.tokens]
    for curve in (curves.happened, curves.model, curves.kaplan_meier):
        assert (np.diff(curve) <= 1e-12).all() and 0.0 <= curve[-1] <= curve[0] == 1.0
    assert np.abs(np.array(curves.model) - curves.happened).max() < 0.12


def test_figures_are_the_same_every_time(bundle: Bundle, small_log: SynthLog, measured: Evaluation) -> None:
    assert asdict(evaluate(bundle, small_log.trace, horizons=HORIZONS)) == asdict(measured)


def test_unobserved_nothing_is_learned_on_the_way(bundle: Bundle, small_log: SynthLog, measured: Evaluation) -> None:
    """Told no outcome, there is nothing to recalibrate with either; told all, forecasts differ."""
    unobserved = evaluate(bundle, small_log.trace, horizons=HORIZONS, observe=False)
    frozen = evaluate(bundle, small_log.trace, horizons=HORIZONS, observe=False, recalibrate=False)
    assert asdict(unobserved) == asdict(frozen)
    assert unobserved.admission != measured.admission and unobserved.baselines == measured.baselines


def test_checkpoints_are_another_population(bundle: Bundle, small_log: SynthLog, by_hand: ByHand) -> None:
    found = evaluate(bundle, small_log.trace, horizons=[64], population="checkpoints")
    assert found.population == "checkpoints"
    assert found.n_draws == sum(math.ceil(min(length, 4096) / 32) for length, _ in by_hand.requests)


def test_of_a_long_log_some_requests_are_drawn(
    bundle: Bundle, small_log: SynthLog, measured: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_module, "MOST_REQUESTS", 50)
    found = evaluate(bundle, small_log.trace, horizons=[64])
    assert found.n_requests == 50 and found.excluded["not drawn"] == measured.n_requests - 50


@pytest.mark.parametrize("horizons", [[0], [16, -1]])
def test_a_horizon_must_be_a_number_of_tokens(bundle: Bundle, small_log: SynthLog, horizons: list[int]) -> None:
    with pytest.raises(InputError, match="horizons"):
        evaluate(bundle, small_log.trace, horizons=horizons)


# What was trained on is not measured


def test_only_the_test_part_of_the_training_log_is_measured(
    bundle: Bundle, small_log: SynthLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training requests are neither forecast nor observed again; those running at the cut are observed when they end."""
    asked: list[str] = []
    seen: list[str] = []

    class Watched(OnnxForecaster):
        def forecast_batch(self, landmarks, horizon):  # type: ignore[no-untyped-def]
            asked.extend(landmark.request.request_id for landmark in landmarks)
            return super().forecast_batch(landmarks, horizon)

        def observe(self, completions):  # type: ignore[no-untyped-def]
            seen.extend(completion.request.request_id for completion in completions)
            return super().observe(completions)

    monkeypatch.setattr(evaluate_module, "OnnxForecaster", Watched)
    evaluate(bundle, small_log.trace, horizons=[64])
    trace = small_log.trace
    ids = np.array(trace.table.column("request_id").to_pylist())
    late = trace.arrival_ns >= (bundle.manifest.training["cut_ns"] or 0)
    running = ~late & (trace.finished_s > trace.arrival_s[late].min())
    assert set(asked) < set(ids[late]) and len(asked) == len(set(asked))
    assert sorted(seen) == sorted(ids[late | running])


def test_an_overlap_is_refused(bundle: Bundle, small_log: SynthLog) -> None:
    trace = small_log.trace
    parts = [trace.take(np.arange(0, 700)), trace.take(np.arange(600, 1_200))]
    for part in parts:
        with pytest.raises(TrainingError, match=r"training requests are in the part to measure.*--allow-overlap"):
            evaluate(bundle, part, horizons=[64])
    with pytest.raises(TrainingError, match=r"[89]\d\.\d% of|100\.0% of"):
        evaluate(bundle, trace, horizons=[64], split="all")
    assert evaluate(bundle, trace.take(np.arange(90)), horizons=[64], allow_overlap=True).n_requests > 60


def test_an_overlap_is_seen_under_other_ids(bundle: Bundle, small_log: SynthLog) -> None:
    """A log without ids has line numbers, and another cut of it has others."""
    rows = small_log.trace.table.to_pylist()[:500]
    renamed = SCHEMA.empty_table().from_pylist(
        [{**row, "request_id": str(i)} for i, row in enumerate(rows)], schema=SCHEMA
    )
    with pytest.raises(TrainingError, match="training requests are in the part"):
        evaluate(bundle, Trace(renamed), horizons=[64])


def test_another_log_is_measured_whole(bundle: Bundle) -> None:
    other = synthesize(SynthSettings(requests=150, seed=99, text=True, hours=10.0)).trace
    found = evaluate(bundle, other, horizons=[64])
    assert found.n_requests + sum(found.excluded.values()) == 150


def test_a_later_part_of_the_log_is_another_log(bundle: Bundle, small_log: SynthLog, by_hand: ByHand) -> None:
    late = small_log.trace.take(np.arange(len(small_log.trace) - len(by_hand.test), len(small_log.trace)))
    found = evaluate(bundle, late, horizons=[64])
    assert found.n_requests == len(by_hand.requests)


def test_a_log_without_arrivals_is_measured_by_prompt(
    trace_of: Rows, quick_settings: Callable[..., Settings], small_log: SynthLog, tmp_path: Path
) -> None:
    rows = [{**row, "arrival_ns": None, "finished_ns": None} for row in small_log.trace.table.to_pylist()[:400]]
    trace = trace_of(rows)
    trained = train(trace, quick_settings("kaplan_meier_by_size"), tmp_path / "bundle")
    found = evaluate(read_bundle(trained.path), trace, horizons=[64])
    assert 30 < found.n_requests < 200 and 0.0 < found.horizons["64"].base_rate < 1.0
    assert found.horizons["64"].intervals["brier_skill"][0] < found.horizons["64"].brier_skill


def test_nothing_to_measure_is_refused(bundle: Bundle, trace_of: Rows) -> None:
    rows = [{"request_id": str(i), "arrival_ns": i, "output_tokens": 9, "end": "abort"} for i in range(5)]
    with pytest.raises(TrainingError, match="ended by itself or at a known cap"):
        evaluate(bundle, trace_of(rows), horizons=[64])


# Fingerprints


def test_fingerprints_tell_requests_apart(small_log: SynthLog) -> None:
    trace = small_log.trace
    found = fingerprints(trace)
    assert len(set(found.tolist())) == len(trace)
    np.testing.assert_array_equal(fingerprints(trace.take(np.array([5, 3]))), found[[5, 3]])
    some = sample(trace, 0)
    assert (np.diff(some.astype(object)) > 0).all() and len(some) == len(trace) <= MOST
    assert overlap(some, trace) == 1.0 and overlap(some[:0], trace) == 0.0
    assert overlap(some, trace.take(np.arange(300))) == pytest.approx(300 / len(trace))


def test_logs_of_prompts_alone_are_told_apart_by_their_prompts(trace_of: Rows) -> None:
    def log(word: str) -> Trace:
        rows = [
            {"request_id": str(i), "prompt": f"{word} {i}", "output_tokens": 1 + i % 3, "end": "stop"}
            for i in range(300)
        ]
        return trace_of(rows)

    assert overlap(sample(log("a"), 0), log("a")) == 1.0
    assert overlap(sample(log("a"), 0), log("b")) <= BY_CHANCE


# For people


def test_the_report_is_one_page_with_its_plots(measured: Evaluation, tmp_path: Path) -> None:
    write_report(measured, "small.parquet", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "small.parquet" in page
    assert not re.search(r'(src|href)="(https?:|//)|url\((?!#|data:)', page)  # nothing is fetched
    paths = write_plots(measured, tmp_path / "plots")
    assert [path.name for path in paths] == ["reliability.png", "survival.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000 for path in paths)
