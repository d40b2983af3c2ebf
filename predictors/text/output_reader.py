"""Reads an output as it is written: numbers that tell how near its end is, whatever the chunks it comes in."""

from __future__ import annotations

from math import copysign, isnan, log1p, nan

from endcast.predictors.text import code_blocks, outline, phrases, prose, repetition, tags
from endcast.predictors.text.asked import NOTHING_ASKED, Asked
from endcast.predictors.text.line_heads import BLANK, PLAIN, LineHead, line_head
from endcast.predictors.text.pieces import CONTEXT, PIECE, Piece, split_pieces

#: UTF-8 bytes of the end of a text that ``tail`` gives.
TAIL_BYTES = 110
#: Characters of a line that ``line_head`` gives.
LINE_HEAD = 60
#: No more items, sentences or paragraphs are told apart in what is left.
MOST_LEFT = 200.0

LEFT_COLUMNS = (
    "items_left",  # of the number asked for, less the number reached; NaN if no number was asked for
    "items_share",  # reached, of those asked for
    "words_left",  # log of the words left, negative beyond what was asked for
    "words_share",
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
    return nan if isnan(asked) else max(min(asked - reached, MOST_LEFT), -MOST_LEFT)


def _log_difference(asked: float, reached: float) -> float:
    return copysign(log1p(abs(asked - reached)), asked - reached)  # NaN stays NaN


def _share(asked: float, reached: float) -> float:
    return nan if isnan(asked) else min(reached / max(asked, 1.0), 10.0)


class _Reading:
    """All that has been read of an output, whole pieces only. A copy reads on without touching the original."""

    def __init__(self) -> None:
        self.sections = tags.Sections()
        self.lines = repetition.RepeatedLines()
        self._start_answer()

    def _start_answer(self) -> None:
        self.prose = prose.Prose()
        self.outline = outline.Outline()
        self.phrases = phrases.Phrases()
        self.fences = code_blocks.Fences()
        self.json = code_blocks.Json()
        self.delimiters = code_blocks.Delimiters()
        self.tags = tags.Tags()
        self.context = ""
        self.head = BLANK
        self.at_line_start = True
        self.after_blank = True
        self.fence_line = False

    def copy(self) -> _Reading:
        other = _Reading.__new__(_Reading)
        other.__dict__.update(self.__dict__)
        for name in ("sections", "prose", "outline", "phrases", "fences", "json", "delimiters", "tags"):
            other.__dict__[name] = self.__dict__[name].copy()
        return other

    def read(self, text: str) -> None:
        """Read one piece. Where a thinking section closes, the answer starts anew: its structure is its own."""
        answer = self.sections.read(text, self.context)
        if answer:
            self._start_answer()
            text = text[answer:]
        if text:
            self._read_piece(text)

    def _read_piece(self, text: str) -> None:
        starts, ends = self.at_line_start, text[-1] == "\n"
        blank = text.isspace()
        if starts:
            self.head = self._line_head(text)
        elif not blank and self.head.kind is BLANK.kind:
            self.head = PLAIN
        in_code = bool(self.fences.marker) or self.fence_line
        starts_paragraph = self.after_blank and not blank
        piece = Piece(text, self.context, self.head, starts, ends, blank, starts_paragraph, in_code)
        self.fences.read(piece, starts and self.fence_line)
        self.prose.read(piece)
        self.outline.read(piece)
        self.phrases.read(piece)
        self.json.read(piece)
        self.delimiters.read(piece)
        self.tags.read(piece)
        self.at_line_start = ends
        self.context = "" if ends else (self.context + text)[-CONTEXT:]
        if not blank:
            self.after_blank = False
        elif starts and ends:
            self.after_blank = True

    def _line_head(self, text: str) -> LineHead:
        head = line_head(text)
        self.fence_line = self.fences.switches(text, head.kind)
        return head

    def values(self) -> list[float]:
        return [
            *self.prose.values(),
            *self.outline.values(),
            *self.phrases.values(),
            *self.fences.values(),
            *self.json.values(),
            *self.delimiters.values(),
            *self.tags.values(),
            *self.sections.values(),
        ]


class OutputReader:
    """One generation's text so far. Memory is bounded, and ``append`` takes time in proportion to what is new."""

    def __init__(self, asked: Asked = NOTHING_ASKED) -> None:
        self._asked = asked
        self._reading = _Reading()
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
        for piece in pieces:
            if self._reading.at_line_start:
                self._head = piece[:LINE_HEAD]
            self._reading.read(piece)
            self._reading.lines.read(piece)
        read = len(pending) - len(self._pending)
        self._window = (self._window + pending[max(read - repetition.WINDOW, 0) : read])[-repetition.WINDOW :]

    def features(self) -> list[float]:
        """Values of ``COLUMNS`` for the text so far: float, NaN for unknown, else within ±1e5."""
        reading = self._reading
        if self._pending:
            reading = reading.copy()
            reading.read(self._pending)
        window = (self._window + self._pending)[-repetition.WINDOW :]
        return [
            *self._left(reading),
            *reading.values(),
            *repetition.repetition(window, reading.lines),
            *_at_end(window),
        ]

    def _left(self, reading: _Reading) -> tuple[float, ...]:
        asked, written = self._asked, reading.prose
        items = float(reading.outline.number or reading.outline.bullet_items.begun)
        return (
            _difference(asked.items, items),
            _share(asked.items, items),
            _log_difference(asked.words, written.words),
            _share(asked.words, written.words),
            _difference(asked.sentences, written.sentences),
            _difference(asked.paragraphs, written.paragraphs.begun),
            _difference(asked.lines, written.lines.begun),
            _log_difference(asked.characters, written.characters),
        )

    def tail(self) -> str:
        """The end of the text so far: its last whole characters, at most ``TAIL_BYTES`` bytes of UTF-8."""
        return last_bytes((self._window[-TAIL_BYTES:] + self._pending)[-TAIL_BYTES:])

    def line_head(self) -> str:
        """How the current line begins, at most ``LINE_HEAD`` characters; empty after a newline."""
        return self._pending[:LINE_HEAD] if self._reading.at_line_start else self._head


def _at_end(window: str) -> tuple[float, float, float]:
    """Whether the text ends with a question mark, a colon, a comma, leaving aside spaces and closing marks."""
    last = window[-12:].rstrip(" \n\r\t\"'”’»」』）)*_`")[-1:]
    return (float(last in set("?？؟;")), float(last in set(":：")), float(last in set(",，、،")))
