"""Output tokens supposed from a request's flags alone: three fixed lengths, as llm-d supposes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Tokens supposed of a request that thinks, of one that may call tools and does not think, of any other.
LONG, SHORT, UNKNOWN_LENGTH = 4096, 100, 1000


def supposed_tokens(parameters: Mapping[str, Any]) -> int:
    """``LONG``, ``SHORT`` or ``UNKNOWN_LENGTH``, from OpenAI-style sampling parameters."""
    if thinks(parameters):
        return LONG
    return SHORT if parameters.get("tools") else UNKNOWN_LENGTH


def thinks(parameters: Mapping[str, Any]) -> bool:
    """Whether the request asks for thinking, in any of the spellings in use."""
    template = parameters.get("chat_template_kwargs")
    if isinstance(template, Mapping) and (template.get("enable_thinking") or template.get("thinking")):
        return True
    thinking = parameters.get("thinking", parameters.get("enable_thinking"))
    if isinstance(thinking, Mapping):
        thinking = thinking.get("type") == "enabled"
    effort = parameters.get("reasoning_effort")
    reasoning = parameters.get("reasoning")
    if effort is None and isinstance(reasoning, Mapping):
        effort = reasoning.get("effort")
    return bool(thinking) or (isinstance(effort, str) and effort != "none")
