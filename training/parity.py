"""Does the exported graph answer like the native model? Asked with inputs made to tell them apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from endcast.predictors.features.pipeline import LIMIT
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import Q_MAX, Q_MIN, logit

Hazards = Callable[[Float32Array], npt.NDArray[np.floating]]


def hard_inputs(
    features: Float32Array, rng: np.random.Generator, log_odds: npt.NDArray[np.bool_] | None = None
) -> Float32Array:
    """Rows like ``features`` (n, F): as they are, with values missing, swapped between rows, at their bounds, at zero,
    and one float32 step beside values of the training data (where thresholds lie). Columns (F,) of
    ``log_odds`` to be corrected are computed: never missing, and never beyond those of the hazards that curves have."""
    shape = features.shape
    some = rng.random(shape) < 0.3
    swapped = rng.permuted(features, axis=0)
    bounds = np.where(rng.random(shape) < 0.5, np.float32(LIMIT), np.float32(-LIMIT))
    step = np.where(rng.random(shape) < 0.5, np.float32(np.inf), np.float32(-np.inf))
    variants = [
        features,
        np.where(some, np.float32(np.nan), features),
        np.full_like(features, np.nan),
        np.zeros_like(features),
        swapped,
        np.where(some, bounds, features),
        np.nextafter(swapped, step),
    ]
    inputs: Float32Array = np.concatenate(variants).astype(np.float32)
    if log_odds is not None:
        missing = np.isnan(inputs) & log_odds
        inputs[missing] = np.tile(features, (len(variants), 1))[missing]
        least, most = logit(np.array([Q_MIN, Q_MAX])).astype(np.float32)
        inputs[:, log_odds] = np.clip(inputs[:, log_odds], least, most)
    return inputs


def worst_difference(native: Hazards, exported: Hazards, inputs: Float32Array) -> float:
    """Largest absolute difference of hazards over ``inputs`` (n, F), hard ones; NaN if any is not finite."""
    return float(np.abs(native(inputs) - exported(inputs)).max(initial=0.0))


def golden_features(inputs: Float32Array, rng: np.random.Generator, rows: int = 16) -> Float32Array:
    """(rows, F), some of the hard ``inputs``, for the bundle's golden pair."""
    return inputs[np.sort(rng.permutation(len(inputs))[:rows])]
