"""The forecast service without HTTP: bytes of a call in, bytes of the answer out."""

from __future__ import annotations

import msgspec

from endcast.errors import InputError
from endcast.serving.bundles import Loaded
from endcast.serving.codec import decode_call
from endcast.serving.context import Context
from endcast.serving.endpoints import Answer
from endcast.serving.problems import invalid_field
from endcast.serving.reply import forecasts_reply
from endcast.serving.schema import ForecastsReply


class ForecastService:
    """Answers calls. Not thread-safe, as a forecaster is not: callers hold the bundle's turn."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def forecasts(self, body: bytes, loaded: Loaded) -> Answer:
        """``POST /v1/forecasts``; ``ServiceError`` says why a body is refused."""
        call = decode_call(body, self._context.settings)
        self._context.metrics.landmarks.observe(len(call.landmarks))
        if not call.landmarks:
            nothing = ForecastsReply(bundle=loaded.id, state_version=loaded.state_version, forecasts=[])
            return Answer(msgspec.json.encode(nothing))
        try:
            forecasts = loaded.forecaster.forecast(call.landmarks)
        except InputError as error:
            raise invalid_field(error.field, "has a value that the bundle cannot forecast with", error.hint) from error
        reply = forecasts_reply(
            forecasts, call.request_ids, horizons=call.horizons, quantiles=call.quantiles, curve=call.curve
        )
        self._context.tell_served(forecasts, call.landmarks)
        return Answer(msgspec.json.encode(reply))
