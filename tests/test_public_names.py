"""The public names stay: adding one changes this list, dropping one breaks somebody."""

from __future__ import annotations

import endcast

PUBLIC = [
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


def test_public_names_are_pinned() -> None:
    assert sorted(endcast.__all__) == PUBLIC


def test_every_public_name_is_there() -> None:
    missing = [name for name in endcast.__all__ if not hasattr(endcast, name)]
    assert not missing


def test_end_reasons_are_pinned() -> None:
    assert [str(reason) for reason in endcast.EndReason] == ["stop", "length", "abort", "error", "unfinished"]
