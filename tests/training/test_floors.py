"""The floors of accuracy on public logs, first 70 % by arrival for training: what must hold before anything is called done.

Azure's figures are those of ``evaluate``. Mooncake's are measured once more, by hand and through the public API: one
request after the other, each told only what had finished when it came.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import endcast
from endcast import Landmark
from endcast.datasets.read import read
from endcast.datasets.trace import Trace
from endcast.predictors.bundle import read_bundle
from endcast.survival import FloatArray
from endcast.training.evaluate import Evaluation, evaluate
from endcast.training.train import Settings, train

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
HORIZONS = (16, 32, 64, 80, 128)


def log(name: str) -> Trace:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here")
    return read(DATA / name).trace


def evaluation_of(name: str, folder: Path) -> Evaluation:
    trace = log(name)
    trained = train(trace, Settings(), folder / "bundle")
    return evaluate(read_bundle(trained.path), trace, horizons=HORIZONS)


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluation_of("AzureLLMInferenceTrace_conv.csv", tmp_path_factory.mktemp("conversation"))


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluation_of("AzureLLMInferenceTrace_code.csv", tmp_path_factory.mktemp("code"))


def test_azure_conversation_at_64(conversation: Evaluation) -> None:
    figures = conversation.horizons["64"]
    assert figures.brier_skill >= 0.40
    assert figures.auc >= 0.93
    assert figures.ece <= 0.02
    assert figures.rmse_within <= 12.0


@pytest.mark.parametrize(("horizon", "floor"), [("16", 0.155), ("128", 0.56)])
def test_azure_conversation_at_other_horizons(conversation: Evaluation, horizon: str, floor: float) -> None:
    assert conversation.horizons[horizon].brier_skill >= floor


def test_azure_conversation_at_admission(conversation: Evaluation) -> None:
    assert conversation.admission.c_index >= 0.785
    assert conversation.admission.mae_median <= 45.0


@pytest.mark.parametrize("horizon", HORIZONS)
def test_azure_code_is_not_harmed(code: Evaluation, horizon: int) -> None:
    """Nothing in this log tells the lengths."""
    assert code.horizons[str(horizon)].brier_skill >= -0.005


# Mooncake, by hand


@dataclass(frozen=True)
class Steps:
    """Every decode step of every test request: chance to end within 64, the same by Kaplan-Meier, and what happened."""

    request: np.ndarray
    told: FloatArray
    pooled: FloatArray
    ended: np.ndarray
    had_turn: np.ndarray  #: (requests,), whether an earlier turn had finished

    def figures(self, some: np.ndarray) -> tuple[float, float]:
        """Brier skill and AUC over the steps of some of the requests, a mask."""
        mine = some[self.request]
        errors = [((p[mine] - self.ended[mine]) ** 2).mean() for p in (self.told, self.pooled)]
        return 1.0 - float(errors[0] / errors[1]), float(roc_auc_score(self.ended[mine], self.told[mine]))


def kaplan_meier(lengths: np.ndarray) -> FloatArray:
    """S(0), S(1), … where every length is an end."""
    return np.asarray(1.0 - np.cumsum(np.bincount(lengths)) / len(lengths))


class FinishedTurns:
    """Blocks of finished requests but for their last: a turn is one whose blocks lead ours, beyond those all share."""

    def __init__(self) -> None:
        self._finished: set[tuple[int, ...]] = set()

    def add(self, blocks: tuple[int, ...]) -> None:
        self._finished.add(blocks[:-1])

    def has(self, blocks: tuple[int, ...]) -> bool:
        return any(blocks[:n] in self._finished for n in range(2, len(blocks) + 1))


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    trace = log("mooncake_conversation_trace.jsonl")
    trained = train(trace, Settings(), tmp_path_factory.mktemp("mooncake") / "bundle")
    forecaster = endcast.load_forecaster(trained.path, aborts=False)
    lengths, completions = trace.output_tokens, list(trace.completions())
    order = np.argsort(trace.arrival_s, kind="stable")
    cut = trace.arrival_s[order[round(0.7 * len(trace))]]
    running: list[tuple[float, int]] = []
    turns, tested, had_turn, curves = FinishedTurns(), [], [], []
    for row in order.tolist():
        now = trace.arrival_s[row]
        while running and running[0][0] <= now:
            finished, other = heapq.heappop(running)
            turns.add(completions[other].request.prefix_blocks)
            if finished > cut:  # what had finished before is in the bundle's history
                forecaster.observe([completions[other]])
        if now >= cut:
            request = completions[row].request
            batch = forecaster.forecast_batch([Landmark(request=request)], 0)
            steps = np.arange(lengths[row])[:, None]
            curves.append((1.0 - batch.survival_at(steps + 64) / batch.survival_at(steps))[:, 0])
            tested.append(row)
            had_turn.append(turns.has(request.prefix_blocks))
        heapq.heappush(running, (float(trace.finished_s[row]), row))
    learned = lengths[(trace.arrival_s < cut) & (trace.finished_s <= cut)]
    survival = kaplan_meier(learned)
    elapsed = np.concatenate([np.arange(lengths[row]) for row in tested])
    at = np.minimum(np.array([elapsed, elapsed + 64]), len(survival) - 1)
    with np.errstate(invalid="ignore"):
        pooled = np.nan_to_num(1.0 - survival[at[1]] / survival[at[0]], nan=1.0)
    output = lengths[tested]
    request = np.repeat(np.arange(len(tested)), output)
    return Steps(request, np.concatenate(curves), pooled, (output[request] - elapsed <= 64) * 1.0, np.array(had_turn))


def test_mooncake(mooncake: Steps) -> None:
    skill, auc = mooncake.figures(np.ones_like(mooncake.had_turn))
    assert skill >= 0.07
    assert auc >= 0.77


def test_mooncake_after_a_finished_turn(mooncake: Steps) -> None:
    skill, auc = mooncake.figures(mooncake.had_turn)
    assert 500 < mooncake.had_turn.sum() < len(mooncake.had_turn) - 500
    assert skill >= 0.17
    assert auc >= 0.83


def test_mooncake_without_one_is_not_harmed(mooncake: Steps) -> None:
    skill, _ = mooncake.figures(~mooncake.had_turn)
    assert skill >= -0.005
