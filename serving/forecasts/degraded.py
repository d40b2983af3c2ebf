"""Answers while a model fails: the Kaplan-Meier curve that its bundle carries, marked as degraded.

A caller that routes requests is better off with a forecast that knows only how long each has run than with none. Whatever
the model's fault is, it is logged once with its traceback, counted, and shown by ``endcast_degraded``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from endcast import cold_start
from endcast.forecaster import Forecaster
from endcast.predictors.curve_forecaster import CurveForecaster
from endcast.predictors.product_limit import table_of
from endcast.serving.bundles.holder import Loaded
from endcast.serving.context import Context
from endcast.survival import Forecast
from endcast.types import Landmark

LOG = logging.getLogger("endcast.model")

_fallbacks: WeakKeyDictionary[Loaded, Forecaster] = WeakKeyDictionary()


def fallback_of(loaded: Loaded) -> Forecaster:
    """Kaplan-Meier of what a bundle was trained on; the published prior where it carries no such curve."""
    if loaded not in _fallbacks:
        curve = getattr(loaded.forecaster, "kaplan_meier", None)
        known = {"prior": False}
        _fallbacks[loaded] = (
            CurveForecaster(table_of(curve), "kaplan_meier", known) if isinstance(curve, np.ndarray) else cold_start()
        )
    return _fallbacks[loaded]


def degraded_forecasts(
    landmarks: Sequence[Landmark], loaded: Loaded, context: Context, error: Exception
) -> list[Forecast]:
    """One forecast a landmark without the model, which failed with ``error``."""
    if context.metrics.model_failed(len(landmarks)):
        LOG.error("the model failed; Kaplan-Meier answers", exc_info=error, extra={"fields": {"bundle": loaded.id}})
    made = fallback_of(loaded).forecast(landmarks)
    return [replace(each, known={**each.known, "degraded": True}, state_version=loaded.state_version) for each in made]


def model_works(context: Context) -> None:
    """The model answered."""
    if context.metrics.model_answered():
        LOG.info("the model answers again")
