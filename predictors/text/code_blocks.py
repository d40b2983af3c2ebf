"""Code fences, JSON, and open brackets, quotes and emphasis."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import log1p, nan
from typing import Self

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.parts import Parts
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.state import State

COLUMNS = (
    "fence_open",
    "fence_lines",  # log of the lines in the open fence
    "fence_length",  # log of its characters
    "fences_closed",
    "fence_mean",  # log of the characters in a complete fence
    "after_fence",  # log of the characters since the last fence closed; NaN without one, or inside one
    "code_depth",  # brackets open in the fence
    "code_indent",  # of its current line
    "json_depth",  # brackets open in a text that starts as JSON; NaN for any other text
    "json_closed",  # such a text has closed all its brackets
    "quote_open",  # in the paragraph
    "bracket_open",  # in the paragraph
    "bold_open",  # in the line
)
_JSON_TOKEN = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


@dataclass(slots=True)
class Fences(State):
    """The code fence that is open, and the bracket depth of the code in it."""

    marker: str = ""  #: of the open fence
    lines: int = 0
    depth: int = 0
    indent: int = 0
    closed: int = 0
    after: int = 0
    blocks: Parts = field(default_factory=Parts)

    def copy(self) -> Self:
        other = State.copy(self)
        other.blocks = self.blocks.copy()
        return other

    def switches(self, text: str, kind: Kind) -> bool:
        """Whether the line that begins with ``text`` opens a fence, or closes the open one."""
        if kind is not Kind.FENCE:
            return False
        return not self.marker or (text.strip().strip(self.marker[0]) == "" and self.marker in text)

    def read(self, piece: Piece) -> None:
        """A piece of a line that opens or closes no fence."""
        text = piece.text
        if not self.marker:
            self.after += len(text)
            return
        self.blocks.current += len(text)
        if piece.starts_line:
            self.lines += 1
            self.indent = piece.head.indent
        opened = text.count("(") + text.count("[") + text.count("{")
        closed = text.count(")") + text.count("]") + text.count("}")
        self.depth = max(self.depth + opened - closed, 0)

    def read_blank(self, text: str, starts_line: bool) -> None:
        if self.marker:
            self.blocks.current += len(text)
            self.lines += starts_line

    def switch(self, text: str) -> None:
        """The line that begins with ``text`` opens or closes a fence."""
        if self.marker:
            self.marker = ""
            self.closed += 1
            self.after = 0
        else:
            self.marker = text.lstrip()[:3]
            self.blocks.begin()
            self.lines = self.depth = self.indent = 0

    def values(self) -> tuple[float, ...]:
        opened = bool(self.marker)
        return (
            float(opened),
            log1p(self.lines) if opened else 0.0,
            log1p(self.blocks.current) if opened else 0.0,
            log1p(self.closed),
            log1p((self.blocks.closed + (not opened) * self.blocks.current) / self.closed) if self.closed else nan,
            log1p(self.after) if self.closed and not opened else nan,
            log1p(self.depth) if opened else 0.0,
            log1p(self.indent) if opened else 0.0,
        )


@dataclass(slots=True)
class Json(State):
    """Bracket depth, outside strings, of a text that starts as JSON."""

    begun: bool = False
    is_json: bool = False
    depth: int = 0
    in_string: bool = False
    escaped: bool = False

    def read(self, piece: Piece) -> None:
        if not self.begun:
            self.begun = True
            self.is_json = piece.text.lstrip()[0] in "{["
        if not self.is_json:
            return
        if piece.starts_text:  # a JSON string holds no line break
            self.in_string = self.escaped = False
        tokens = _JSON_TOKEN.findall(piece.text, int(self.escaped))
        self.escaped = bool(tokens) and tokens[-1] == "\\"
        for token in tokens:
            if token == '"':
                self.in_string = not self.in_string
            elif not self.in_string and token in "{}[]":
                self.depth = max(self.depth + (1 if token in "{[" else -1), 0)

    def values(self) -> tuple[float, ...]:
        if not self.is_json:
            return (nan, 0.0)
        return (log1p(self.depth), float(self.depth == 0))


@dataclass(slots=True)
class Delimiters(State):
    """Quotes and brackets open in the paragraph, emphasis open in the line."""

    quotes: int = 0
    pairs: int = 0
    brackets: int = 0
    bolds: int = 0

    def read(self, piece: Piece) -> None:
        if piece.starts_paragraph:
            self.quotes = self.pairs = self.brackets = 0
        if piece.starts_text:
            self.bolds = 0
        text = piece.text
        self.quotes += text.count('"')
        self.brackets += text.count("(") - text.count(")")
        self.bolds += text.count("**")
        if not text.isascii():
            self.pairs += text.count("“") + text.count("「") + text.count("«") + text.count("『")
            self.pairs -= text.count("”") + text.count("」") + text.count("»") + text.count("』")
            self.brackets += text.count("（") - text.count("）")

    def values(self) -> tuple[float, ...]:
        return (
            float(self.quotes % 2 == 1 or self.pairs > 0),
            float(self.brackets > 0),
            float(self.bolds % 2 == 1),
        )
