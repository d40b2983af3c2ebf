"""How much a prompt asks for: so many list items, sentences, words; yes or no; short or long.

Unknown is NaN for numbers. A number that the prompt states twice counts as first stated. What prompts call things is the
table of ``language``. Reading takes time linear in the text; callers bound the text (``prompt_text``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from endcast.predictors.text.lexicon import ANY, MOST, NOTHING, SPACED, Number, script_of
from endcast.predictors.text.words import BREAKS, folded, tokens_of

#: A number belongs to a unit among so many words after it, and to a word that asks among so many before it.
REACH = 3
#: More than this, unless they are called items, are no items.
MOST_ITEMS = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """What one prompt asks for; numbers ≥ 1 or NaN."""

    items: float = math.nan
    sentences: float = math.nan
    words: float = math.nan
    paragraphs: float = math.nan
    lines: float = math.nan
    characters: float = math.nan
    yes_or_no: bool = False
    brief: bool = False  #: "briefly", "in short", "just the answer"
    detailed: bool = False  #: "in detail", "step by step", "comprehensive"
    code: bool = False
    structured: bool = False  #: a table, JSON, CSV, XML
    listed: bool = False  #: a list, bullet points, steps, without a number


#: A prompt that states nothing, or no prompt at all.
NOTHING_ASKED = Asked()


def asked_for(text: str | None) -> Asked:
    """What ``text`` asks for, in any language of the table."""
    if not text:
        return NOTHING_ASKED
    plain = folded(text)
    return asked_in(plain, tokens_of(plain))


def asked_in(plain: str, tokens: Sequence[str]) -> Asked:
    """``asked_for`` of a folded text that is already taken apart into ``tokens``."""
    numbers: dict[str, float] = {}
    flags: set[str] = set()
    script = script_of(plain)
    if script is not None:
        for kind, value in script.counted(plain):
            numbers.setdefault(kind, value)
        flags.update(script.flags(plain))
    for place, token in enumerate(tokens):
        for phrase in SPACED.phrases.get(token, ()):
            if not phrase.rest or tokens[place + 1 : place + 1 + len(phrase.rest)] == phrase.rest:
                flags.add(phrase.flag)
        if token in SPACED.numbers or token[0].isdecimal():
            found = _counted(tokens, place)
            if found is not None:
                numbers.setdefault(*found)
    stated: dict[str, Any] = {**numbers, **dict.fromkeys(flags, True)}
    return Asked(**stated) if stated else NOTHING_ASKED


def _counted(tokens: Sequence[str], place: int) -> tuple[str, float] | None:
    """What the number at ``place`` counts, and how many; ``None`` where it counts nothing of ours."""
    readings = _readings(tokens[place])
    after = _after(tokens, place)
    for distance, word in enumerate(after):
        kinds = SPACED.kinds(word)
        if not kinds:
            continue
        for language, value, article in readings:
            kind = kinds.get(language)
            if kind is None or (article and (distance or kind == "items")):
                continue
            return None if kind == NOTHING else (kind, value)
    before = tokens[max(place - REACH, 0) : place]
    for language, value, article in readings:  # "Name five rivers": the verb tells that these are items
        if not article and after and 2 <= value <= MOST_ITEMS and not SPACED.asks[language].isdisjoint(before):
            return "items", value
    return None


def _readings(token: str) -> tuple[Number, ...]:
    named = SPACED.numbers.get(token)
    if named is not None:
        return named
    digits = token.replace(".", "").replace(",", "")
    value = int(digits) if len(digits) <= 6 and digits.isdecimal() else 0
    return (Number(ANY, value, False),) if 1 <= value <= MOST else ()


def _after(tokens: Sequence[str], place: int) -> list[str]:
    """The words that may say what is counted: up to the next number or break."""
    after: list[str] = []
    for word in tokens[place + 1 : place + 1 + REACH]:
        if word in BREAKS or word[0].isdecimal():
            break
        after.append(word)
    return after
