"""Forecasters that know one curve: Kaplan-Meier of given lengths, and a prior for those who have no log yet."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.forecaster import ForecastStream
from endcast.predictors.product_limit import product_limit, table_of
from endcast.predictors.streams import CountedStream, remaining_cap
from endcast.survival import CurveTable, Forecast, SurvivalBatch
from endcast.types import Completion, Landmark, Request

#: The prior is log-logistic: half of all generations end within ``PRIOR_MEDIAN`` tokens, and its shape makes one in
#: ten run beyond five times that. Medians of public logs lie on both sides: 13 (Azure 2023 code), 129 (its conversations), 350
#: (Mooncake), so it is a stand-in until there is a log, and no more.
PRIOR_MEDIAN, PRIOR_SHAPE, PRIOR_LONGEST = 200.0, 1.37, 32_768


class CurveForecaster:
    """A ``Forecaster`` that reads one curve at each request's elapsed tokens; inputs but the cap change nothing."""

    def __init__(self, table: CurveTable, name: str, known: dict[str, bool]) -> None:
        self._table = table
        self._name = name
        self._known = known
        self._observed = 0

    @property
    def bundle(self) -> str:
        """``kaplan_meier`` or ``cold_start``."""
        return self._name

    @property
    def state_version(self) -> int:
        """Completions told of; they are counted only."""
        return self._observed

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark."""
        return Forecast.from_batch(
            self.forecast_batch(landmarks, 0),
            bundle=self._name,
            generated=[landmark.generated_tokens for landmark in landmarks],
            known=[{**self._known, "cap": landmark.request.cap is not None} for landmark in landmarks],
            state_version=self._observed,
        )

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays: all rows share the curve."""
        generated = np.array([item.generated_tokens for item in landmarks], dtype=np.int64)
        cap = remaining_cap([item.request for item in landmarks], generated)
        return SurvivalBatch(self._table, np.zeros(len(landmarks), dtype=np.int64), generated, cap, horizon)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Count them."""
        self._observed += len(completions)

    def snapshot(self) -> bytes:
        """The count."""
        return msgspec.msgpack.encode((self._name, self._observed))

    def restore(self, state: bytes) -> None:
        """Take the count back."""
        try:
            name, observed = msgspec.msgpack.decode(state, type=tuple[str, int])
        except msgspec.DecodeError as error:
            raise BundleError(f"the snapshot is damaged: {error}") from None
        if name != self._name:
            raise BundleError(f"the snapshot is of {name:.80}, not of {self._name}")
        self._observed = observed

    def open(self, request: Request) -> CountedStream:
        """Begin a stream."""
        return CountedStream(self, request)


def kaplan_meier(lengths: npt.ArrayLike, ended: npt.ArrayLike = True) -> CurveForecaster:
    """The product-limit curve of ``lengths`` (n,) tokens ≥ 1; ``ended`` (n,) false where censored."""
    return CurveForecaster(table_of(product_limit(lengths, ended)), "kaplan_meier", {"prior": False})


def cold_start() -> CurveForecaster:
    """A prior for fleets without a log: flagged by ``known["prior"]``; replace it with a bundle of your own log."""
    edges = np.unique(np.concatenate([np.arange(257), np.geomspace(256, PRIOR_LONGEST, 200).astype(np.int64)]))
    log_survival = -np.log1p((edges / PRIOR_MEDIAN) ** PRIOR_SHAPE)
    return CurveForecaster(CurveTable.from_log_survival(edges, log_survival[None, :]), "cold_start", {"prior": True})
