"""endcast forecasts when each LLM generation will end, and routes requests with those forecasts.

The public names below are the ones that stay; everything else may move. ``docs/notation.md`` is the dictionary.
"""

from __future__ import annotations

from pathlib import Path

import numpy.typing as npt

from endcast.errors import BundleError, EndcastError, InputError, TraceError
from endcast.forecaster import Forecaster, ForecastStream
from endcast.survival import CurveTable, Forecast, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request

__version__ = "0.1.0"


def load_forecaster(path: Path | str, *, aborts: bool = True, recalibrate: bool = True) -> Forecaster:
    """The forecaster of the bundle in the folder ``path``; ``BundleError`` if it must be refused.

    ``aborts``: curves carry the chance that the client leaves. ``recalibrate``: ``observe`` also corrects hazards.
    """
    from endcast.predictors.onnx_forecaster import load_forecaster as load

    return load(path, aborts=aborts, recalibrate=recalibrate)


def kaplan_meier(lengths: npt.ArrayLike, ended: npt.ArrayLike = True) -> Forecaster:
    """The product-limit curve of ``lengths`` (n,) tokens ≥ 1; ``ended`` (n,) false where censored."""
    from endcast.predictors.curve_forecaster import kaplan_meier as fit

    return fit(lengths, ended)


def cold_start() -> Forecaster:
    """A prior for fleets without a log, flagged by ``known["prior"]``."""
    from endcast.predictors.curve_forecaster import cold_start as prior

    return prior()


__all__ = [
    "BundleError",
    "Completion",
    "CurveTable",
    "EndReason",
    "EndcastError",
    "Forecast",
    "ForecastStream",
    "Forecaster",
    "InputError",
    "Landmark",
    "Request",
    "SurvivalBatch",
    "TraceError",
    "__version__",
    "cold_start",
    "kaplan_meier",
    "load_forecaster",
]
