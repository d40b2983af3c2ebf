"""Step times fitted to what engines recorded: t_fixed + t_batch·batch + t_kv·load, no term below 0.

Least squares under x ≥ 0 with three unknowns has eight possible sets of terms at 0: each is solved, and the best one
without a negative term is the answer (Lawson, Hanson 1974 do the same for many unknowns). Steps that a pause or a
prefill made long would pull the line up, so residuals beyond 1.345 robust deviations count less (Huber 1964), found by
reweighting. Intervals come from resampling blocks of consecutive steps, which are alike.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from endcast.errors import InputError
from endcast.router.scale import StepTime
from endcast.survival import FloatArray

#: Terms, in this order in all arrays.
TERMS = ("fixed_s", "batch_s", "kv_s")
#: Fewer steps than this say nothing.
FEWEST_STEPS = 30
_HUBER, _MAD_TO_DEVIATION, _ROUNDS = 1.345, 1.4826, 30
_BLOCKS, _RESAMPLES, _LEVEL = 50, 400, 0.95
#: The share of steps, the last, on which a fit to the others is tried.
_TRIED = 0.2
#: A correlation of batch and load from which their terms can hardly be told apart.
_ALIKE = 0.98


@dataclass(frozen=True)
class StepFit:
    """``step_time`` and its 95 % ``interval`` by term; of ``steps`` recorded ones: ``r2`` variance explained, in (−∞, 1];
    ``error`` and ``error_p90``, median and 90th percentile of |fitted − recorded| / recorded; ``held_out_error``, the
    median over the last fifth, fitted without it; ``outliers``, the share that counted less; ``alike``, correlation of
    batch and load."""

    step_time: StepTime
    interval: dict[str, tuple[float, float]]
    steps: int
    r2: float
    error: float
    error_p90: float
    held_out_error: float
    outliers: float
    alike: float

    @property
    def warnings(self) -> list[str]:
        """What makes the fit less than it seems."""
        told = []
        if self.alike > _ALIKE:
            told.append(
                f"batch and KV load rise and fall together (correlation {self.alike:.3f}): what a step takes is told well, "
                "which of the two it is due to is not"
            )
        if self.r2 < 0.5:
            told.append(
                f"batch and load explain {max(self.r2, 0.0):.0%} of the variance only: steps depend on something else"
            )
        return told


def fit_step_time(step_s: FloatArray, batch: FloatArray, kv_tokens: FloatArray, *, seed: int = 0) -> StepFit:
    """Fit recorded steps (n,), in order of time: seconds > 0, requests of the largest batch, KV tokens of the heaviest worker.

    ``InputError`` with fewer than 30 of them, or where all had the same batch and load.
    """
    if len(step_s) < FEWEST_STEPS:
        raise InputError("steps", f"{len(step_s)} are too few to fit, {FEWEST_STEPS} are needed")
    design = np.column_stack([np.ones_like(step_s), batch, kv_tokens]).astype(np.float64)
    if np.ptp(design[:, 1]) == 0.0 and np.ptp(design[:, 2]) == 0.0:
        raise InputError(
            "steps", "all have the same batch and load, so what these cost cannot be told",
            hint="Record steps at several loads",
        )  # fmt: skip
    scale = np.maximum(design.max(axis=0), 1e-12)
    scaled = design / scale
    solution, weight = robust_line(scaled, step_s)
    kept = max(round((1.0 - _TRIED) * len(step_s)), FEWEST_STEPS - 1)
    earlier, _ = robust_line(scaled[:kept], step_s[:kept])
    fitted = scaled @ solution
    error = np.abs(fitted - step_s) / step_s
    low, high = _interval(scaled, step_s, weight, np.random.default_rng(seed)) / scale
    varies = np.ptp(design[:, 1]) > 0.0 and np.ptp(design[:, 2]) > 0.0
    return StepFit(
        step_time=StepTime(**dict(zip(TERMS, (solution / scale).tolist(), strict=True))),
        interval={name: (float(low[i]), float(high[i])) for i, name in enumerate(TERMS)},
        steps=len(step_s),
        r2=float(1.0 - np.sum((step_s - fitted) ** 2) / max(np.sum((step_s - step_s.mean()) ** 2), 1e-300)),
        error=float(np.median(error)),
        error_p90=float(np.percentile(error, 90.0)),
        held_out_error=float(np.median(np.abs(scaled[kept:] @ earlier - step_s[kept:]) / step_s[kept:])),
        outliers=float(np.mean(weight < 1.0 - 1e-9)),
        alike=float(np.corrcoef(design[:, 1], design[:, 2])[0, 1]) if varies else 0.0,
    )


def robust_line(design: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """x ≥ 0 (3,) that minimises Huber's loss of ``design`` (n, 3) @ x − ``target`` (n,), and the weights (n,) in (0, 1]."""
    weight = np.ones(len(target))
    solution = _weighted(design, target, weight)
    for _ in range(_ROUNDS):
        residual = np.abs(design @ solution - target)
        bound = _HUBER * _MAD_TO_DEVIATION * float(np.median(residual))
        weight = np.minimum(1.0, bound / np.maximum(residual, 1e-300)) if bound > 0.0 else np.ones(len(target))
        before, solution = solution, _weighted(design, target, weight)
        if np.allclose(before, solution, rtol=1e-9, atol=0.0):
            break
    return solution, weight


def _weighted(design: FloatArray, target: FloatArray, weight: FloatArray) -> FloatArray:
    weighted = design * weight[:, None]
    return least_squares_above_zero(weighted.T @ design, weighted.T @ target)


def least_squares_above_zero(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """x ≥ 0 (k,) that minimises xᵀ·``gram`` (k, k)·x − 2·xᵀ·``moment`` (k,): every set of terms is tried, k is small."""
    count = len(moment)
    best, least = np.zeros(count), 0.0
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], moment[list(chosen)], rcond=None)[0]
            if part.min() < 0.0:
                continue
            candidate = np.zeros(count)
            candidate[list(chosen)] = part
            value = float(candidate @ gram @ candidate - 2.0 * candidate @ moment)
            if value < least:
                best, least = candidate, value
    return best


def _interval(design: FloatArray, target: FloatArray, weight: FloatArray, rng: np.random.Generator) -> FloatArray:
    """(2, 3): between which each term lies in 95 % of fits to resampled blocks of steps, at the weights found."""
    blocks = np.array_split(np.arange(len(target)), min(_BLOCKS, len(target) // 2))
    weighted = design * weight[:, None]
    grams = np.stack([weighted[part].T @ design[part] for part in blocks])
    moments = np.stack([weighted[part].T @ target[part] for part in blocks])
    drawn = rng.multinomial(len(blocks), np.full(len(blocks), 1.0 / len(blocks)), size=_RESAMPLES).astype(np.float64)
    fits = [
        least_squares_above_zero(gram, moment)
        for gram, moment in zip(np.tensordot(drawn, grams, 1), drawn @ moments, strict=True)
    ]
    tail = 50.0 * (1.0 - _LEVEL)
    bounds: FloatArray = np.percentile(fits, [tail, 100.0 - tail], axis=0)
    return bounds
