"""Reads an output as it is written: numbers that tell how near its end is, whatever the chunks it comes in."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, isnan, log1p, nan
from typing import Self

from endcast.predictors.text import code_blocks, outline, phrases, prose, repetition, tags
from endcast.predictors.text.asked import NOTHING_ASKED, Asked
from endcast.predictors.text.code_blocks import Delimiters, Fences, Json
from endcast.predictors.text.line_heads import BLANK, PLAIN, LineHead, line_head
from endcast.predictors.text.outline import Outline
from endcast.predictors.text.phrases import Phrases
from endcast.predictors.text.pieces import CONTEXT, PIECE, Piece, split_pieces
from endcast.predictors.text.prose import Prose
from endcast.predictors.text.repetition import WINDOW, RepeatedLines
from endcast.predictors.text.state import State
from endcast.predictors.text.tags import Sections, Tags

#: UTF-8 bytes of the end of a text that ``tail`` gives.
TAIL_BYTES = 110
#: Characters of a line that ``line_head`` gives.
LINE_HEAD = 60
#: No more items, sentences or paragraphs are told apart in what is left.
MOST_LEFT = 200.0

LEFT_COLUMNS = (
    "items_left",  # of the number asked for, less the number reached; NaN if no number was asked for
    "words_left",  # log of the words left, negative beyond what was asked for
    "sentences_left",
    "paragraphs_left",
    "lines_left",
    "characters_left",  # log as for words
)
END_COLUMNS = (
    "question_at_end",
    "colon_at_end",
    "comma_at_end",
)
_NOTHING_LEFT = (nan,) * len(LEFT_COLUMNS)
_NO_PHRASES, _NO_JSON, _NO_TAGS, _NO_SECTIONS = Phrases(), Json(), Tags(), Sections()
_CLOSING_MARKS = " \n\r\t\"'”’»」』）)*_`"
_QUESTION, _COLON, _COMMA = frozenset("?？؟"), frozenset(":："), frozenset(",，、،")

#: Names of the features, in their order.
COLUMNS: tuple[str, ...] = (
    *LEFT_COLUMNS,
    *prose.COLUMNS,
    *outline.COLUMNS,
    *phrases.COLUMNS,
    *code_blocks.COLUMNS,
    *tags.COLUMNS,
    *repetition.COLUMNS,
    *END_COLUMNS,
)


def last_bytes(text: str, most: int = TAIL_BYTES) -> str:
    """The whole characters among the last ``most`` UTF-8 bytes of ``text``."""
    end = text[-most:]
    if end.isascii():
        return end
    encoded = end.encode("utf-8", "surrogatepass")[-most:]
    start = next((at for at, byte in enumerate(encoded) if byte & 0xC0 != 0x80), len(encoded))
    return encoded[start:].decode("utf-8", "surrogatepass")


def _difference(asked: float, reached: float) -> float:
    return nan if isnan(asked) else float(max(min(asked - reached, MOST_LEFT), -MOST_LEFT))


def _log_difference(asked: float, reached: float) -> float:
    return copysign(log1p(abs(asked - reached)), asked - reached)  # NaN stays NaN


@dataclass(slots=True)
class _Answer(State):
    """What has been read of an answer, whole pieces only."""

    prose: Prose = field(default_factory=Prose)
    outline: Outline = field(default_factory=Outline)
    fences: Fences = field(default_factory=Fences)
    delimiters: Delimiters = field(default_factory=Delimiters)
    phrases: Phrases = _NO_PHRASES
    json: Json = _NO_JSON
    tags: Tags = _NO_TAGS
    characters: int = 0
    context: str = ""  #: the end of the current line so far
    head: LineHead = BLANK
    at_line_start: bool = True
    after_blank: bool = True
    fence_line: bool = False  #: the current line opens or closes a fence

    def copy(self) -> Self:
        other = State.copy(self)
        other.prose, other.outline = self.prose.copy(), self.outline.copy()
        other.fences, other.delimiters = self.fences.copy(), self.delimiters.copy()
        return other

    def read(self, text: str) -> None:
        """Read one piece."""
        if text.isspace():
            self._read_blank(text[-1] == "\n")
        else:
            self._read_text(self._piece(text))
        self.characters += len(text)
        self.at_line_start = text[-1] == "\n"
        self.context = "" if self.at_line_start else (self.context + text)[-CONTEXT:]

    def _piece(self, text: str) -> Piece:
        starts_text = self.at_line_start or self.head is BLANK
        if starts_text:
            self.head = line_head(text) if self.at_line_start else PLAIN
            self.fence_line = self.fences.switches(text, self.head.kind)
        in_code = self.fence_line or self.fences.marker != ""
        start, words, ends = self.characters, text.casefold().split(), text[-1] == "\n"
        return Piece(
            text, start, start + len(text), self.context, words, self.head, starts_text, self.after_blank, ends, in_code
        )

    def _read_text(self, piece: Piece) -> None:
        self.after_blank = False
        if self.fence_line:
            self.fences.switch(piece)
        else:
            self.fences.read(piece)
        self.prose.read(piece)
        self.outline.read(piece)
        self.delimiters.read(piece)
        self.phrases = self.phrases.read(piece)
        self.json = self.json.read(piece)
        self.tags = self.tags.read(piece)

    def _read_blank(self, ends: bool) -> None:
        self.prose.newlines += ends
        if self.at_line_start:
            self.head, self.fence_line = BLANK, False
            if ends and not self.fences.marker:
                self.after_blank = self.outline.after_blank = True

    def values(self) -> tuple[float, ...]:
        """Values of the columns of all that reads an answer, in the order of ``COLUMNS``."""
        at = self.characters
        return (
            *self.prose.values(at),
            *self.outline.values(at),
            *self.phrases.values(at),
            *self.fences.values(at),
            *self.json.values(),
            *self.delimiters.values(),
            *self.tags.values(),
        )


class _Reading:
    """All that has been read of an output. Where a thinking section closes, the answer starts anew."""

    __slots__ = ("answer", "characters", "sections")

    def __init__(self, answer: _Answer, sections: Sections = _NO_SECTIONS, characters: int = 0) -> None:
        self.answer = answer
        self.sections = sections
        self.characters = characters

    def and_then(self, text: str) -> _Reading:
        """After one more piece; this reading stays as it is."""
        other = _Reading(self.answer.copy(), self.sections, self.characters)
        other.read(text)
        return other

    def read(self, text: str) -> None:
        """Read one piece."""
        self.sections, start = self.sections.read(text, self.answer.context, self.characters)
        self.characters += len(text)
        if start:
            self.answer = _Answer()
            text = text[start:]
        if text:
            self.answer.read(text)


class OutputReader:
    """One generation's text so far. Memory is bounded, and ``append`` takes time in proportion to what is new."""

    __slots__ = ("_asked", "_head", "_lines", "_pending", "_reading", "_window")

    def __init__(self, asked: Asked = NOTHING_ASKED) -> None:
        self._asked = asked
        self._reading = _Reading(_Answer())
        self._lines = RepeatedLines()
        self._pending = ""  #: the piece that is not complete
        self._window = ""  #: the end of what precedes it
        self._head = ""  #: of the current line, where the pending piece does not begin it

    def append(self, text: str) -> None:
        """More of the text."""
        pending = self._pending + text
        if len(pending) < PIECE and "\n" not in text:
            self._pending = pending
            return
        pieces, self._pending = split_pieces(pending)
        line_start = self._line_start
        for piece in pieces:
            if line_start:
                self._head = piece[:LINE_HEAD]
            line_start = piece[-1] == "\n"
            self._reading.read(piece)
            self._lines.read(piece)
        read = len(pending) - len(self._pending)
        self._window = (self._window + pending[max(read - WINDOW, 0) : read])[-WINDOW:]

    @property
    def _line_start(self) -> bool:
        """Whether the pending piece begins a line."""
        return self._window[-1:] in ("", "\n")

    def features(self) -> list[float]:
        """Values of ``COLUMNS`` for the text so far: NaN for unknown, else within ±1e5."""
        reading = self._reading
        if self._pending:
            reading = reading.and_then(self._pending)
        window = (self._window + self._pending)[-WINDOW:]
        return [
            *_left(self._asked, reading.answer),
            *reading.answer.values(),
            *reading.sections.values(reading.characters),
            *repetition.repetition(window, self._lines),
            *_at_end(window),
        ]

    def tail(self) -> str:
        """The end of the text so far: its last whole characters, at most ``TAIL_BYTES`` bytes of UTF-8."""
        return last_bytes((self._window[-TAIL_BYTES:] + self._pending)[-TAIL_BYTES:])

    def line_head(self) -> str:
        """How the current line begins, at most ``LINE_HEAD`` characters; empty after a newline."""
        return self._pending[:LINE_HEAD] if self._line_start else self._head


def _left(asked: Asked, answer: _Answer) -> tuple[float, ...]:
    """Values of ``LEFT_COLUMNS``."""
    if asked is NOTHING_ASKED:
        return _NOTHING_LEFT
    written = answer.prose
    items = answer.outline.reached()
    return (
        _difference(asked.items, items),
        _log_difference(asked.words, written.words),
        _difference(asked.sentences, written.sentences),
        _difference(asked.paragraphs, written.paragraphs.begun),
        _difference(asked.lines, written.lines.begun),
        _log_difference(asked.characters, answer.characters),
    )


def _at_end(window: str) -> tuple[float, float, float]:
    """Values of ``END_COLUMNS``: what the text ends with, spaces and closing marks left aside."""
    last = window[-12:].rstrip(_CLOSING_MARKS)[-1:]
    return (float(last in _QUESTION), float(last in _COLON), float(last in _COMMA))
