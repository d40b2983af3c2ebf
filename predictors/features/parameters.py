"""What the request asks of the engine: cap, sampling, tools, format. Unknown parameters stay unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Columns, Float32Array, Stateless
from endcast.types import MAX_TOKENS, Request


def _number(value: Any, least: float, most: float) -> float:
    """``value`` kept in [least, most]; NaN if it is no finite number. An int may be larger than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return math.nan
    return float(min(max(value, least), most))


def _word(value: Any, levels: Mapping[str, float]) -> float:
    return levels.get(value, math.nan) if isinstance(value, str) else math.nan


def _count(value: Any) -> float:
    if isinstance(value, str):
        return 1.0
    return float(min(len(value), 1000)) if isinstance(value, list | tuple) else math.nan


def _thinking(parameters: Mapping[str, Any]) -> float:
    template = parameters.get("chat_template_kwargs")
    value = template.get("enable_thinking") if isinstance(template, Mapping) else parameters.get("enable_thinking")
    if isinstance(value, bool):
        return float(value)
    levels = {"none": 0.0, "minimal": 0.5, "low": 1.0, "medium": 2.0, "high": 3.0}
    return _word(parameters.get("reasoning_effort"), levels)


def _response_format(parameters: Mapping[str, Any]) -> float:
    value = parameters.get("response_format")
    kind = value.get("type") if isinstance(value, Mapping) else None
    return _word(kind, {"text": 0.0, "json_object": 1.0, "json_schema": 2.0})


def _tool_choice(parameters: Mapping[str, Any]) -> float:
    value = parameters.get("tool_choice")
    if isinstance(value, Mapping):
        return 2.0
    return _word(value, {"none": 0.0, "auto": 1.0, "required": 2.0})


_READERS: tuple[tuple[str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("temperature", lambda p: _number(p.get("temperature"), 0, 10)),
    ("top_p", lambda p: _number(p.get("top_p"), 0, 1)),
    ("repetition_penalty", lambda p: _number(p.get("repetition_penalty"), 0, 10)),
    ("choices", lambda p: _number(p.get("n"), 0, 1000)),
    ("stop_strings", lambda p: _count(p.get("stop"))),
    ("log_min_tokens", lambda p: math.log1p(_number(p.get("min_tokens"), 0, MAX_TOKENS))),
    ("ignore_eos", lambda p: float(p["ignore_eos"]) if isinstance(p.get("ignore_eos"), bool) else math.nan),
    ("tools", lambda p: _count(p.get("tools"))),
    ("tool_choice", _tool_choice),
    ("response_format", _response_format),
    ("thinking", _thinking),
)


class Parameters(Stateless):
    """Columns: log of the cap, then one a sampling parameter; per interval, how far the cap still is."""

    name = "parameters"
    columns = ("log_cap", *(name for name, _ in _READERS))
    interval_columns = ("log_interval_minus_log_cap",)
    inputs = ("max_tokens", "context_limit", "parameters")

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 1 + number of parameters)."""
        out = np.full((len(requests), len(self.columns)), np.nan, dtype=np.float32)
        for row, request in zip(out, requests, strict=True):
            cap = request.cap
            if cap is not None:
                row[0] = math.log1p(cap)
            if request.parameters:
                row[1:] = [read(request.parameters) for _, read in _READERS]
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers, and the cap beside each interval."""
        return Columns(raw, (self.grid.log_middle[None, :] - raw[:, :1])[:, :, None])
