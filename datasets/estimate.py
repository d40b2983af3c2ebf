"""Token counts from characters, for logs that have texts but no counts.

A stand-in and no tokenizer: 4.5 characters a token in Latin script, 1.3 in Chinese, Japanese and Korean, 2 in all
others, 4 tokens a chat message for its frame. On 49,594 English answers half of the estimates lay within 12 % of the
cl100k count and nine in ten within 28 %; other tokenizers and scripts differ more. A reader that estimates says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from endcast.datasets.clean import Column, plain_values
from endcast.datasets.messages import text_of
from endcast.datasets.report import Tally
from endcast.datasets.trace import IntArray

LATIN_PER_TOKEN, CJK_PER_TOKEN, OTHER_PER_TOKEN = 4.5, 1.3, 2.0
FRAME_TOKENS = 4
_RULE = (
    f"{LATIN_PER_TOKEN} characters a token in Latin script, {CJK_PER_TOKEN} in Chinese, Japanese and Korean, "
    f"{OTHER_PER_TOKEN:g} in others"
)
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_OTHER = re.compile("[\u0250-\u10ff\u1200-\u1dff\u2c00-\u2dff\ua000-\ua95f\ua980-\uabff\U00010000-\U0001ffff]")


def estimate_tokens(text: str) -> int:
    """About how many tokens ``text`` has; 0 only if it is empty."""
    if text.isascii():
        return math.ceil(len(text) / LATIN_PER_TOKEN)
    cjk, other = len(_CJK.findall(text)), len(_OTHER.findall(text))
    latin = len(text) - cjk - other
    return math.ceil(latin / LATIN_PER_TOKEN + cjk / CJK_PER_TOKEN + other / OTHER_PER_TOKEN)


def estimate_prompt_tokens(messages: Sequence[Mapping[str, object]]) -> int:
    """About how many tokens a chat prompt of ``messages`` has."""
    return sum(FRAME_TOKENS + estimate_tokens(text_of(message.get("content"))) for message in messages)


def note_estimates(names: Sequence[str], tally: Tally) -> None:
    """Say loudly that the counts of these columns are no counts."""
    if names:
        tally.note(f"ESTIMATED, not counted: {' and '.join(names)} ({_RULE})")


def estimated_columns(columns: Mapping[str, Column], lines: IntArray, tally: Tally) -> dict[str, Column]:
    """``columns``, with the token counts that are missing as a whole estimated from the texts, where there are any."""
    made = dict(columns)
    estimated = []
    if "output_tokens" not in columns and "output" in columns:
        made["output_tokens"] = [_or_none(text) for text in plain_values(columns["output"])]
        estimated.append("output_tokens")
    if "prompt_tokens" not in columns and ("prompt" in columns or "messages" in columns):
        none = [None] * len(lines)
        prompts = plain_values(columns["prompt"]) if "prompt" in columns else none
        chats = plain_values(columns["messages"]) if "messages" in columns else none
        made["prompt_tokens"] = [_prompt(p, c) for p, c in zip(prompts, chats, strict=True)]
        estimated.append("prompt_tokens")
    note_estimates(estimated, tally)
    return made


def _or_none(text: object) -> int | None:
    return estimate_tokens(text) if isinstance(text, str) else None


def _prompt(prompt: object, chat: object) -> int | None:
    if isinstance(chat, str):
        return estimate_prompt_tokens(msgspec.json.decode(chat))
    return _or_none(prompt)
