"""The forecast service without HTTP: bytes of a call in, bytes of the answer out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

import endcast
from endcast.errors import InputError
from endcast.forecaster import Forecaster
from endcast.serving.codec import decode_call
from endcast.serving.problems import invalid_field
from endcast.serving.reply import forecasts_reply
from endcast.serving.schema import BundleReply, ForecastsReply, HealthReply, ReadyReply
from endcast.serving.settings import Settings


@dataclass(frozen=True)
class Answer:
    """An answer's JSON, and how many forecasts it took."""

    body: bytes
    landmarks: int = 0


class ForecastService:
    """Answers calls with one forecaster. Not thread-safe, as a forecaster is not.

    ``forecaster`` may be replaced between two calls (a reload); each answer names the bundle that made it.
    """

    def __init__(self, settings: Settings, forecaster: Forecaster, manifest: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.forecaster = forecaster
        self.manifest = dict(manifest or {})

    def forecasts(self, body: bytes) -> Answer:
        """``POST /v1/forecasts``; ``ServiceError`` says why a body is refused."""
        call = decode_call(body, self.settings)
        if not call.landmarks:
            nothing = ForecastsReply(
                bundle=self.forecaster.bundle, state_version=self.forecaster.state_version, forecasts=[]
            )
            return Answer(msgspec.json.encode(nothing))
        try:
            forecasts = self.forecaster.forecast(call.landmarks)
        except InputError as error:
            raise invalid_field(error.field, "has a value that the bundle cannot forecast with", error.hint) from error
        reply = forecasts_reply(
            forecasts, call.request_ids, horizons=call.horizons, quantiles=call.quantiles, curve=call.curve
        )
        return Answer(msgspec.json.encode(reply), len(forecasts))

    def bundle(self) -> Answer:
        """``GET /v1/bundle``."""
        reply = BundleReply(
            bundle=self.forecaster.bundle,
            state_version=self.forecaster.state_version,
            endcast=endcast.__version__,
            manifest=self.manifest,
        )
        return Answer(msgspec.json.encode(reply))

    def health(self) -> Answer:
        """``GET /healthz``."""
        return Answer(msgspec.json.encode(HealthReply(status="ok")))

    def ready(self) -> Answer:
        """``GET /readyz``."""
        reply = ReadyReply(status="ready", bundle=self.forecaster.bundle, state_version=self.forecaster.state_version)
        return Answer(msgspec.json.encode(reply))
