"""Words, sentences, lines and paragraphs written so far."""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign, log1p, nan

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.parts import NO_PARTS, Parts
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.sentences import count_spaced, count_unspaced, sentence_ends
from endcast.predictors.text.state import State

COLUMNS = (
    "log_characters",
    "log_words",
    "log_sentences",
    "log_lines",  # lines that hold text
    "log_paragraphs",
    "share_unspaced",  # of the characters, those of scripts without spaces
    "share_not_ascii",
    "words_per_sentence",  # log, of the complete sentences
    "sentence_length",  # log of the characters since the last sentence ended
    "sentence_ended",  # just now: nothing but closing quotes and spaces since
    "paragraph_length",  # log of the characters in the paragraph being written
    "paragraph_mean",  # log of the mean of those complete
    "paragraph_relative",
    "paragraph_previous",  # log of the length of the one before
    "paragraph_sentences",  # log
    "paragraph_lines",  # log
    "paragraph_lines_left",  # log: lines of the paragraph before, less those of this one: verse
    "line_length",  # log
    "line_mean",  # log
    "trailing_newlines",  # log
)


@dataclass(slots=True)
class Prose(State):
    """Counts of words, sentences, lines and paragraphs."""

    words: float = 0.0
    unspaced: int = 0
    not_ascii: int = 0
    sentences: int = 0
    sentence_at: int = 0  #: where the last complete one ends
    sentence_ended: bool = False  #: and nothing but white space since
    paragraph_sentences: int = 0
    paragraph_lines: int = 0
    previous_lines: int = 0
    newlines: int = 0  #: at the end
    lines: Parts = NO_PARTS
    paragraphs: Parts = NO_PARTS

    def read(self, piece: Piece) -> None:
        if piece.starts_text:
            if piece.starts_paragraph:
                self._begin_paragraph(piece.start)
            self.lines = self.lines.begin(piece.start)
            self.paragraph_lines += 1
        self.newlines = int(piece.ends_line)
        self.words += len(piece.words)
        if not piece.text.isascii():
            self._read_scripts(piece)
        numbered = piece.starts_text and piece.head.kind is Kind.NUMBERED
        count, since = sentence_ends(piece.text, piece.head.body if numbered else 0)
        self.sentence_ended = False
        if count:
            self.sentences += count
            self.paragraph_sentences += count
            self.sentence_at = piece.end - since
            self.sentence_ended = not since

    def _begin_paragraph(self, at: int) -> None:
        self.paragraphs = self.paragraphs.begin(at)
        self.previous_lines = self.paragraph_lines
        self.paragraph_sentences = self.paragraph_lines = 0

    def _read_scripts(self, piece: Piece) -> None:
        ideographs, others = count_unspaced(piece.text)
        self.not_ascii += len(piece.text) - sum(map(str.isascii, piece.text))
        if ideographs or others:
            self.unspaced += ideographs + others
            self.words += ideographs + others / 4 + count_spaced(piece.text) - len(piece.words)

    def values(self, at: int) -> tuple[float, ...]:
        """Values of ``COLUMNS`` for a text of ``at`` characters."""
        lines, paragraphs = self.lines, self.paragraphs
        verse = self.previous_lines - self.paragraph_lines
        return (
            log1p(at),
            log1p(self.words),
            log1p(self.sentences),
            log1p(lines.begun),
            log1p(paragraphs.begun),
            self.unspaced / at if at else 0.0,
            self.not_ascii / at if at else 0.0,
            log1p(self.words / self.sentences) if self.sentences else nan,
            0.0 if self.sentence_ended else log1p(at - self.sentence_at),
            float(self.sentence_ended),
            paragraphs.log_length(at),
            paragraphs.log_mean(),
            paragraphs.relative(at),
            log1p(paragraphs.previous) if paragraphs.begun > 1 else nan,
            log1p(self.paragraph_sentences),
            log1p(self.paragraph_lines),
            copysign(log1p(abs(verse)), verse) if paragraphs.begun > 1 else nan,
            0.0 if self.newlines else lines.log_length(at),
            lines.log_mean(),
            log1p(self.newlines),
        )
