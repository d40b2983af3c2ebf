"""Words, sentences, lines and paragraphs written so far."""

from __future__ import annotations

from math import log1p, nan

from endcast.predictors.text.parts import Parts
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.sentences import count_unspaced, count_words, sentence_ends

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


class Prose:
    """Counts of words, sentences, lines and paragraphs."""

    def __init__(self) -> None:
        self.characters = 0
        self.words = 0.0
        self.unspaced = 0
        self.ascii = 0
        self.sentences = 0
        self.since_sentence = 0
        self.paragraph_sentences = 0
        self.paragraph_lines = 0
        self.previous_lines = 0
        self.newlines = 0
        self.lines = Parts()
        self.paragraphs = Parts()

    def copy(self) -> Prose:
        other = Prose.__new__(Prose)
        other.__dict__.update(self.__dict__)
        other.lines, other.paragraphs = self.lines.copy(), self.paragraphs.copy()
        return other

    def read(self, piece: Piece) -> None:
        size = len(piece.text)
        self.characters += size
        if piece.text.isascii():
            self.ascii += size
        else:
            self.unspaced += count_unspaced(piece.text)
            self.ascii += sum(map(str.isascii, piece.text))
        if piece.blank:
            self.newlines += piece.ends_line
            self.since_sentence += size if self.since_sentence else 0
            return
        if piece.starts_paragraph:
            self.paragraphs.begin()
            self.previous_lines = self.paragraph_lines
            self.paragraph_sentences = self.paragraph_lines = 0
        if piece.starts_line or not self.lines.begun:
            self.lines.begin()
            self.paragraph_lines += 1
        self.lines.current += size
        self.paragraphs.current += size
        self.newlines = int(piece.ends_line)
        self.words += count_words(piece.text)
        self._read_sentences(piece)

    def _read_sentences(self, piece: Piece) -> None:
        ends = sentence_ends(piece.text, piece.body)
        if not ends:
            self.since_sentence += len(piece.text)
            return
        self.sentences += len(ends)
        self.paragraph_sentences += len(ends)
        self.since_sentence = len(piece.text) - ends[-1]

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
            min(self.paragraph_sentences, MOST_COUNTED),
            min(self.paragraph_lines, MOST_COUNTED),
            max(min(self.previous_lines - self.paragraph_lines, MOST_COUNTED), -MOST_COUNTED)
            if self.paragraphs.begun > 1
            else nan,
            log1p(0 if self.newlines else self.lines.current),
            self.lines.log_mean,
            min(self.newlines, MOST_COUNTED),
        )
