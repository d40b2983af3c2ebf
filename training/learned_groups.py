"""Feature groups that read with learned tables: taught before the log is replayed, and seen out of fold by the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from endcast.datasets.trace import IntArray, Trace
from endcast.errors import TrainingError
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.prompt_score import PromptScore
from endcast.predictors.features.protocol import Float32Array
from endcast.training.prompt_scores import fit_prompt_score
from endcast.training.replay import prompt_groups


def teach(
    part: Trace, rows: IntArray, pipeline: FeaturePipeline, seed: int, tell: Callable[[str], None]
) -> dict[str, Float32Array]:
    """Teach the pipeline's learned groups from ``rows`` (n,) of the training part; by group, the raw numbers (n, w) that the
    model is to be trained with: those of tables that had not seen the row's prompt."""
    out_of_fold: dict[str, Float32Array] = {}
    groups: Sequence[object] = pipeline.groups
    for group in groups:
        if isinstance(group, PromptScore):
            tell("learning what prompts' words say of lengths")
            drawn = part.take(rows)
            try:
                score, scores = fit_prompt_score(
                    list(drawn.requests()), drawn.output_tokens, drawn.is_event, prompt_groups(drawn), seed=seed
                )
            except TrainingError as error:
                tell(f"prompt_score stays unknown: {error.message}")
                continue
            group.set_score(score)
            out_of_fold[group.name] = group.raw_from_scores(scores)
    return out_of_fold


def in_place(
    raw: Sequence[Float32Array], pipeline: FeaturePipeline, out_of_fold: dict[str, Float32Array], order: IntArray
) -> list[Float32Array]:
    """Raw numbers by group with those out of fold put in; ``order`` (n,) says which of their rows each row of raw is."""
    return [
        out_of_fold[group.name][order] if group.name in out_of_fold else numbers
        for group, numbers in zip(pipeline.groups, raw, strict=True)
    ]
