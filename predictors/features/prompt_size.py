"""How large the prompt is: tokens where they are known, characters and messages where there is text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from endcast.datasets.messages import text_of
from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.types import Request


def prompt_text(request: Request) -> str | None:
    """The prompt as one text, the same whether it came as a string, as messages or as content parts."""
    if request.messages is not None:
        return "\n".join(text_of(message.get("content")) for message in request.messages)
    return request.prompt


class PromptSize(Stateless):
    """Columns: log tokens, tokens in thousands, log characters, number of messages (a bare text is one)."""

    name = "prompt_size"
    columns = ("log_prompt_tokens", "prompt_kilotokens", "log_prompt_characters", "messages")
    interval_columns = ()
    inputs: tuple[str, ...] = ()

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 4)."""
        out = np.full((len(requests), 4), np.nan, dtype=np.float32)
        for row, request in zip(out, requests, strict=True):
            if request.prompt_tokens is not None:
                row[0] = math.log1p(request.prompt_tokens)
                row[1] = request.prompt_tokens / 1000
            text = prompt_text(request)
            if text is not None:
                row[2] = math.log1p(len(text))
                row[3] = 1 if request.messages is None else min(len(request.messages), 1000)
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers as they are."""
        return Columns(raw, no_intervals(len(raw), self.grid))


class RoughSize(PromptSize):
    """The same in steps of ``STEP``: where prompts fill many rows, an exact size is a prompt's name, and trees learn the
    answers to the prompts that they met by heart."""

    name = "rough_size"
    STEP = 0.5

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers, rounded."""
        return super().transform((np.round(raw / self.STEP) * self.STEP).astype(np.float32))
