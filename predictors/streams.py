"""Streams of forecasters that count tokens and read no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, cast

import numpy as np

from endcast.errors import InputError
from endcast.forecaster import Forecaster
from endcast.survival import NO_CAP, Forecast, IntArray
from endcast.types import MAX_TOKENS, Completion, EndReason, Landmark, Request, check_count


class CountedStream:
    """A running generation: how many tokens it has, and its forecaster's answer to that."""

    def __init__(self, forecaster: Forecaster, request: Request) -> None:
        self._forecaster = forecaster
        self._request = request
        self._generated = 0
        self._closed = False

    @property
    def request(self) -> Request:
        """The request it was opened for."""
        return self._request

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, as last told."""
        return self._generated

    def append(self, text: str, generated_tokens: int) -> None:
        """Count tokens; ``text`` is not read. A smaller count than before is ignored."""
        if type(generated_tokens) is not int or not 0 <= generated_tokens <= MAX_TOKENS:
            refuse_count(generated_tokens)
        self._generated = max(self._generated, generated_tokens)

    def forecast(self) -> Forecast:
        """The forecast from where it stands now."""
        (forecast,) = self._forecaster.forecast([Landmark(request=self._request, generated_tokens=self._generated)])
        return forecast

    def close(self, *, end: EndReason | str, output_tokens: int, finished_s: float | None = None) -> None:
        """Feed the outcome to the forecaster, once."""
        reason = cast(EndReason, end)  # Completion takes its name as well, and checks it
        completion = Completion(request=self._request, output_tokens=output_tokens, end=reason, finished_s=finished_s)
        if not self._closed:
            self._closed = True
            self._tell(completion)

    def _tell(self, completion: Completion) -> None:
        self._forecaster.observe([completion])


def refuse_count(generated_tokens: int | None) -> NoReturn:
    """``InputError`` for what is no count of tokens."""
    check_count("generated_tokens", generated_tokens)
    raise InputError("generated_tokens", "must be given")  # None is a count that is unknown


def remaining_cap(requests: Sequence[Request], generated: IntArray) -> IntArray:
    """(n,), most tokens that may still come, ``NO_CAP`` where no cap is known."""
    each = zip(requests, generated.tolist(), strict=True)
    left = [NO_CAP if (cap := request.cap) is None else max(cap - tokens, 0) for request, tokens in each]
    return np.array(left, dtype=np.int64)
