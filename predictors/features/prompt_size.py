"""How large the prompt is: tokens where they are known, characters and messages where there is text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.types import Request


def prompt_text(request: Request) -> str | None:
    """The prompt as one text, the same whether it came as a string, as messages or as content parts."""
    if request.messages is not None:
        return "\n".join(_content(message.get("content")) for message in request.messages)
    return request.prompt


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


class PromptSize(Stateless):
    """Columns: log tokens, tokens in thousands, log characters, number of messages."""

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
            if request.messages is not None:
                row[3] = min(len(request.messages), 1000)
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers as they are."""
        return Columns(raw, no_intervals(len(raw), self.grid))
