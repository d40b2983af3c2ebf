"""From forecasts to the values of a reply, for a whole batch at once.

Figures that are monotone by definition (p_end and expected_within in the horizon, a quantile in q, a curve) are
made so to the last bit, which sums of floating-point numbers do not keep by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from endcast.errors import BundleError, InputError
from endcast.serving.api.schema import Curve, ForecastReply, ForecastsReply
from endcast.serving.forecasts.reply_kernel import MOST_CHARACTERS, figures, write_curves
from endcast.survival import FloatArray, Forecast, IntArray, SurvivalBatch
from endcast.types import shown

#: The grid of a curve in a reply: each token up to 128, then 4 points an octave up to 131,072.
CURVE_TOKENS: IntArray = np.unique(
    np.concatenate([np.arange(129), np.round(128 * 2 ** (np.arange(41) / 4)).astype(np.int64)])
)
#: What is the same in every curve, encoded once.
_CURVE_HEAD = b'{"further_tokens":' + msgspec.json.encode(CURVE_TOKENS.tolist()) + b',"survival":['
_CURVE_END = b"]}"


def forecast_replies(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    *,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool,
) -> list[ForecastReply]:
    """One reply a forecast, in order; horizons and quantiles ascend. ``BundleError`` if a figure is not finite,
    ``InputError`` for a quantile that is none."""
    for q in quantiles:
        if not 0.0 < q < 1.0:
            raise InputError("quantile", f"must lie strictly between 0 and 1, not {shown(q)}")
    groups = list(_by_batch(forecasts))
    if len(groups) == 1:  # all were made together, as those of one call are
        return _replies(forecasts, request_ids, groups[0][1], horizons, quantiles, curve)
    replies: dict[int, ForecastReply] = {}
    for index, batch in groups:
        part = _replies(
            [forecasts[i] for i in index], [request_ids[i] for i in index], batch, horizons, quantiles, curve
        )
        replies.update(zip(index, part, strict=True))
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
    """Forecasts that were made together, in order, and their rows of that batch."""
    together: dict[int, list[int]] = {}
    for i, forecast in enumerate(forecasts):
        together.setdefault(id(forecast.batch), []).append(i)
    for index in together.values():
        batch, rows = forecasts[index[0]].batch, [forecasts[i].row for i in index]
        yield index, batch if rows == list(range(len(batch))) else batch.take(np.array(rows))


def _replies(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    batch: SurvivalBatch,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool,
) -> list[ForecastReply]:
    """Replies for forecasts that are the rows of ``batch``."""
    n = len(batch)
    p_end, within = np.empty((n, len(horizons))), np.empty((n, len(horizons)))
    remaining, reached = np.empty(n), np.empty((n, len(quantiles)))
    curves = np.empty((n, len(CURVE_TOKENS) if curve else 0))
    table = batch.table
    figures(
        p_end, within, remaining, reached, curves,
        table.edges, table.log_survival, table.log_tail, table.widths,
        table.interval_of, batch.row, batch.position, batch.cap,
        np.array(horizons, dtype=np.int64), np.array(quantiles, dtype=np.float64), CURVE_TOKENS,
    )  # fmt: skip
    np.exp(curves, out=curves)
    if not all(np.isfinite(part).all() for part in (p_end, within, remaining, reached, curves)):
        raise BundleError("the bundle gave a forecast that is not a finite number")
    by_horizon, by_quantile = [str(h) for h in horizons], [str(q) for q in quantiles]
    columns = (p_end.tolist(), within.tolist(), remaining.tolist(), reached.tolist())
    texts = _curve_texts(curves) if curve else [UNSET] * n
    return [
        ForecastReply(
            forecast_id=forecast.forecast_id,
            request_id=request_id,
            p_end=dict(zip(by_horizon, ends, strict=True)),
            expected_within=dict(zip(by_horizon, inside, strict=True)),
            expected_remaining=rest,
            expected_output_tokens=forecast.generated_tokens + rest,
            quantiles=dict(zip(by_quantile, at, strict=True)),
            known=cast(dict[str, bool], forecast.known),
            curve=text,
        )
        for forecast, request_id, ends, inside, rest, at, text in zip(
            forecasts, request_ids, *columns, texts, strict=True
        )
    ]


def _curve_texts(curves: FloatArray) -> Sequence[Curve | UnsetType]:
    """Curves (n, C) as encoded ``Curve`` objects."""
    text, ends = np.empty(curves.size * MOST_CHARACTERS, dtype=np.uint8), np.empty(len(curves) + 1, dtype=np.int64)
    write_curves(text, ends, np.clip(curves, 0.0, 1.0))
    whole, at = text[: ends[-1]].tobytes(), ends.tolist()
    return [
        cast(Curve, msgspec.Raw(b"".join((_CURVE_HEAD, whole[start:stop], _CURVE_END)))) for start, stop in pairwise(at)
    ]
