"""How much a prompt asks for: so many list items, sentences, words; yes or no; short or long.

Unknown is NaN for numbers. A number that the prompt states twice counts as first stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
