"""The forecast service as a ``Forecaster``: a router in another process uses it like a bundle of its own.

Each forecast is asked for with its whole curve, so that what a router does in between (advance by a token, read windows)
needs no call. When the service does not answer, forecasts are Kaplan-Meier's, ``known["degraded"]`` is true, and for
``cool_down_s`` nobody waits for the service again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec

from endcast.client.curves import batch_of, joined_batch
from endcast.client.errors import CallRefused, ServiceUnavailable, UnexpectedAnswer
from endcast.client.fallback import Fallback
from endcast.client.sync import Client
from endcast.errors import BundleError, InputError
from endcast.forecaster import Forecaster, ForecastStream
from endcast.serving.api.schema import Curve, ForecastReply, ForecastsReply
from endcast.survival import Forecast, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request, check_count

#: Landmarks in one call; more are sent in several.
BATCH = 1_024
#: Completions that are kept for the service while it does not answer.
KEPT_COMPLETIONS = 10_000


class RemoteForecaster:
    """Forecasts from the service that ``client`` calls. One thread at a time.

    ``fallback`` answers while the service does not; by default Kaplan-Meier of the completions observed here, and the
    published prior before there are any. A call that the service refuses as wrong raises ``CallRefused``.
    """

    def __init__(
        self,
        client: Client,
        *,
        fallback: Forecaster | None = None,
        cool_down_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not cool_down_s >= 0.0:
            raise InputError("cool_down_s", "must not be negative")
        self._client = client
        self._fallback = Fallback(fallback)
        self._cool_down_s = cool_down_s
        self._clock = clock
        self._asked_again_at = -float("inf")
        self._served: ForecastsReply | None = None
        self._untold: deque[Completion] = deque(maxlen=KEPT_COMPLETIONS)
        self.degraded_forecasts = 0  #: made without the service
        self.dropped_completions = 0  #: that the service was not told of

    @property
    def degraded(self) -> bool:
        """Whether the service failed so lately that it is not asked now."""
        return self._clock() < self._asked_again_at

    @property
    def bundle(self) -> str:
        """Id of the bundle that answered last; the fallback's name where none has."""
        last = self._last()
        return self._fallback.forecaster.bundle if last is None else last.bundle

    @property
    def state_version(self) -> int:
        """State version that answered last; 0 where none has."""
        last = self._last()
        return 0 if last is None else last.state_version

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, in order."""
        made: list[Forecast] = []
        for part in parts_of(landmarks):
            replies = self._ask(part)
            made += self._degraded(part) if replies is None else forecasts_of(replies, part)
        return made

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays; ``horizon`` in tokens, ≥ 0. Streams are asked about with their whole text."""
        made = self.forecast([each if isinstance(each, Landmark) else landmark_of(each) for each in landmarks])
        return joined_batch(made, horizon)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Tell the service how requests ended, by their ``request_id``; kept for later while it does not answer.

        One without an id cannot be joined with its forecasts, and is dropped, counted.
        """
        self._fallback.observe(completions)
        for completion in completions:
            if completion.request.request_id:
                self.dropped_completions += len(self._untold) == KEPT_COMPLETIONS
                self._untold.append(completion)
            else:
                self.dropped_completions += 1
        self._tell()

    def snapshot(self) -> bytes:
        """Which state of the service answered last; the state itself stays there."""
        return msgspec.msgpack.encode((self.bundle, self.state_version))

    def restore(self, state: bytes) -> None:
        """Only to the state that the service is in; ``BundleError`` else: it is not a client's to change."""
        try:
            told = msgspec.msgpack.decode(state, type=tuple[str, int])
        except msgspec.DecodeError as error:
            raise BundleError(f"the snapshot is damaged: {error}") from None
        if told[0] != self.bundle:
            raise BundleError(f"the snapshot is of {told[0]:.80}, not of {self.bundle}")
        if told[1] != self.state_version:
            raise BundleError("the state of a remote forecaster is its service's", hint="Restart the service instead")

    def open(self, request: Request) -> RemoteStream:
        """Begin a stream; its text is kept here and sent whole."""
        return RemoteStream(self, request)

    def _last(self) -> ForecastsReply | None:
        """The answer that came last; where there was none yet, the service is asked for no forecasts."""
        return self._ask([]) if self._served is None else self._served

    def _ask(self, landmarks: Sequence[Landmark]) -> ForecastsReply | None:
        """The service's answer, or None where it has none now."""
        if self.degraded:
            return None
        try:
            reply = self._client.forecasts(landmarks, horizons=(), quantiles=(), curve=True)
        except (ServiceUnavailable, UnexpectedAnswer):
            self._cool_down()
            return None
        if not answers(reply.forecasts, len(landmarks)):
            self._cool_down()
            return None
        self._served = reply
        self._tell()
        return reply

    def _cool_down(self) -> None:
        self._asked_again_at = self._clock() + self._cool_down_s

    def _degraded(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        self.degraded_forecasts += len(landmarks)
        return self._fallback.forecast(landmarks)

    def _tell(self) -> None:
        """Send the completions that the service does not know yet."""
        while self._untold and not self.degraded:
            part = [self._untold[i] for i in range(min(len(self._untold), BATCH))]
            try:
                self._client.outcomes(part)
            except (ServiceUnavailable, UnexpectedAnswer):
                self._cool_down()
                return
            except CallRefused:
                self.dropped_completions += len(part)
            for _ in part:
                self._untold.popleft()


class RemoteStream:
    """A running generation: its text so far, to be sent whole when a forecast is asked for."""

    def __init__(self, forecaster: Forecaster, request: Request) -> None:
        self._forecaster = forecaster
        self._request = request
        self._generated_tokens = 0
        self._text: list[str] = []
        self._closed = False

    @property
    def request(self) -> Request:
        """The request it was opened for."""
        return self._request

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, as last told."""
        return self._generated_tokens

    @property
    def landmark(self) -> Landmark:
        """Where it stands."""
        self._text = ["".join(self._text)]
        return Landmark(request=self._request, generated_tokens=self._generated_tokens, output=self._text[0] or None)

    def append(self, text: str, generated_tokens: int) -> None:
        """Take in new text. A smaller count than before is ignored."""
        if generated_tokens is None:
            raise InputError("generated_tokens", "must be given")
        check_count("generated_tokens", generated_tokens)
        self._generated_tokens = max(self._generated_tokens, generated_tokens)
        if text:
            self._text.append(text)

    def forecast(self) -> Forecast:
        """The forecast from what is known now."""
        (forecast,) = self._forecaster.forecast([self.landmark])
        return forecast

    def close(self, *, end: EndReason | str, output_tokens: int, finished_s: float | None = None) -> None:
        """Tell the service how it ended; the second call does nothing."""
        reason = cast(EndReason, end)  # Completion takes its name as well, and checks it
        completion = Completion(request=self._request, output_tokens=output_tokens, end=reason, finished_s=finished_s)
        if not self._closed:
            self._closed = True
            self._text.clear()
            self._forecaster.observe([completion])


def landmark_of(stream: ForecastStream) -> Landmark:
    if not isinstance(stream, RemoteStream):
        raise BundleError("the stream was opened by another forecaster", hint="Open it with this one")
    return stream.landmark


def parts_of(landmarks: Sequence[Landmark]) -> Iterator[Sequence[Landmark]]:
    for start in range(0, len(landmarks), BATCH):
        yield landmarks[start : start + BATCH]


def answers(forecasts: Sequence[ForecastReply], asked: int) -> bool:
    """Whether these are ``asked`` forecasts with curves on one grid."""
    if len(forecasts) != asked or not forecasts:
        return len(forecasts) == asked
    curves = [each.curve for each in forecasts if isinstance(each.curve, Curve)]
    grid = curves[0].further_tokens if curves else []
    fits = all(each.further_tokens == grid and len(each.survival) == len(grid) for each in curves)
    return fits and len(curves) == asked and len(grid) > 1 and grid[0] == 0


def forecasts_of(reply: ForecastsReply, landmarks: Sequence[Landmark]) -> list[Forecast]:
    batch = batch_of([cast(Curve, each.curve) for each in reply.forecasts], landmarks, 0)
    return [
        Forecast(
            forecast_id=each.forecast_id,
            bundle=reply.bundle,
            generated_tokens=landmarks[row].generated_tokens,
            batch=batch,
            row=row,
            known=each.known,
            state_version=reply.state_version,
        )
        for row, each in enumerate(reply.forecasts)
    ]
