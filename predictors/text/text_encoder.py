"""A bundle's text encoder: its vocabulary and, where a feature group asks for scores, its graph."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from endcast.errors import BundleError
from endcast.predictors.hazard_graph import open_session
from endcast.predictors.text.encoder_files import GOLDEN, SCORER, TOKENIZER
from endcast.predictors.text.wordpieces import PROMPT_PIECES, Wordpieces

#: How far a score may lie from its golden one.
TOLERANCE = 1e-3


class GoldenScore(msgspec.Struct, frozen=True):
    """A text and its score."""

    text: str
    score: float


class TextEncoder:
    """Cuts texts, and scores them if there is a graph (word pieces (1, PROMPT_PIECES) in, score (1, 1) out)."""

    def __init__(self, files: Mapping[str, bytes], *, check: bool = True) -> None:
        if TOKENIZER not in files:
            raise BundleError(f"the bundle has no {TOKENIZER}", hint="Train it again")
        self.files = dict(files)
        self.pieces = Wordpieces(files[TOKENIZER])
        self._session = None if SCORER not in files else open_session(files[SCORER])
        if self._session is not None and check:
            self._check(files.get(GOLDEN))

    @property
    def scores(self) -> bool:
        """Whether there is a graph of scores."""
        return self._session is not None

    def score(self, text: str) -> float:
        """Log of the output tokens expected after this prompt."""
        if self._session is None:
            raise BundleError("the bundle's encoder gives no scores", hint="Train it again")
        (score,) = self._session.run(["score"], {"features": self.pieces.prompt(text).reshape(1, PROMPT_PIECES)})
        return float(np.asarray(score).item())

    def _check(self, golden: bytes | None) -> None:
        """``BundleError`` unless the graph does here what it did in training."""
        try:
            known = msgspec.json.decode(golden or b"", type=GoldenScore)
            off = abs(self.score(known.text) - known.score)
        except (msgspec.DecodeError, ValueError, RuntimeError) as error:
            raise BundleError(f"the bundle's encoder does not run: {error!s:.200}", hint="Train it again") from None
        if not off <= TOLERANCE:
            raise BundleError(
                f"the bundle's encoder is {off:.2g} off its golden score here", hint="Train it again here"
            )
