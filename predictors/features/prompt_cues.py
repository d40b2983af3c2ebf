"""What the prompt's text asks for and how it is built, in any of the languages of ``predictors.text.language``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from endcast.predictors.features.protocol import Columns, Float32Array, Stateless
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.text.asked import Asked, asked_in
from endcast.predictors.text.intent import intent_in
from endcast.predictors.text.language import INTENTS
from endcast.predictors.text.lexicon import COUNTED, FLAGS
from endcast.predictors.text.prompt_text import message_text, role_of, said_last
from endcast.predictors.text.remembered import Remembered
from endcast.predictors.text.words import folded, tokens_of
from endcast.types import Request

#: Tokens that a word and a sentence take in languages that part words; characters that a token holds there.
TOKENS_PER_WORD, TOKENS_PER_SENTENCE, CHARACTERS_PER_TOKEN = 1.35, 25.0, 4.0
#: A text with a larger share of such characters takes about one token each.
MOSTLY_CJK = 0.3
#: Of a conversation so many messages at most are looked at, the last ones.
MOST_MESSAGES = 64

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_QUOTED = re.compile('["“«「『][^"“”«»「」『』\n]+["”»」』]')
_URL = re.compile(r"https?://|www\.")
_NUMBER = re.compile(r"\d+")
_QUESTION = re.compile("[?？؟]")
_ENDS_ASKING = re.compile(r"[?？؟][\s\"'”»」』)]{0,8}\Z")

STRUCTURE = (
    "log_characters",
    "log_words",
    "log_lines",
    "log_questions",
    "ends_asking",
    "log_numbers",
    "code_fence",
    "url",
    "quoted_share",
    "non_ascii_share",
    "cjk_share",
)
CONVERSATION = ("log_messages", "system_prompt", "log_earlier_answer")


class PromptCues(Stateless):
    """Columns: log numbers and flags of what is asked, the intent one-hot, structure of the text, the conversation; per
    interval, how far it is from the asked words and sentences, in log tokens."""

    name = "prompt_cues"
    columns = (
        *(f"log_asked_{kind}" for kind in COUNTED),
        *FLAGS,
        *(f"intent_{intent}" for intent in INTENTS),
        *STRUCTURE,
        *CONVERSATION,
    )
    interval_columns = ("log_interval_minus_log_asked_words", "log_interval_minus_log_asked_sentences")
    inputs = ("prompt", "messages")

    def __init__(self, grid: IntervalGrid) -> None:
        super().__init__(grid)
        self._read = Remembered(_text_numbers)

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, number of columns)."""
        out = np.full((len(requests), len(self.columns)), np.nan, dtype=np.float32)
        for row, request in zip(out, requests, strict=True):
            text = said_last(request)
            if text is not None:
                row[:] = (*self._read(text), *_conversation(request))
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers, and what is asked beside each interval. Asked characters stand in for asked words."""
        log_sentences, log_words = raw[:, COUNTED.index("sentences")], raw[:, COUNTED.index("words")]
        log_characters = raw[:, COUNTED.index("characters")]
        dense = raw[:, self.columns.index("cjk_share")] > MOSTLY_CJK
        each = np.where(dense, 0.0, np.log(CHARACTERS_PER_TOKEN)).astype(np.float32)
        words = np.where(np.isnan(log_words), log_characters - each, log_words + np.float32(np.log(TOKENS_PER_WORD)))
        asked = np.stack([words, log_sentences + np.float32(np.log(TOKENS_PER_SENTENCE))], axis=1)
        return Columns(raw, self.grid.log_middle[None, :, None] - asked[:, None, :])


def _text_numbers(kept: str, characters: int) -> list[float]:
    """Of what is asked, intent and structure, in the order of the columns."""
    plain = folded(kept)
    tokens = tokens_of(plain)
    intent = intent_in(plain, tokens)
    wanted = [float(intent == name) for name in INTENTS]
    return [*_asked_numbers(asked_in(plain, tokens)), *wanted, *_structure(kept, characters, len(tokens))]


def _asked_numbers(asked: Asked) -> list[float]:
    return [*(math.log(getattr(asked, kind)) for kind in COUNTED), *(float(getattr(asked, flag)) for flag in FLAGS)]


def _structure(text: str, characters: int, words: int) -> list[float]:
    """Numbers named as ``STRUCTURE``, of a bounded text of at first so many ``characters``."""
    size = max(len(text), 1)
    plain = text.isascii()
    return [
        math.log1p(characters),
        math.log1p(words),
        math.log1p(text.count("\n")),
        math.log1p(len(_QUESTION.findall(text))),
        float(_ENDS_ASKING.search(text, len(text) - 16 if len(text) > 16 else 0) is not None),
        math.log1p(len(_NUMBER.findall(text))),
        float("```" in text),
        float(_URL.search(text) is not None),
        sum(map(len, _QUOTED.findall(text))) / size,
        0.0 if plain else len(_NON_ASCII.findall(text)) / size,
        0.0 if plain else len(_CJK.findall(text)) / size,
    ]


def _conversation(request: Request) -> list[float]:
    """Numbers named as ``CONVERSATION``; a bare prompt is a conversation of one message."""
    messages = (request.messages or ())[-MOST_MESSAGES:]
    first = request.messages[0] if request.messages else None
    answers = [len(message_text(message)) for message in messages if role_of(message) == "assistant"]
    return [
        math.log1p(len(request.messages)) if request.messages else math.log1p(1),
        float(role_of(first) in ("system", "developer")),
        math.log1p(sum(answers) / len(answers)) if answers else math.nan,
    ]
