"""Words, sentences, lines and paragraphs written so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log1p, nan
from typing import Self

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.parts import Parts
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.sentences import ascii_sentences, count_spaced, count_unspaced, sentence_ends
from endcast.predictors.text.state import State

#: No more newlines at the end are told apart, nor sentences in a paragraph.
MOST_COUNTED = 50

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
    "paragraph_sentences",
    "paragraph_lines",
    "paragraph_lines_left",  # lines of the paragraph before, less those of this one: verse
    "line_length",  # log
    "line_mean",  # log
    "trailing_newlines",
)


@dataclass(slots=True)
class Prose(State):
    """Counts of words, sentences, lines and paragraphs."""

    characters: int = 0
    words: float = 0.0
    unspaced: int = 0
    ascii: int = 0
    sentences: int = 0
    since_sentence: int = 0
    paragraph_sentences: int = 0
    paragraph_lines: int = 0
    previous_lines: int = 0
    newlines: int = 0
    lines: Parts = field(default_factory=Parts)
    paragraphs: Parts = field(default_factory=Parts)

    def copy(self) -> Self:
        other = State.copy(self)
        other.lines = self.lines.copy()
        other.paragraphs = self.paragraphs.copy()
        return other

    def read(self, piece: Piece) -> None:
        size = len(piece.text)
        self.characters += size
        if piece.starts_paragraph:
            self.paragraphs.begin()
            self.previous_lines = self.paragraph_lines
            self.paragraph_sentences = self.paragraph_lines = 0
        if piece.starts_text:
            self.lines.begin()
            self.paragraph_lines += 1
        self.lines.current += size
        self.paragraphs.current += size
        self.newlines = int(piece.ends_line)
        self.words += len(piece.words)
        if piece.text.isascii():
            self.ascii += size
        else:
            self._read_scripts(piece)
        self._read_sentences(piece)

    def read_blank(self, text: str) -> None:
        """A piece of nothing but white space."""
        size = len(text)
        self.characters += size
        self.ascii += size
        self.newlines += text[-1] == "\n"
        if self.since_sentence:
            self.since_sentence += size

    def _read_scripts(self, piece: Piece) -> None:
        ideographs, others = count_unspaced(piece.text)
        self.ascii += sum(map(str.isascii, piece.text))
        if ideographs or others:
            self.unspaced += ideographs + others
            self.words += ideographs + others / 4 + count_spaced(piece.text) - len(piece.words)

    def _read_sentences(self, piece: Piece) -> None:
        text, marked = piece.text, piece.starts_text and piece.head.kind is Kind.NUMBERED
        if text.isascii():
            count, last = ascii_sentences(piece.words, int(marked))
            rest = text.rstrip()
            since = len(rest) - len(last) - rest.casefold().rfind(last) if count else 0
        else:
            ends = sentence_ends(text, piece.head.body if marked else 0)
            count, since = len(ends), len(text) - ends[-1] if ends else 0
        self.sentences += count
        self.paragraph_sentences += count
        self.since_sentence = since if count else self.since_sentence + len(text)

    def values(self) -> tuple[float, ...]:
        size = max(self.characters, 1)
        return (
            log1p(self.characters),
            log1p(self.words),
            log1p(self.sentences),
            log1p(self.lines.begun),
            log1p(self.paragraphs.begun),
            self.unspaced / size,
            1 - self.ascii / size if self.characters else 0.0,
            log1p(self.words / self.sentences) if self.sentences else nan,
            log1p(self.since_sentence),
            float(self.sentences > 0 and not self.since_sentence),
            log1p(self.paragraphs.current),
            self.paragraphs.log_mean,
            self.paragraphs.relative,
            log1p(self.paragraphs.previous) if self.paragraphs.begun > 1 else nan,
            log1p(self.paragraph_sentences),
            log1p(self.paragraph_lines),
            max(min(self.previous_lines - self.paragraph_lines, MOST_COUNTED), -MOST_COUNTED)
            if self.paragraphs.begun > 1
            else nan,
            log1p(0 if self.newlines else self.lines.current),
            self.lines.log_mean,
            log1p(self.newlines),
        )
