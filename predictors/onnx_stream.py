"""Streams of bundles: the history as it was at admission, and the text as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from endcast.forecaster import Forecaster
from endcast.predictors.streams import CountedStream, refuse_count
from endcast.predictors.text.output_reader import OutputReader
from endcast.predictors.text.pieces import PIECE
from endcast.survival import CurveTable, FloatArray, Forecast
from endcast.types import MAX_TOKENS, Completion, Request


@dataclass(frozen=True, eq=False)
class AtAdmission:
    """What was known of one request when it was admitted."""

    curve: CurveTable  #: one row, counted from admission, without aborts
    hazards: FloatArray  #: (2, K), as the model has them and as recalibrated
    known: Mapping[str, bool]
    state_version: int


class OnnxStream(CountedStream):
    """A running generation. Its text is read as it comes, if the bundle can read (``reader``)."""

    def __init__(
        self,
        forecaster: Forecaster,
        request: Request,
        admission: AtAdmission,
        reader: OutputReader | None,
        tell: Callable[[Completion, FloatArray], None],
    ) -> None:
        super().__init__(forecaster, request)
        self.bundle = forecaster.bundle
        self.admission = admission
        self.made: CurveTable | None = None  #: the curve (one row) that read all the text so far, once it was asked for
        self._reader = reader
        self._read_any = False
        self._unread = ""  #: what the reader has not been shown yet: tokens are many, and short
        self._tell_served = tell

    @property
    def reader(self) -> OutputReader | None:
        """What has read the text so far; ``None`` while there is none, or nobody who could read it."""
        if self._reader is None or not self._read_any or not self._generated:
            return None
        if self._unread:
            self._reader.append(self._unread)
            self._unread = ""
        return self._reader

    def append(self, text: str, generated_tokens: int) -> None:
        """Count tokens, read text."""
        if type(generated_tokens) is not int or not 0 <= generated_tokens <= MAX_TOKENS:
            refuse_count(generated_tokens)
        self._generated = max(self._generated, generated_tokens)  # as often as there are tokens: no further call
        self.made = None
        if text and self._reader is not None:
            self._unread += text
            self._read_any = True
            if len(self._unread) >= PIECE:
                self._reader.append(self._unread)
                self._unread = ""

    def forecast(self) -> Forecast:
        """The forecast from what is known now."""
        (forecast,) = Forecast.from_batch(
            self._forecaster.forecast_batch([self], 0),
            bundle=self.bundle,
            generated=[self.generated_tokens],
            known=[{**self.admission.known, "output": self.reader is not None}],
            state_version=self.admission.state_version,
            hazards=[self.admission.hazards],
        )
        return forecast

    def _tell(self, completion: Completion) -> None:
        self._tell_served(completion, self.admission.hazards[0])
