"""Texts folded and taken apart into words, in any script."""

from __future__ import annotations

import re
import unicodedata

#: Ends of sentences, clauses and lines: tokens of their own.
BREAKS = frozenset(".!?;:。！？؟।\n")
#: Marks that belong to the letters before them, in scripts that ``\w`` would take apart.
MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff\u1ab0-\u1aff"
_TOKEN = re.compile(rf"\d{{1,3}}(?:[.,]\d{{3}})+(?!\d)|\d+|[\w{MARKS}]+|[{''.join(sorted(BREAKS))}]")


def folded(text: str) -> str:
    """``text`` without differences of case, width and composition."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def tokens_of(plain: str) -> list[str]:
    """Words, numbers (with their thousands separators) and ``BREAKS`` of a folded text, in order."""
    found: list[str] = _TOKEN.findall(plain)
    return found
