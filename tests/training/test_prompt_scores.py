"""What the words of prompts are taught of lengths."""

from __future__ import annotations

import numpy as np
import pytest

from endcast import Request
from endcast.errors import TrainingError
from endcast.predictors.features.prompt_score import PromptScore, grams_of
from endcast.predictors.grid import IntervalGrid
from endcast.training.prompt_scores import fit_prompt_score, prompt_targets

WORDS = ("river", "stone", "cloud", "bird", "glass", "paper", "lamp", "chair")


def log_of(answers: int = 3, seed: int = 0) -> tuple[list[Request], np.ndarray, np.ndarray]:
    """Prompts of which "essay" gets 20 times the tokens of "briefly"; model b says twice as much as model a."""
    rng = np.random.default_rng(seed)
    requests, lengths, group = [], [], []
    for prompt in range(120):
        long = prompt % 2
        text = f"{('briefly', 'essay')[long]} about {' '.join(rng.choice(WORDS, 3))} {prompt}"
        for answer in range(answers):
            model = "ab"[(prompt // 2 + answer) % 2]
            requests.append(Request(request_id=f"{prompt}.{answer}", prompt=text, model=model))
            lengths.append(int(20 * 20**long * (1 + (model == "b")) * np.exp(rng.normal() * 0.2)))
            group.append(prompt)
    return requests, np.array(lengths), np.array(group)


@pytest.mark.parametrize("answers", [1, 3])
def test_the_score_tells_long_from_short(answers: int) -> None:
    requests, lengths, group = log_of(answers)
    score, scores = fit_prompt_score(requests, lengths, np.ones(len(lengths), dtype=bool), group)
    long = group % 2 == 1
    assert scores[long].min() > scores[~long].max()
    assert scores[long].mean() == pytest.approx(np.log(lengths[long]).mean(), abs=0.4)
    new = grams_of(Request(request_id="new", prompt="essay about a bird"))
    other = grams_of(Request(request_id="new", prompt="briefly about a bird"))
    assert new is not None and other is not None and score.of(new) > score.of(other) + 0.5


def test_training_rows_get_scores_of_others() -> None:
    requests, lengths, group = log_of()
    score, scores = fit_prompt_score(requests, lengths, np.ones(len(lengths), dtype=bool), group)
    served = PromptScore(IntervalGrid(np.array([0, 1]), np.array([0.0, -1.0])))
    served.set_score(score)
    own = served.collect(requests)[:, 0]
    assert not np.allclose(own, served.raw_from_scores(scores)[:, 0], atol=1e-3)
    per_prompt = np.array([scores[group == prompt] for prompt in range(120)])
    assert (per_prompt == per_prompt[:, :1]).all()


def test_rows_without_text_have_no_score() -> None:
    requests, lengths, group = log_of()
    bare = [Request(request_id=f"n{i}", prompt_tokens=3) for i in range(4)]
    groups = np.concatenate([group, 500 + np.arange(4)])
    _, scores = fit_prompt_score(
        [*requests, *bare], np.concatenate([lengths, [10**6] * 4]), np.ones(len(groups), dtype=bool), groups
    )
    assert np.isnan(scores[-4:]).all() and np.isfinite(scores[:-4]).all() and scores[:-4].max() < 9


def test_what_did_not_end_teaches_nothing_but_is_scored() -> None:
    requests, lengths, group = log_of()
    ended = group % 10 != 1
    _, scores = fit_prompt_score(requests, np.where(ended, lengths, 1), ended, group)
    long = group % 2 == 1
    assert np.isfinite(scores).all()
    assert scores[long & ~ended].min() > scores[~long].max()


def test_too_few_prompts_are_refused() -> None:
    requests, lengths, _ = log_of()
    with pytest.raises(TrainingError, match="fewer than two prompts"):
        fit_prompt_score(requests, lengths, np.ones(len(lengths), dtype=bool), np.zeros(len(lengths), dtype=int))


def test_targets_are_free_of_the_models_habits() -> None:
    """Prompt 0 was asked of the talkative model alone, prompt 1 of the terse one; 2 to 9 of both, all equally long."""
    group = np.array([0, 0, 1, 1, *np.repeat(np.arange(2, 10), 2)])
    models = ["talks", "talks", "terse", "terse", *["talks", "terse"] * 8]
    logs = np.array([6.0 if name == "talks" else 4.0 for name in models])
    targets, weights = prompt_targets(logs, models, group)
    plain, _ = prompt_targets(logs, None, group)
    assert plain[0] - plain[1] == pytest.approx(2.0)
    assert 0 <= targets[0] - targets[1] < 0.9
    np.testing.assert_allclose(targets[2:], 5.0, atol=0.1)
    np.testing.assert_allclose(weights, 2 / 3)


def test_unknown_models_are_one_model() -> None:
    logs, group = np.array([1.0, 2.0, 3.0]), np.arange(3)
    np.testing.assert_allclose(prompt_targets(logs, [None] * 3, group)[0], prompt_targets(logs, None, group)[0])
