"""What kind of line one is, by how it begins: a list item and its number, a heading, a fence, a table row, text."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """Kinds of lines."""

    TEXT = 0
    BLANK = 1
    NUMBERED = 2
    BULLET = 3
    HEADING = 4
    FENCE = 5
    TABLE = 6
    QUOTE = 7


class LineHead(NamedTuple):
    """How a line begins."""

    kind: Kind
    number: int = 0  #: of a numbered item or heading, 0 without one
    indent: int = 0  #: characters of white space before the first other one
    body: int = 0  #: index of the first character after the marker


PLAIN = LineHead(Kind.TEXT)
BLANK = LineHead(Kind.BLANK)

#: Words that with a number after them make a line an item: "Step 3", "Étape 3", "Шаг 3".
ITEM_WORDS = frozenset(
    [
        *("step", "day", "week", "month", "part", "chapter", "tip", "question", "q", "example", "section", "stanza"),
        *("verse", "scene", "act", "option", "method", "idea", "reason", "phase", "rule", "lesson", "level", "round"),
        *("stage", "task", "item", "fact", "point", "principle", "slide", "paragraph", "title", "version"),
        *("paso", "día", "semana", "capítulo", "passo", "dia", "étape", "jour", "semaine", "chapitre", "schritt"),
        *("tag", "woche", "kapitel", "passaggio", "giorno", "stap", "krok", "шаг", "день", "глава", "неделя", "крок"),
        *("단계", "adım", "bước", "langkah", "خطوة", "الخطوة", "चरण", "ステップ", "步骤", "步驟", "ขั้นตอนที่"),
    ]
)
_HAN = "一二三四五六七八九十"
_NUMBERING = re.compile(
    rf"[(\[（]?(?P<digits>\d{{1,3}})(?:[.:](?!\d)|[)．、）。：]|\](?!\())"
    r"|(?P<circled>[\u2460-\u2473])"
    rf"|第(?P<ordinal>\d{{1,3}}|[{_HAN}]{{1,3}})"
    rf"|[（(]?(?P<han>[{_HAN}]{{1,3}})[、．.）)]"
    r"|(?P<keycap>[0-9])\ufe0f?\u20e3"
)
_WORD_NUMBER = re.compile(r"(?P<word>[^\W\d_]{1,12})[ ]?(?P<digits>\d{1,3})(?!\d|[.,]\d)")
_HEADING = re.compile(r"#{1,6}[ \t]+(?:\*\*)?")
_BULLET = re.compile(r"[-*+–—](?:[ \t]|\r?\n)[ \t]*|[•・‣◦●○▪■◆◇►▶➢➤✓✔✅☑⁃∙·]\s*")
_AFTER_LETTER = frozenset(".)")
_LETTER = re.compile(r"[a-hA-H][.)][ \t]")
_LABEL = re.compile(r"\*\*[^*\n]{1,60}(?:\*\*[ ]?[:：]|[:：]\*\*)(?=[ \t\w])")
_BOLD_LINE = re.compile(r"(\*\*|__)[^*_\n]{1,100}\1:?\s*\n")


def _han_number(text: str) -> int:
    """The number up to 99 that Chinese numerals write, 0 if they write none."""
    tens, ten, ones = text.rpartition("十")
    if len(tens) > 1 or len(ones) > 1:
        return 0
    return (_HAN.index(tens) + 1 if tens else 1) * 10 * bool(ten) + (_HAN.index(ones) + 1 if ones else 0)


def _numbering(text: str, start: int) -> tuple[int, int] | None:
    """The number that ``text`` has at ``start`` as an item of a list, and the index after it."""
    spelled = "a" <= text[start : start + 1].lower() <= "z"
    match = None if spelled else _NUMBERING.match(text, start)
    if match is None:
        match = _WORD_NUMBER.match(text, start)
        if match is None or match["word"].casefold() not in ITEM_WORDS:
            return None
        return int(match["digits"]), match.end()
    digits = match["digits"] or match["keycap"]
    if digits:
        return int(digits), match.end()
    if match["circled"]:
        return ord(match["circled"]) - 0x2460 + 1, match.end()
    numeral = match["ordinal"] or match["han"]
    return int(numeral) if numeral[0] not in _HAN else _han_number(numeral), match.end()


def line_head(text: str) -> LineHead:
    """How a line begins; ``text`` is its first piece, so far as it is known."""
    stripped = text.lstrip()
    if not stripped:
        return BLANK
    indent = len(text) - len(stripped)
    first = stripped[0]
    if first in "#|>`~*_-+":
        return _marked(text, indent, first)
    if not first.isalnum() and first not in "([（":
        bullet = _BULLET.match(text, indent)
        return LineHead(Kind.BULLET, 0, indent, bullet.end()) if bullet else LineHead(Kind.TEXT, 0, indent, indent)
    number = _numbering(text, indent)
    if number:
        return LineHead(Kind.NUMBERED, number[0], indent, number[1])
    lettered = text[indent + 1 : indent + 2] in _AFTER_LETTER and _LETTER.match(text, indent)
    return LineHead(Kind.BULLET, 0, indent, indent + 2) if lettered else LineHead(Kind.TEXT, 0, indent, indent)


def _marked(text: str, indent: int, first: str) -> LineHead:
    """The same for a line that begins with a sign of Markdown."""
    if first == "|":
        return LineHead(Kind.TABLE, 0, indent, indent + 1)
    if first == ">":
        return LineHead(Kind.QUOTE, 0, indent, indent + 1)
    if first in "`~":
        fenced = text.startswith(first * 3, indent)
        return LineHead(Kind.FENCE, 0, indent, indent + 3) if fenced else LineHead(Kind.TEXT, 0, indent, indent)
    heading = _HEADING.match(text, indent)
    if heading:
        number, body = _numbering(text, heading.end()) or (0, heading.end())
        return LineHead(Kind.HEADING, number, indent, body)
    bullet = _BULLET.match(text, indent)
    if bullet:
        return LineHead(Kind.BULLET, 0, indent, bullet.end())
    numbered = _numbering(text, indent + 2) if text.startswith(("**", "__"), indent) else None
    if numbered:
        return LineHead(Kind.NUMBERED, numbered[0], indent, numbered[1])
    label = _LABEL.match(text, indent)
    if label:
        return LineHead(Kind.BULLET, 0, indent, label.end())
    return LineHead(Kind.HEADING if _BOLD_LINE.match(text, indent) else Kind.TEXT, 0, indent, indent)
