"""The forecast service without HTTP: decoded calls in, bytes of the answer out. Whoever calls this has the forecaster's turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from endcast.errors import BundleError, InputError
from endcast.serving.api.problems import ServiceError, invalid_field
from endcast.serving.bundles.holder import Loaded
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import Call
from endcast.serving.forecasts.degraded import degraded_forecasts, model_works
from endcast.serving.forecasts.reply import forecasts_json
from endcast.survival import Forecast


@dataclass(frozen=True)
class Part:
    """Some of a call's generations, ``start`` up to ``stop``."""

    call: Call
    start: int
    stop: int


@dataclass(frozen=True)
class Made:
    """Forecasts of one part as the inside of a JSON list, and the version of the state that they saw."""

    forecasts: bytes
    state_version: int


def forecast_together(parts: Sequence[Part], loaded: Loaded, context: Context) -> list[Made | Exception]:
    """What is made of each part, or why it cannot be: all are forecast in one go, each fails alone."""
    landmarks = [landmark for part in parts for landmark in part.call.landmarks[part.start : part.stop]]
    try:
        forecasts = loaded.forecaster.forecast(landmarks) if landmarks else []
        model_works(context)
    except Exception as error:  # noqa: BLE001  each call gets its own
        if len(parts) > 1:
            return [made for part in parts for made in forecast_together([part], loaded, context)]
        if isinstance(error, InputError):
            return [_refused(error)]
        forecasts = degraded_forecasts(landmarks, loaded, context, error)
    made: list[Made | Exception] = []
    at = 0
    for part in parts:
        end = at + part.stop - part.start
        try:
            made.append(_made(part, forecasts[at:end], loaded, context))
        except BundleError as error:  # the model's figures are not finite
            made.append(_made(part, degraded_forecasts(landmarks[at:end], loaded, context, error), loaded, context))
        except Exception as error:  # noqa: BLE001  the call's own: raised where it waits
            made.append(error)
        at = end
    return made


def _made(part: Part, forecasts: Sequence[Forecast], loaded: Loaded, context: Context) -> Made:
    call = part.call
    if not forecasts:
        context.metrics.landmarks.observe(0)
        return Made(b"", loaded.state_version)
    text = forecasts_json(
        forecasts,
        call.request_ids[part.start : part.stop],
        horizons=call.horizons,
        quantiles=call.quantiles,
        curve=call.curve,
    )
    context.metrics.landmarks.observe(len(forecasts))
    context.tell_served(forecasts, call.landmarks[part.start : part.stop])
    return Made(text, forecasts[0].state_version)


def _refused(error: InputError) -> ServiceError:
    return invalid_field(error.field, "has a value that the bundle cannot forecast with", error.hint)


def answer_of(made: Sequence[Made], bundle: str, state_version: int) -> tuple[bytes, ...]:
    """The JSON of a ``ForecastsReply``, in pieces as they were made: together they may be ten megabytes."""
    head = b'{"bundle":%b,"state_version":%d,"forecasts":[' % (msgspec.json.encode(bundle), state_version)
    pieces = [piece for part in made for piece in (b",", part.forecasts)]
    return (head, *pieces[1:], b"]}")
