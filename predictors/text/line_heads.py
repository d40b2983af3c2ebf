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

_SPACE = " \t\u3000\r\n\f\v\u00a0"
#: Words before a number that make a line an item ("Step 3", "Étape 3", "Шаг 3").
_ITEM_WORDS = (
    "step|day|week|month|part|chapter|tip|question|q|example|section|stanza|verse|scene|act|option|method|"
    "idea|reason|phase|rule|lesson|level|round|stage|task|item|fact|point|principle|"
    "paso|día|semana|capítulo|passo|dia|étape|jour|semaine|chapitre|schritt|tag|woche|kapitel|passaggio|giorno|"
    "шаг|день|глава|неделя|단계|adım|bước|الخطوة|चरण|ステップ|步骤|步驟"
)
_HAN = "一二三四五六七八九十"
_MARKED = re.compile(
    rf"""
    (?P<fence>`{{3,}}|~{{3,}})
  | (?P<table>\|)
  | (?P<quote>>[ \t])
  | (?P<heading>\#{{1,6}}[ \t]+)?
    (?:\*\*|__)?
    (?: [(\[（]?(?P<digits>\d{{1,3}})(?:[.:](?!\d)|[)．、）。：]|\](?!\())
      | (?P<circled>[\u2460-\u2473])
      | (?:第(?P<ordinal>\d{{1,3}}|[{_HAN}]{{1,3}})|[（(]?(?P<han>[{_HAN}]{{1,3}})[、．.）)])
      | (?P<keycap>[0-9])\ufe0f?\u20e3
      | (?:{_ITEM_WORDS})[ ]?(?P<named>\d{{1,3}})(?!\d|[.,]\d)
    )
  | (?P<only_heading>\#{{1,6}}[ \t]+)
  | (?P<bullet>[-*+–—][ \t]|[•・‣◦●○▪■◆◇►▶➢➤✓✔✅☑⁃∙·]|\(?[a-hA-H][.)][ \t])
  | (?P<label>\*\*[^*\n]{{1,60}}(?:\*\*[ ]?[:：]|[:：]\*\*)(?=[ \t\w]))
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BOLD_LINE = re.compile(r"(\*\*|__)[^*_\n]{1,100}\1:?\s*\n")


def _han_number(text: str) -> int:
    """The number up to 99 that Chinese numerals write, 0 if they write none."""
    tens, ten, ones = text.rpartition("十")
    if len(tens) > 1 or len(ones) > 1:
        return 0
    return (_HAN.index(tens) + 1 if tens else 1) * 10 * bool(ten) + (_HAN.index(ones) + 1 if ones else 0)


def _number(groups: re.Match[str]) -> int:
    digits = groups["digits"] or groups["named"] or groups["keycap"]
    if digits:
        return int(digits)
    if groups["circled"]:
        return ord(groups["circled"]) - 0x2460 + 1
    numeral = groups["ordinal"] or groups["han"]
    if not numeral:
        return 0
    return int(numeral) if numeral[0].isdigit() else _han_number(numeral)


def line_head(text: str) -> LineHead:
    """How a line begins; ``text`` is its first piece, so far as it is known."""
    stripped = text.lstrip(_SPACE)
    indent = len(text) - len(stripped)
    if not stripped:
        return BLANK
    match = _MARKED.match(text, indent)
    if match is None:
        bold = _BOLD_LINE.match(text, indent)
        return LineHead(Kind.HEADING if bold else Kind.TEXT, 0, indent, indent)
    end = match.end()
    if match["bullet"] or match["label"]:
        return LineHead(Kind.BULLET, 0, indent, end)
    for kind, group in ((Kind.FENCE, "fence"), (Kind.TABLE, "table"), (Kind.QUOTE, "quote")):
        if match[group]:
            return LineHead(kind, 0, indent, end)
    if match["only_heading"]:
        return LineHead(Kind.HEADING, 0, indent, end)
    return LineHead(Kind.HEADING if match["heading"] else Kind.NUMBERED, _number(match), indent, end)
