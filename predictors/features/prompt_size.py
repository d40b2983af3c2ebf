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
        return np.array([_sizes(request) for request in requests], dtype=np.float32).reshape(len(requests), 4)

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers as they are."""
        return Columns(raw, no_intervals(len(raw), self.grid))


def _sizes(request: Request) -> tuple[float, float, float, float]:
    tokens, text = request.prompt_tokens, prompt_text(request)
    log_tokens, kilotokens = (math.nan, math.nan) if tokens is None else (math.log1p(tokens), tokens / 1000)
    if text is None:
        return log_tokens, kilotokens, math.nan, math.nan
    count = 1 if request.messages is None else min(len(request.messages), 1000)
    return log_tokens, kilotokens, math.log1p(len(text)), count


class RoughSize(PromptSize):
    """The same in steps of ``STEP``: where prompts fill many rows, an exact size is a prompt's name, and trees learn the
    answers to the prompts that they met by heart."""

    name = "rough_size"
    STEP = 0.5

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers, rounded."""
        return super().transform((np.round(raw / self.STEP) * self.STEP).astype(np.float32))
