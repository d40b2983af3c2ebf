"""Fakes for tests of whatever asks for forecasts: each keeps the whole Forecaster protocol and loads no model.

``ConstantHazardForecaster`` has a closed form that can be checked by hand, ``OracleForecaster`` knows the true
lengths, ``ManualClock`` is a clock that stands still until it is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import msgspec
import numpy as np

from endcast.errors import BundleError, InputError
from endcast.forecaster import ForecastStream
from endcast.survival import NO_CAP, CurveTable, Forecast, IntArray, SurvivalBatch, log_survival_from_hazard
from endcast.types import Completion, EndReason, Landmark, Request, check_count


class ManualClock:
    """A clock in seconds that moves only by ``advance``; call it to read it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` ≥ 0."""
        if not seconds >= 0:
            raise InputError("seconds", f"a clock does not go back, so not {seconds!r}")
        self.now_s += seconds


class _State(msgspec.Struct, frozen=True):
    bundle: str
    state_version: int


class FakeForecaster(ABC):
    """All of the Forecaster protocol over one fixed ``CurveTable``; sub-classes point into it.

    ``observed`` holds every completion taken in, in order; nothing is learned from them.
    """

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self._state_version = 0
        self.observed: list[Completion] = []

    @property
    @abstractmethod
    def table(self) -> CurveTable:
        """The curves."""

    @abstractmethod
    def most_remaining(self, request: Request, generated_tokens: int) -> int:
        """Tokens that may still come at most, ≥ 0; ``NO_CAP`` for no bound."""

    @property
    def bundle(self) -> str:
        """The name that it was made with."""
        return self._bundle

    @property
    def state_version(self) -> int:
        """Number of completions taken in."""
        return self._state_version

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, in order."""
        return Forecast.from_batch(
            self.forecast_batch(landmarks, horizon=0),
            bundle=self.bundle,
            generated=[landmark.generated_tokens for landmark in landmarks],
            known=[_known(landmark) for landmark in landmarks],
            state_version=self.state_version,
        )

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays; ``horizon`` in tokens, ≥ 0."""
        most = [self.most_remaining(landmark.request, landmark.generated_tokens) for landmark in landmarks]
        at = [landmark.generated_tokens for landmark in landmarks]
        return SurvivalBatch(
            table=self.table,
            row=np.zeros(len(at), dtype=np.int64),
            position=_ints(at),
            cap=_ints(most),
            horizon=horizon,
        )

    def observe(self, completions: Sequence[Completion]) -> None:
        """Keep them in ``observed``."""
        self.observed.extend(completions)
        self._state_version += len(completions)

    def snapshot(self) -> bytes:
        """The state version, as JSON."""
        return msgspec.json.encode(_State(self.bundle, self.state_version))

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot; ``BundleError`` if it is another's or damaged."""
        try:
            told = msgspec.json.decode(state, type=_State)
        except msgspec.DecodeError as error:
            raise BundleError(f"the snapshot is damaged: {error}") from None
        if told.bundle != self.bundle:
            raise BundleError(f"the snapshot is of {told.bundle}, not of {self.bundle}")
        self._state_version = told.state_version
        del self.observed[told.state_version :]

    def open(self, request: Request) -> ForecastStream:
        """Begin a stream."""
        return FakeStream(self, request)


class FakeStream:
    """A running generation of a ``FakeForecaster``: keeps the text and counts the tokens."""

    def __init__(self, forecaster: FakeForecaster, request: Request) -> None:
        self._forecaster = forecaster
        self._request = request
        self._generated_tokens = 0
        self._text: list[str] = []
        self.closed = False

    @property
    def request(self) -> Request:
        """The request it was opened for."""
        return self._request

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, as last told."""
        return self._generated_tokens

    def append(self, text: str, generated_tokens: int) -> None:
        """Take in new text; the count may not fall."""
        check_count("generated_tokens", generated_tokens, least=self._generated_tokens)
        self._text.append(text)
        self._generated_tokens = generated_tokens

    def forecast(self) -> Forecast:
        """The forecast from what is known now."""
        landmark = Landmark(
            request=self._request, generated_tokens=self._generated_tokens, output="".join(self._text) or None
        )
        return self._forecaster.forecast([landmark])[0]

    def close(self, *, end: EndReason | str, output_tokens: int, finished_s: float | None = None) -> None:
        """Let the forecaster observe the end; the second call does nothing."""
        if self.closed:
            return
        reason = cast(EndReason, end)  # Completion takes its name as well, and checks it
        completion = Completion(request=self._request, output_tokens=output_tokens, end=reason, finished_s=finished_s)
        self._forecaster.observe([completion])
        self.closed = True


class ConstantHazardForecaster(FakeForecaster):
    """Every generation ends with the same chance after each token, or at its cap.

    P(R > h) = (1 − hazard)^h, E[min(R, H)] = (1 − (1 − hazard)^H)/hazard, whatever has been generated.
    """

    def __init__(self, hazard: float = 0.01, *, bundle: str = "constant-hazard") -> None:
        super().__init__(bundle)
        if not 0.0 < hazard < 1.0:
            raise InputError("hazard", f"must lie strictly between 0 and 1, not {hazard!r}")
        self.hazard = hazard

    @cached_property
    def table(self) -> CurveTable:
        """One curve, all of it tail."""
        return CurveTable.from_log_survival(_ints([0, 1]), log_survival_from_hazard([[self.hazard]]))

    def most_remaining(self, request: Request, generated_tokens: int) -> int:
        """What the request's cap leaves."""
        return _left(request.cap, generated_tokens)


class OracleForecaster(FakeForecaster):
    """Knows every request's true output length by its id: p_end is 0 before it and 1 from it on."""

    def __init__(self, output_tokens: Mapping[str, int], *, bundle: str = "oracle") -> None:
        super().__init__(bundle)
        self.output_tokens = dict(output_tokens)

    @cached_property
    def table(self) -> CurveTable:
        """One curve that stays at 1 as far as any length goes: every end is a cap."""
        edges = _ints([0, max(self.output_tokens.values(), default=0) + 1])
        return CurveTable.from_log_survival(edges, np.zeros((1, 2)))

    def most_remaining(self, request: Request, generated_tokens: int) -> int:
        """What the true length, or a cap below it, leaves; ``InputError`` for a request that it was not told of."""
        if request.request_id not in self.output_tokens:
            raise InputError("request_id", f"the oracle was told no length of {request.request_id!r:.60}")
        true = self.output_tokens[request.request_id]
        return min(_left(true, generated_tokens), _left(request.cap, generated_tokens))


def _left(most: int | None, generated_tokens: int) -> int:
    return NO_CAP if most is None else max(most - generated_tokens, 0)


def _ints(values: Sequence[int]) -> IntArray:
    return np.asarray(values, dtype=np.int64)


def _known(landmark: Landmark) -> dict[str, bool]:
    request = landmark.request
    return {
        "prompt": request.prompt is not None or request.messages is not None,
        "prompt_tokens": request.prompt_tokens is not None,
        "model": request.model is not None,
        "tenant": request.tenant is not None,
        "output": landmark.output is not None,
    }
