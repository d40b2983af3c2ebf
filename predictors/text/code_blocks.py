"""Code fences, JSON, and open brackets, quotes and emphasis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log1p, nan
from typing import NamedTuple

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.state import State

FENCE_COLUMNS = (
    "fence_open",
    "fence_length",  # log of its characters
    "fences_closed",  # log
    "fence_previous",  # log of the characters in the last complete fence
    "after_fence",  # log of the characters since the last fence closed; NaN without one, or inside one
    "code_depth",  # log of the brackets open in the fence
    "code_indent",  # log of that of its current line
)
JSON_COLUMNS = (
    "json_depth",  # log of the brackets open in a text that starts as JSON; NaN for any other text
    "json_closed",  # such a text has closed all its brackets
)
DELIMITER_COLUMNS = (
    "quote_open",  # in the paragraph
    "bracket_open",  # in the paragraph
    "bold_open",  # in the line
)
COLUMNS = (*FENCE_COLUMNS, *JSON_COLUMNS, *DELIMITER_COLUMNS)
_JSON_TOKEN = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


@dataclass(slots=True)
class Fences(State):
    """The code fence that is open, and the bracket depth of the code in it."""

    marker: str = ""  #: of the open fence
    opened_at: int = 0
    closed_at: int = 0
    closed: int = 0
    previous: int = 0  #: characters in the last complete one
    depth: int = 0
    indent: int = 0

    def switches(self, text: str, kind: Kind) -> bool:
        """Whether the line that begins with ``text`` opens a fence, or closes the open one."""
        if kind is not Kind.FENCE:
            return False
        return not self.marker or (text.strip().strip(self.marker[0]) == "" and self.marker in text)

    def switch(self, piece: Piece) -> None:
        """A piece of a line that opens or closes a fence."""
        if not piece.starts_text:  # the rest of a long line
            return
        if self.marker:
            self.marker = ""
            self.closed += 1
            self.previous = piece.start - self.opened_at
            self.closed_at = piece.end
        else:
            self.marker = piece.text.lstrip()[:3]
            self.opened_at = piece.end
            self.depth = self.indent = 0

    def read(self, piece: Piece) -> None:
        """A piece of any other line."""
        if not self.marker:
            return
        text = piece.text
        if piece.starts_text:
            self.indent = piece.head.indent
        opened = text.count("(") + text.count("[") + text.count("{")
        closed = text.count(")") + text.count("]") + text.count("}")
        self.depth = max(self.depth + opened - closed, 0)

    def values(self, at: int) -> tuple[float, ...]:
        """Values of ``FENCE_COLUMNS`` for a text of ``at`` characters."""
        previous = log1p(self.previous) if self.closed else nan
        if not self.marker:
            after = log1p(at - self.closed_at) if self.closed else nan
            return (0.0, 0.0, log1p(self.closed), previous, after, 0.0, 0.0)
        length = log1p(at - self.opened_at)
        return (
            1.0,
            length,
            log1p(self.closed),
            previous,
            nan,
            log1p(self.depth),
            log1p(self.indent),
        )


class Json(NamedTuple):
    """Bracket depth, outside strings, of a text that starts as JSON; ``is_json`` is unknown before it starts."""

    is_json: bool | None = None
    depth: int = 0
    in_string: bool = False
    escaped: bool = False

    def read(self, piece: Piece) -> Json:
        """After one more piece; itself unless the text is JSON."""
        if self.is_json is None:
            return Json(piece.text.lstrip()[0] in "{[").read(piece)
        if not self.is_json:
            return self
        in_line = not piece.starts_text  # a JSON string holds no line break
        in_string, depth = self.in_string and in_line, self.depth
        tokens = _JSON_TOKEN.findall(piece.text, int(self.escaped and in_line))
        for token in tokens:
            if token == '"':
                in_string = not in_string
            elif not in_string and token in "{}[]":
                depth = max(depth + (1 if token in "{[" else -1), 0)
        return Json(True, depth, in_string, bool(tokens) and tokens[-1] == "\\")

    def values(self) -> tuple[float, ...]:
        """Values of ``JSON_COLUMNS``."""
        return (log1p(self.depth), float(self.depth == 0)) if self.is_json else (nan, 0.0)


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
        """Values of ``DELIMITER_COLUMNS``."""
        return (
            float(self.quotes % 2 == 1 or self.pairs > 0),
            float(self.brackets > 0),
            float(self.bolds % 2 == 1),
        )
