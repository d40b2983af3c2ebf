"""Code fences, JSON, and open brackets, quotes and emphasis."""

from __future__ import annotations

import re
from math import log1p, nan

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.parts import Parts
from endcast.predictors.text.pieces import Piece

#: No deeper nesting is told apart.
MOST_DEEP = 50

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


class Fences:
    """The code fence that is open, and the bracket depth of the code in it."""

    def __init__(self) -> None:
        self.marker = ""  #: of the open fence
        self.lines = 0
        self.depth = 0
        self.indent = 0
        self.closed = 0
        self.after = 0
        self.blocks = Parts()

    def copy(self) -> Fences:
        other = Fences.__new__(Fences)
        other.__dict__.update(self.__dict__)
        other.blocks = self.blocks.copy()
        return other

    def switches(self, text: str, kind: Kind) -> bool:
        """Whether the line that begins with ``text`` opens a fence, or closes the open one."""
        if kind is not Kind.FENCE:
            return False
        return not self.marker or (text.strip().strip(self.marker[0]) == "" and self.marker in text)

    def read(self, piece: Piece, switches: bool) -> None:
        if switches:
            self._switch(piece)
        elif not self.marker:
            self.after += len(piece.text)
        elif piece.starts_line or self.blocks.current:
            self._read_code(piece)

    def _switch(self, piece: Piece) -> None:
        if self.marker:
            self.marker = ""
            self.closed += 1
            self.after = 0
        else:
            self.marker = piece.text.lstrip()[:3]
            self.blocks.begin()
            self.lines = self.depth = self.indent = 0

    def _read_code(self, piece: Piece) -> None:
        text = piece.text
        self.blocks.current += len(text)
        self.lines += piece.starts_line
        if piece.starts_line and not piece.blank:
            self.indent = piece.head.indent
        opened = text.count("(") + text.count("[") + text.count("{")
        self.depth += opened - text.count(")") - text.count("]") - text.count("}")

    def values(self) -> tuple[float, ...]:
        opened = bool(self.marker)
        return (
            float(opened),
            log1p(self.lines) if opened else 0.0,
            log1p(self.blocks.current) if opened else 0.0,
            min(self.closed, MOST_DEEP),
            log1p((self.blocks.closed + (not opened) * self.blocks.current) / self.closed) if self.closed else nan,
            log1p(self.after) if self.closed and not opened else nan,
            max(min(self.depth, MOST_DEEP), -MOST_DEEP) if opened else 0.0,
            min(self.indent, MOST_DEEP) if opened else 0.0,
        )


class Json:
    """Bracket depth, outside strings, of a text that starts as JSON."""

    def __init__(self) -> None:
        self.begun = False
        self.is_json = False
        self.depth = 0
        self.in_string = False
        self.escaped = False

    def copy(self) -> Json:
        other = Json.__new__(Json)
        other.__dict__.update(self.__dict__)
        return other

    def read(self, piece: Piece) -> None:
        if not self.begun and not piece.blank:
            self.begun = True
            self.is_json = piece.text.lstrip()[0] in "{["
        if not self.is_json:
            return
        tokens = _JSON_TOKEN.findall(piece.text, int(self.escaped))
        self.escaped = bool(tokens) and tokens[-1] == "\\"
        for token in tokens:
            if token == '"':
                self.in_string = not self.in_string
            elif not self.in_string and token in "{}[]":
                self.depth = max(self.depth + (1 if token in "{[" else -1), 0)
        if piece.ends_line:  # a JSON string holds no line break
            self.in_string = self.escaped = False

    def values(self) -> tuple[float, ...]:
        if not self.is_json:
            return (nan, 0.0)
        return (min(self.depth, MOST_DEEP), float(self.depth == 0))


class Delimiters:
    """Quotes and brackets open in the paragraph, emphasis open in the line."""

    def __init__(self) -> None:
        self.quotes = 0
        self.pairs = 0
        self.brackets = 0
        self.bolds = 0

    def copy(self) -> Delimiters:
        other = Delimiters.__new__(Delimiters)
        other.__dict__.update(self.__dict__)
        return other

    def read(self, piece: Piece) -> None:
        if piece.starts_paragraph:
            self.quotes = self.pairs = self.brackets = 0
        if piece.starts_line:
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
