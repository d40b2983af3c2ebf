"""A prompt as grams for its learned score: its words, and what it asks for and how large it is, in one table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from endcast.predictors.text.asked import asked_in
from endcast.predictors.text.intent import intent_in
from endcast.predictors.text.lexicon import COUNTED, FLAGS
from endcast.predictors.text.ngrams import PROMPT_BITS, Grams, hashed
from endcast.predictors.text.prompt_text import bounded
from endcast.predictors.text.words import folded, tokens_of

#: Sizes and asked numbers are told apart by so many steps a doubling.
SIZE_STEPS, ASKED_STEPS = 1, 2
#: More lines than this are as many.
MOST_LINES = 4


def prompt_grams(text: str) -> Grams:
    """(k,) sorted distinct grams of a prompt; a long one is read as ``bounded`` leaves it."""
    kept = bounded(text)
    return hashed(kept, PROMPT_BITS, _marks(kept))


def _marks(text: str) -> Iterator[str]:
    """What the text asks for and how it is built, in coarse steps: a word for each."""
    plain = folded(text)
    tokens = tokens_of(plain)
    asked = asked_in(plain, tokens)
    for kind in COUNTED:
        number = getattr(asked, kind)
        if not math.isnan(number):
            yield kind
            yield f"{kind}:{round(ASKED_STEPS * math.log2(number))}"
    yield from (flag for flag in FLAGS if getattr(asked, flag))
    yield f"intent:{intent_in(plain, tokens)}"
    yield f"size:{int(SIZE_STEPS * math.log2(len(tokens) + 1))}"
    yield f"lines:{min(text.count(chr(10)), MOST_LINES)}"
    yield f"asking:{text.rstrip()[-1:] in ('?', '？', '؟')}"
