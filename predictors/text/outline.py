"""The outline of an answer: numbered items, bullets, headings, table rows, and what follows the last list."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p, nan

from endcast.predictors.text.line_heads import Kind, LineHead
from endcast.predictors.text.parts import NO_PARTS, Parts
from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.state import State

#: A number that skips more than that does not number an item.
MOST_SKIPPED = 20

COLUMNS = (
    "item_reached",  # log of the number of the current numbered item, or of the bullet where nothing is numbered; 0 without list
    "lists",  # log of the numbered lists begun
    "numbered_mean",  # log of the characters in a complete numbered item, whatever belongs to it
    "numbered_length",  # log of the characters since the last number
    "numbered_relative",
    "bullets",  # log of those in a row
    "bullet_mean",  # log
    "bullet_relative",
    "nested",  # log of the bullets under the current number
    "nested_mean",  # log of the mean under a complete number
    "item_line",  # the current line is an item
    "list_ended",  # there was a list, and text that belongs to no item follows it
    "after_list",  # log of the characters in that text
    "after_list_paragraphs",  # log
    "headings",  # log
    "heading_line",  # the last line with text is a heading
    "section_length",  # log
    "section_mean",  # log
    "section_relative",
    "table_rows",  # log of those in the last table
    "in_table",
    "after_table",  # log of the characters since its last row; NaN without table
    "indent",  # log of that of the current line
)


_ITEM_KINDS = (Kind.NUMBERED, Kind.BULLET)


@dataclass(slots=True)
class Outline(State):
    """Where in its lists, sections and tables an answer stands. Lines of code count as text of what is around them."""

    lists: int = 0
    number: int = 0
    label: int = 0  # the number as written
    list_indent: int = 0
    bullets: int = 0
    nested: int = 0
    nested_before: int = 0
    after_list: int = 0
    after_paragraphs: int = 0
    after_blank: bool = False  #: there was a blank line since the last item
    rows: int = 0
    table_at: int = 0  #: where the last table row ends
    kind: Kind = Kind.BLANK
    indent: int = 0
    items: Parts = NO_PARTS
    bullet_items: Parts = NO_PARTS
    sections: Parts = NO_PARTS

    def read(self, piece: Piece) -> None:
        if piece.starts_text and not piece.in_code:
            self._begin_line(piece.head, piece.start)
        if self.kind is Kind.TABLE:
            self.table_at = piece.end
        if self.after_blank and self._outside_items(piece):
            self.after_list += piece.end - piece.start
            self.after_paragraphs += piece.starts_paragraph

    def _outside_items(self, piece: Piece) -> bool:
        """Whether a piece after a blank line belongs to no item: not indented, and neither item, table nor code."""
        if piece.in_code or self.indent >= 2 or self.kind in _ITEM_KINDS or self.kind is Kind.TABLE:
            return False
        return bool(self.items.begun or self.bullet_items.begun)

    def _begin_line(self, head: LineHead, at: int) -> None:
        kind, before = head.kind, self.kind
        self.kind, self.indent = kind, head.indent
        if kind is Kind.TEXT:
            return
        if kind is Kind.HEADING:
            self.sections = self.sections.begin(at)
            self.bullets = 0
        if head.number or kind is Kind.NUMBERED:
            self._begin_number(head.number, head.indent, at)
        elif kind is Kind.BULLET:
            self._begin_bullet(at)
        elif kind is Kind.TABLE:
            self.rows = self.rows + 1 if before is Kind.TABLE else 1
        if head.number or kind in _ITEM_KINDS:
            self.after_list = self.after_paragraphs = 0
            self.after_blank = False

    def _begin_number(self, number: int, indent: int, at: int) -> None:
        if self.lists and indent >= self.list_indent + 2:  # a list inside an item
            self.nested += 1
            return
        if not self.lists or number < self.label or (number == self.label and self.after_list):
            self.lists += 1
            self.items = NO_PARTS
            self.number = self.label = self.nested = self.nested_before = 0
            self.list_indent = indent
        self.nested_before += self.nested
        self.nested = self.bullets = 0
        self.items = self.items.begin(at)
        # "1." on every line, and a number out of sequence, count on
        self.number = number if self.number < number <= self.number + MOST_SKIPPED else self.number + 1
        self.label = number

    def _begin_bullet(self, at: int) -> None:
        if self.after_list:
            self.bullets = 0
            if not self.lists:
                self.bullet_items = NO_PARTS
        self.bullets += 1
        self.nested += 1
        self.bullet_items = self.bullet_items.begin(at)

    def reached(self) -> int:
        """Items begun: the last number, else the bullets, else the table rows below the header."""
        return self.number or self.bullet_items.begun or max(self.rows - 2, 0)

    def values(self, at: int) -> tuple[float, ...]:
        """Values of ``COLUMNS`` for a text of ``at`` characters."""
        items, bullets, sections, kind = self.items, self.bullet_items, self.sections, self.kind
        return (
            log1p(self.number or self.bullets),
            log1p(self.lists),
            items.log_mean(),
            items.log_length(at),
            items.relative(at),
            log1p(self.bullets),
            bullets.log_mean(),
            bullets.relative(at),
            log1p(self.nested) if self.lists else 0.0,
            log1p(self.nested_before / (items.begun - 1)) if items.begun > 1 else nan,
            float(kind in _ITEM_KINDS),
            float(self.after_list > 0),
            log1p(self.after_list),
            log1p(self.after_paragraphs),
            log1p(sections.begun),
            float(kind is Kind.HEADING),
            sections.log_length(at),
            sections.log_mean(),
            sections.relative(at),
            log1p(self.rows),
            float(kind is Kind.TABLE),
            log1p(at - self.table_at) if self.rows else nan,
            log1p(self.indent),
        )
