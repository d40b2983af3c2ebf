"""Cutting a text into pieces at places that the text alone decides, however it arrives.

A piece is a whole line, or a stretch of a long line of at most ``PIECE`` characters, cut after a space where there is
one. Everything that reads an output reads it piece by piece, each once; so what it finds cannot depend on the chunks
in which the text came, takes time in proportion to the text, and needs no more memory than one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

from endcast.predictors.text.line_heads import LineHead

#: Most characters in a piece, the newline aside.
PIECE = 128
#: Characters of the same line before a piece that a piece carries along, so that a phrase or tag cut in two is seen.
CONTEXT = 40


@dataclass(slots=True)
class Piece:
    """A stretch of one line with something in it; ``text`` ends with the newline where the line ends."""

    text: str
    start: int  #: characters before it
    end: int  #: characters up to its end
    context: str  #: what precedes it in its line, the last ``CONTEXT`` characters
    words: list[str]  #: what white space sets apart in ``text``, casefolded
    head: LineHead  #: how the line that it belongs to begins
    starts_text: bool  #: the first piece of its line that is not blank
    starts_paragraph: bool  #: the first text after a blank line, or of all
    ends_line: bool
    in_code: bool  #: inside a code fence, or one of its two lines


def split_pieces(text: str) -> tuple[list[str], str]:
    """The pieces that no further text can change, and the rest, shorter than ``PIECE``; ``text`` begins a piece."""
    pieces: list[str] = []
    start, newline, size = 0, text.find("\n"), len(text)
    while True:
        if (size if newline < 0 else newline) - start >= PIECE:
            stop = (text.rfind(" ", start + PIECE // 2, start + PIECE) + 1) or start + PIECE
        elif newline >= 0:
            stop = newline + 1
            newline = text.find("\n", stop)
        else:
            return pieces, text[start:]
        pieces.append(text[start:stop])
        start = stop
