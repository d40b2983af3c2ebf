"""From forecasts to the values of a reply, for a whole batch at once.

Figures that are monotone by definition (p_end and expected_within in the horizon, a quantile in q, a curve) are
made so to the last bit, which sums of floating-point numbers do not keep by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import UNSET

from endcast.errors import BundleError
from endcast.serving.schema import Curve, ForecastReply, ForecastsReply
from endcast.survival import FloatArray, Forecast, IntArray, SurvivalBatch

#: The grid of a curve in a reply: each token up to 128, then 4 points an octave up to 131,072.
CURVE_TOKENS: IntArray = np.unique(
    np.concatenate([np.arange(129), np.round(128 * 2 ** (np.arange(41) / 4)).astype(np.int64)])
)
#: The same for every reply, so it is encoded once.
_CURVE_TOKENS_JSON = cast(list[int], msgspec.Raw(msgspec.json.encode(CURVE_TOKENS.tolist())))
_CURVE_DECIMALS = 7


def forecast_replies(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    *,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool,
) -> list[ForecastReply]:
    """One reply a forecast, in order; horizons and quantiles ascend. ``BundleError`` if a figure is not finite."""
    replies: dict[int, ForecastReply] = {}
    for index, batch in _by_batch(forecasts):
        figures = _Figures(batch, horizons, quantiles, curve=curve)
        replies.update((i, figures.reply(row, forecasts[i], request_ids[i])) for row, i in enumerate(index))
    return [replies[i] for i in range(len(forecasts))]


def forecasts_reply(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    *,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool = False,
) -> ForecastsReply:
    """The whole answer for at least one forecast; those of one call are of one bundle and one state."""
    return ForecastsReply(
        bundle=forecasts[0].bundle,
        state_version=forecasts[0].state_version,
        forecasts=forecast_replies(forecasts, request_ids, horizons=horizons, quantiles=quantiles, curve=curve),
    )


def _by_batch(forecasts: Sequence[Forecast]) -> Iterator[tuple[list[int], SurvivalBatch]]:
    """Forecasts that were made together (those of one call are), and their rows of that batch."""
    together: dict[int, list[int]] = {}
    for i, forecast in enumerate(forecasts):
        together.setdefault(id(forecast.batch), []).append(i)
    for index in together.values():
        rows = np.array([forecasts[i].row for i in index])
        yield index, forecasts[index[0]].batch.take(rows)


class _Figures:
    """All that a reply tells of a batch, as lists with one entry a forecast."""

    def __init__(
        self, batch: SurvivalBatch, horizons: Sequence[int], quantiles: Sequence[float], *, curve: bool
    ) -> None:
        windows = np.asarray(horizons, dtype=np.int64)[:, None]
        self.horizons = [str(h) for h in horizons]
        self.quantiles = [str(q) for q in quantiles]
        self.p_end = _rows(np.maximum.accumulate(1.0 - batch.survival_at(windows)))
        self.within = _rows(np.maximum.accumulate(batch.within(windows)))
        self.remaining = _rows(batch.expected_remaining)
        reached = [batch.quantile(q) for q in quantiles]
        self.reached = _rows(np.maximum.accumulate(np.reshape(reached, (len(quantiles), len(batch)))))
        self.curves = _rows(_curves(batch)) if curve else None

    def reply(self, row: int, forecast: Forecast, request_id: str | None) -> ForecastReply:
        """The reply for one row of the batch."""
        return ForecastReply(
            forecast_id=forecast.forecast_id,
            request_id=request_id,
            p_end=dict(zip(self.horizons, self.p_end[row], strict=True)),
            expected_within=dict(zip(self.horizons, self.within[row], strict=True)),
            expected_remaining=self.remaining[row],
            expected_output_tokens=forecast.generated_tokens + self.remaining[row],
            quantiles=dict(zip(self.quantiles, self.reached[row], strict=True)),
            known=dict(forecast.known),
            curve=UNSET if self.curves is None else Curve(further_tokens=_CURVE_TOKENS_JSON, survival=self.curves[row]),
        )


def _curves(batch: SurvivalBatch) -> FloatArray:
    """(len(CURVE_TOKENS), n), non-increasing along the first axis."""
    survival: FloatArray = np.minimum.accumulate(batch.survival_at(CURVE_TOKENS[:, None]))
    return survival.round(_CURVE_DECIMALS)


def _rows(figures: FloatArray) -> list[Any]:
    """(k, n) as n lists of k numbers, (n,) as n numbers; every one finite."""
    if not np.isfinite(figures).all():
        raise BundleError("the bundle gave a forecast that is not a finite number")
    rows: list[Any] = figures.T.tolist()
    return rows
