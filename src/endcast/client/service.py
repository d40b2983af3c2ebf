"""The service as a router's forecaster: its own forecasts or an error at once, never anything else in their name.

``RemoteForecaster`` stands in for a service that does not answer. A router has a better stand-in, policies without forecasts,
so it must be told: every failure, also an answer that is marked as degraded, is ``ServiceUnavailable`` here. Nothing is tried
again, and outcomes go beside the forecasts, in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from endcast.client.attempts import Options
from endcast.client.curves import joined_batch
from endcast.client.errors import CallRefused, ClientError, ServiceUnavailable, UnexpectedAnswer
from endcast.client.outcomes import OutcomePoster
from endcast.client.remote import RemoteStream, answers, forecasts_of, landmark_of, parts_of
from endcast.client.retry import NO_RETRIES
from endcast.client.sync import Client
from endcast.errors import BundleError
from endcast.forecaster import ForecastStream
from endcast.survival import Forecast, SurvivalBatch
from endcast.types import Completion, Landmark, Request

#: Seconds that an outcome call may take; nobody waits for it.
_OUTCOMES_TIMEOUT_S = 5.0


def service_forecaster(url: str, *, key: str | None = None, timeout_s: float = 0.05) -> ServiceForecaster:
    """Forecasts from the service at ``url``, each call within ``timeout_s`` or not at all; nothing is called yet."""
    client = Client(url, Options(key=key, timeout_s=timeout_s, connect_timeout_s=timeout_s, retries=NO_RETRIES))
    poster = OutcomePoster(Client(url, Options(key=key, timeout_s=_OUTCOMES_TIMEOUT_S, retries=NO_RETRIES)))
    return ServiceForecaster(client, poster, name=url)


class ServiceForecaster:
    """A ``Forecaster`` for routers; one thread at a time, but for ``bundle``. Every call may raise ``ClientError``."""

    def __init__(self, client: Client, poster: OutcomePoster, *, name: str) -> None:
        """``name`` stands for the bundle until the service has told which it has."""
        self._client, self.poster = client, poster
        self.bundle = name  #: id of the bundle that answered last
        self.state_version = 0  #: of the answer that came last
        self.refresh_every: int | None = (
            None  #: tokens after which a forecast pays; ``None``: the bundle reads no outputs
        )
        self._asked_about = ""  # the bundle whose manifest was read

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, in order."""
        return [one for part in parts_of(landmarks) for one in self._ask(part)]

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays; ``horizon`` in tokens, ≥ 0. Streams are asked about with their whole text."""
        made = self.forecast([each if isinstance(each, Landmark) else landmark_of(each) for each in landmarks])
        return joined_batch(made, horizon)

    def observe(self, completions: Sequence[Completion]) -> None:
        """To be told to the service, soon."""
        self.poster.put(completions)

    def snapshot(self) -> bytes:
        """Which state of the service answered last; the state itself stays there."""
        return msgspec.msgpack.encode((self.bundle, self.state_version))

    def restore(self, state: bytes) -> None:
        """Always ``BundleError``: the state is the service's."""
        raise BundleError("the state of a remote forecaster is its service's", hint="Restart the service instead")

    def open(self, request: Request) -> RemoteStream:
        """Begin a stream; its text is kept here and sent whole."""
        return RemoteStream(self, request)

    def close(self) -> None:
        """Tell what is left of outcomes, and close all connections."""
        self.poster.stop()
        self._client.close()

    def _ask(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        try:
            reply = self._client.forecasts(landmarks, horizons=(), quantiles=(), curve=True)
        except CallRefused as error:
            raise ServiceUnavailable(f"the service refuses the call: {error.message}", hint=error.hint) from error
        if not answers(reply.forecasts, len(landmarks)):
            raise UnexpectedAnswer(f"the service answered {len(landmarks)} requests with something else")
        if any(each.known.get("degraded") for each in reply.forecasts):
            raise ServiceUnavailable("the service's model fails; it answers with Kaplan-Meier")
        self.bundle, self.state_version = reply.bundle, reply.state_version
        if self._asked_about != reply.bundle:
            self._read_manifest()
        return forecasts_of(reply, landmarks)

    def _read_manifest(self) -> None:
        """What the bundle says of outputs; asked again with the next forecasts where there is no answer."""
        try:
            told = self._client.bundle()
        except ClientError:
            return
        output: Any = told.manifest.get("output")
        every = output.get("every") if isinstance(output, dict) else None
        self.refresh_every = every if type(every) is int and every > 0 else None
        self._asked_about = told.bundle
