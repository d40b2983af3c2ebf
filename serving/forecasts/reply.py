"""From forecasts to the JSON of a reply, for a whole batch at once.

Figures that are monotone by definition (p_end and expected_within in the horizon, a quantile in q, a curve) are
made so to the last bit, which sums of floating-point numbers do not keep by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from json.encoder import encode_basestring as quoted

import msgspec
import numpy as np

from endcast.errors import BundleError, InputError
from endcast.serving.api.schema import ForecastReply, ForecastsReply
from endcast.serving.forecasts.reply_kernel import figures
from endcast.serving.forecasts.text_kernel import MOST_CHARACTERS, MOST_IN_CURVE, MOST_TOKENS, Bytes, write_forecasts
from endcast.survival import Forecast, IntArray, SurvivalBatch
from endcast.types import shown

#: The grid of a curve in a reply: each token up to 128, then 4 points an octave up to 131,072.
CURVE_TOKENS: IntArray = np.unique(
    np.concatenate([np.arange(129), np.round(128 * 2 ** (np.arange(41) / 4)).astype(np.int64)])
)


@dataclass(frozen=True)
class _Pieces:
    """Texts, one after the other, and where each ends."""

    text: Bytes
    ends: IntArray

    @classmethod
    def of(cls, pieces: Iterable[str | bytes]) -> _Pieces:
        encoded = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.array([*accumulate(map(len, encoded))], np.int64))


#: What is the same in every curve.
_CURVE = _Pieces.of([b',"curve":{"further_tokens":' + msgspec.json.encode(CURVE_TOKENS.tolist()) + b',"survival":['])
_CURVE_END = _Pieces.of([b"]}"])


@lru_cache(maxsize=64)
def _between(horizons: tuple[int, ...], quantiles: tuple[float, ...]) -> _Pieces:
    """What stands before each of a forecast's numbers, and after all."""
    groups: list[tuple[str, list[str]]] = [
        ("p_end", [str(h) for h in horizons]),
        ("expected_within", [str(h) for h in horizons]),
        ("", ["expected_remaining", "expected_output_tokens"]),
        ("quantiles", [str(q) for q in quantiles]),
    ]
    pieces, piece = [], ""
    for name, keys in groups:
        opening, closing = (f',"{name}":{{', "}") if name else (",", "")
        for i, key in enumerate(keys):
            pieces.append(f'{piece}{opening if i == 0 else ","}"{key}":')
            piece = ""
        piece += closing if keys else opening + closing
    return _Pieces.of([*pieces, f'{piece},"known":'])


def forecasts_json(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    *,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool,
) -> bytes:
    """``ForecastReply`` objects in order, with commas between; horizons and quantiles ascend. ``BundleError`` if a figure is
    not finite, ``InputError`` for a quantile that is none."""
    for q in quantiles:
        if not 0.0 < q < 1.0:
            raise InputError("quantile", f"must lie strictly between 0 and 1, not {shown(q)}")
    if not forecasts:
        return b""
    asked = _Asked(tuple(horizons), tuple(quantiles), curve)
    groups = list(_by_batch(forecasts))
    if len(groups) == 1:  # all were made together, as those of one call are
        return _written(forecasts, request_ids, groups[0][1], asked)[0]
    replies: dict[int, bytes] = {}
    for index, batch in groups:
        text, ends = _written([forecasts[i] for i in index], [request_ids[i] for i in index], batch, asked)
        starts = (0, *(end + 1 for end in ends))
        replies.update(zip(index, (text[start:end] for start, end in zip(starts, ends, strict=False)), strict=True))
    return b",".join(replies[i] for i in range(len(forecasts)))


def forecasts_reply(
    forecasts: Sequence[Forecast],
    request_ids: Sequence[str | None],
    *,
    horizons: Sequence[int],
    quantiles: Sequence[float],
    curve: bool = False,
) -> ForecastsReply:
    """The whole answer for at least one forecast; those of one call are of one bundle and one state."""
    text = forecasts_json(forecasts, request_ids, horizons=horizons, quantiles=quantiles, curve=curve)
    return ForecastsReply(
        bundle=forecasts[0].bundle,
        state_version=forecasts[0].state_version,
        forecasts=msgspec.json.decode(b"[%b]" % text, type=list[ForecastReply]),
    )


def _by_batch(forecasts: Sequence[Forecast]) -> Iterator[tuple[list[int], SurvivalBatch]]:
    """Forecasts that were made together, in order, and their rows of that batch."""
    together: dict[int, list[int]] = {}
    for i, forecast in enumerate(forecasts):
        together.setdefault(id(forecast.batch), []).append(i)
    for index in together.values():
        batch, rows = forecasts[index[0]].batch, [forecasts[i].row for i in index]
        yield index, batch if rows == list(range(len(batch))) else batch.take(np.array(rows))


@dataclass(frozen=True)
class _Asked:
    """What a call wants to know of each."""

    horizons: tuple[int, ...]
    quantiles: tuple[float, ...]
    curve: bool


def _written(
    forecasts: Sequence[Forecast], request_ids: Sequence[str | None], batch: SurvivalBatch, asked: _Asked
) -> tuple[bytes, list[int]]:
    """The JSON of forecasts that are the rows of ``batch``, and where each ends."""
    n, windows, table = len(batch), len(asked.horizons), batch.table
    numbers = np.empty((n, 2 * windows + 2 + len(asked.quantiles)))
    curves = np.empty((n, len(CURVE_TOKENS) if asked.curve else 0))
    figures(
        numbers, curves, table.edges, table.log_survival, table.log_tail, table.widths,
        table.interval_of, batch.row, batch.position, batch.cap,
        np.array([forecast.generated_tokens for forecast in forecasts], dtype=np.int64),
        np.array(asked.horizons, dtype=np.int64), np.array(asked.quantiles, dtype=np.float64), CURVE_TOKENS,
    )  # fmt: skip
    np.exp(curves, out=curves)
    if not ((numbers < MOST_TOKENS).all() and np.isfinite(curves).all()):  # which NaN is not either
        raise BundleError("the bundle gave a forecast that is not a finite number")
    given = _Pieces.of(
        [
            f'{{"forecast_id":{quoted(forecast.forecast_id)},"request_id":{"null" if name is None else quoted(name)}'
            for forecast, name in zip(forecasts, request_ids, strict=True)
        ]
    )
    between = _between(asked.horizons, asked.quantiles)
    known, which = _known_texts(forecasts)
    each = len(between.text) + numbers.shape[1] * MOST_CHARACTERS + int(np.diff(known.ends, prepend=0).max()) + 2
    each += (len(_CURVE.text) + curves.shape[1] * MOST_IN_CURVE + len(_CURVE_END.text)) if asked.curve else 0
    text, ends = np.empty(len(given.text) + n * each, dtype=np.uint8), np.empty(n, dtype=np.int64)
    write_forecasts(
        text, ends, numbers, windows, curves, given.text, given.ends, between.text, between.ends,
        known.text, known.ends, which, _CURVE.text, _CURVE_END.text,
    )  # fmt: skip
    return text[: ends[-1]].tobytes(), ends.tolist()


def _known_texts(forecasts: Sequence[Forecast]) -> tuple[_Pieces, IntArray]:
    """The JSON of what was known, once for each ``known`` that forecasts share, and which is whose (n,)."""
    texts: dict[int, bytes] = {}
    place: dict[int, int] = {}
    which = np.empty(len(forecasts), dtype=np.int64)
    for i, forecast in enumerate(forecasts):
        key = id(forecast.known)
        if key not in place:
            place[key], texts[key] = len(place), msgspec.json.encode(forecast.known)
        which[i] = place[key]
    return _Pieces.of(texts.values()), which
