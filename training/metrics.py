"""Accuracy of forecasts of ends: pure functions on arrays, each with its source.

``p`` (r,) forecast chance of an end within H, ``y`` (r,) 0 or 1 whether it came, ``w`` (r,) weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from endcast.survival import FloatArray

#: Bins of equal mass of the calibration error, and where log loss stops growing.
ECE_BINS, LOG_FLOOR = 15, 1e-6
#: Requests that the concordance index compares at most (all pairs of them).
MOST_CONCORDANCE = 8192

Array = npt.NDArray[np.floating]


def brier(p: Array, y: Array, w: Array | None = None) -> float:
    """Mean squared error of the chance. Brier, 1950."""
    return float(np.average((p - y) ** 2, weights=w))


def skill(score: float, reference: float) -> float:
    """1 − score/reference: 0 is the reference, 1 perfect; NaN where the reference makes no error."""
    return 1.0 - score / reference if reference > 0.0 else float("nan")


def binary_log_loss(p: Array, y: Array) -> float:
    """Mean −log of the chance given to what happened, chances kept ``LOG_FLOOR`` off 0 and 1."""
    clipped = np.clip(p, LOG_FLOOR, 1.0 - LOG_FLOOR)
    return float(-np.mean(np.where(y > 0.5, np.log(clipped), np.log1p(-clipped))))


def auc(p: Array, y: Array, w: Array | None = None) -> float:
    """Chance that an end within H was given a higher p than none; NaN if only one kind occurs. Hanley and McNeil, 1982."""
    present = y if w is None else y[w > 0]
    if present.size == 0 or present.min() == present.max():
        return float("nan")
    return float(roc_auc_score(y, p, sample_weight=w))


def equal_mass_bins(p: Array, bins: int = ECE_BINS) -> npt.NDArray[np.int64]:
    """(r,), each forecast's bin, bins cut at the quantiles of ``p``; equal forecasts share one."""
    cuts = np.quantile(p, np.linspace(0.0, 1.0, bins + 1)[1:-1])
    found: npt.NDArray[np.int64] = np.searchsorted(cuts, p, side="right").astype(np.int64)
    return found


def reliability(p: Array, y: Array, bins: int = ECE_BINS) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean forecast, share of ends and mass of each bin that holds any."""
    which = equal_mass_bins(p, bins)
    count = np.bincount(which, minlength=bins).astype(np.float64)
    held = count > 0
    mean = np.bincount(which, weights=p, minlength=bins)[held] / count[held]
    share = np.bincount(which, weights=y, minlength=bins)[held] / count[held]
    return mean, share, count[held] / len(p)


def ece(p: Array, y: Array) -> float:
    """Expected calibration error: mean over equal-mass bins of |forecast − share of ends|. Naeini et al., 2015."""
    mean, share, mass = reliability(p, y)
    return float(np.sum(mass * np.abs(mean - share)))


def concordance(predicted: Array, lengths: npt.NDArray[np.int64], rng: np.random.Generator) -> float:
    """C-index: chance that of two requests the longer one was forecast longer; ties in forecasts count half. All pairs of at
    most ``MOST_CONCORDANCE`` requests, drawn at random. Harrell et al., 1982."""
    if len(lengths) > MOST_CONCORDANCE:
        drawn = rng.permutation(len(lengths))[:MOST_CONCORDANCE]
        predicted, lengths = predicted[drawn], lengths[drawn]
    right = pairs = 0.0
    for i in range(1, len(lengths)):
        longer = lengths[:i] < lengths[i]
        shorter = lengths[:i] > lengths[i]
        above, below = predicted[:i] < predicted[i], predicted[:i] > predicted[i]
        pairs += longer.sum() + shorter.sum()
        right += (longer & above).sum() + (shorter & below).sum() + 0.5 * ((longer | shorter) & ~above & ~below).sum()
    return float(right / pairs) if pairs else float("nan")
