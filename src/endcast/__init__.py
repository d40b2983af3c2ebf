"""endcast forecasts when each LLM generation will end, and routes requests with those forecasts.

The public names below are the ones that stay; everything else may move. ``docs/notation.md`` is the dictionary.
"""

from endcast.errors import BundleError, EndcastError, InputError, TraceError
from endcast.forecaster import Forecaster, ForecastStream
from endcast.survival import CurveTable, Forecast, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request

__version__ = "0.1.0"

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
]
