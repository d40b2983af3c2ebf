"""The product-limit (Kaplan-Meier) estimator of token counts: the floor that every model must beat.

Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 1958. Time is discrete, so the hazard
at t is events at t over requests at risk at t (those that reached t); a request censored after token c is at risk
up to and including c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.errors import TrainingError
from endcast.survival import HAZARD_MAX, CurveTable, FloatArray, IntArray


def at_risk_and_events(lengths: npt.ArrayLike, ended: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Two (T+1,) arrays over t = 0 … T, T the longest: how many reached t, how many ended at t by an event.

    ``lengths`` (n,) tokens ≥ 1, ``ended`` (n,) whether each is an event (else censored after its last token).
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    is_event = np.broadcast_to(np.asarray(ended, dtype=bool), tokens.shape)
    if tokens.size == 0 or tokens.min() < 1:
        raise TrainingError("lengths must be given and at least one token each", hint="Leave out zero-token outputs")
    top = int(tokens.max())
    events = np.bincount(tokens[is_event], minlength=top + 1)
    left = np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=top + 1))[:-1]])
    return len(tokens) - left, events


def product_limit(lengths: npt.ArrayLike, ended: npt.ArrayLike = True, *, shrink: float = 0.0) -> FloatArray:
    """(T+1,), log S(t) for t = 0 … T, finite, non-increasing from 0.

    ``shrink`` ≥ 0 is added to the number at risk: 0 is the estimator itself, one half keeps the last hazard below 1
    for whoever extrapolates from it.
    """
    at_risk, events = at_risk_and_events(lengths, ended)
    hazard = np.minimum(events / (np.maximum(at_risk, 1) + shrink), HAZARD_MAX)
    hazard[0] = 0.0
    log_survival: FloatArray = np.cumsum(np.log1p(-hazard))
    return log_survival


def table_of(log_survival: FloatArray) -> CurveTable:
    """One curve, read at every token; beyond the last observed length its mean hazard per token goes on."""
    last = len(log_survival) - 1
    tail = np.array([log_survival[-1] / max(last, 1)])
    return CurveTable.from_log_survival(np.arange(last + 1), log_survival[None, :], tail)
