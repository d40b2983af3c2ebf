"""The outline of an answer: numbered items, bullets, headings, table rows, and what follows the last list."""

from __future__ import annotations

from math import log1p, nan

from endcast.predictors.text.line_heads import Kind
from endcast.predictors.text.parts import Parts
from endcast.predictors.text.pieces import Piece

#: No larger number of an item, and no more bullets or rows, are told apart.
MOST_ITEMS = 200
#: A number that skips more than that does not number an item.
MOST_SKIPPED = 20

COLUMNS = (
    "item_reached",  # number of the current numbered item, or of the bullet where nothing is numbered; 0 without list
    "lists",  # numbered lists begun
    "numbered_reached",
    "numbered_mean",  # log of the characters in a complete numbered item, whatever belongs to it
    "numbered_length",  # log of the characters since the last number
    "numbered_relative",
    "bullets",  # in a row
    "bullets_all",  # log
    "bullet_mean",  # log
    "bullet_relative",
    "nested",  # bullets under the current number
    "nested_mean",  # under a complete number
    "item_line",  # the current line is an item
    "list_ended",  # there was a list, and text that belongs to no item follows it
    "after_list",  # log of the characters in that text
    "after_list_paragraphs",
    "headings",
    "heading_line",  # the last line with text is a heading
    "section_length",  # log
    "section_mean",  # log
    "section_relative",
    "table_rows",  # in the last table
    "in_table",
    "after_table",  # log of the characters since its last row; NaN without table
    "indent",  # of the current line
)


class Outline:
    """Where in its lists, sections and tables an answer stands. Lines of code count as text of what is around them."""

    def __init__(self) -> None:
        self.lists = 0
        self.number = 0
        self.label = 0  # the number as written
        self.list_indent = 0
        self.bullets = 0
        self.nested = 0
        self.nested_before = 0
        self.after_list = 0
        self.after_paragraphs = 0
        self.after_blank = False
        self.rows = 0
        self.after_table = 0
        self.kind = Kind.BLANK
        self.in_code = False
        self.indent = 0
        self.items = Parts()
        self.bullet_items = Parts()
        self.sections = Parts()

    def copy(self) -> Outline:
        other = Outline.__new__(Outline)
        other.__dict__.update(self.__dict__)
        other.items, other.bullet_items = self.items.copy(), self.bullet_items.copy()
        other.sections = self.sections.copy()
        return other

    def read(self, piece: Piece) -> None:
        if piece.blank:
            self.after_blank = self.after_blank or (piece.starts_line and piece.ends_line)
            return
        size = len(piece.text)
        if piece.starts_line and not piece.in_code:
            self._begin_line(piece)
        self.in_code = piece.in_code
        self.items.current += size
        self.bullet_items.current += size
        self.sections.current += size
        if self.kind is not Kind.TABLE:
            self.after_table += size
        if self._outside_items(piece):
            self.after_list += size
            self.after_paragraphs += piece.starts_paragraph

    def _outside_items(self, piece: Piece) -> bool:
        """Whether a piece belongs to no item: after a blank line, not indented, and neither item, table nor code."""
        if piece.in_code or not (self.items.begun or self.bullet_items.begun):
            return False
        return self.after_blank and self.indent < 2 and self.kind not in (Kind.NUMBERED, Kind.BULLET, Kind.TABLE)

    def _begin_line(self, piece: Piece) -> None:
        head = piece.head
        self.kind, self.indent = head.kind, head.indent
        if head.kind is Kind.HEADING:
            self.sections.begin()
            self.bullets = 0
        if head.number or head.kind is Kind.NUMBERED:
            self._begin_number(head.number, head.indent)
        elif head.kind is Kind.BULLET:
            self._begin_bullet()
        elif head.kind is Kind.TABLE:
            self.rows = self.rows + 1 if not self.after_table else 1
            self.after_table = 0
        if head.kind in (Kind.NUMBERED, Kind.BULLET) or head.number:
            self.after_list = self.after_paragraphs = 0
            self.after_blank = False

    def _begin_number(self, number: int, indent: int) -> None:
        if self.lists and indent >= self.list_indent + 2:  # a list inside an item
            self.nested += 1
            return
        if not self.lists or number < self.label or (number == self.label and self.after_list):
            self.lists += 1
            self.items = Parts()
            self.number = self.label = self.nested = self.nested_before = 0
            self.list_indent = indent
        self.nested_before += self.nested
        self.nested = self.bullets = 0
        self.items.begin()
        # "1." on every line, and a number out of sequence, count on
        self.number = number if self.number < number <= self.number + MOST_SKIPPED else self.number + 1
        self.label = number

    def _begin_bullet(self) -> None:
        if self.after_list:
            self.bullets = 0
            if not self.lists:
                self.bullet_items = Parts()
        self.bullets += 1
        self.nested += 1
        self.bullet_items.begin()

    def values(self) -> tuple[float, ...]:
        reached = self.number or self.bullets
        listed = bool(self.items.begun or self.bullet_items.begun)
        return (
            min(reached, MOST_ITEMS),
            min(self.lists, MOST_ITEMS),
            min(self.number, MOST_ITEMS),
            self.items.log_mean,
            log1p(self.items.current) if self.items.begun else nan,
            self.items.relative,
            min(self.bullets, MOST_ITEMS),
            log1p(self.bullet_items.begun),
            self.bullet_items.log_mean,
            self.bullet_items.relative,
            min(self.nested, MOST_ITEMS) if self.lists else 0,
            min(self.nested_before / (self.items.begun - 1), MOST_ITEMS) if self.items.begun > 1 else nan,
            float(self.kind in (Kind.NUMBERED, Kind.BULLET)),
            float(listed and self.after_list > 0),
            log1p(self.after_list),
            min(self.after_paragraphs, MOST_ITEMS),
            min(self.sections.begun, MOST_ITEMS),
            float(self.kind is Kind.HEADING),
            log1p(self.sections.current) if self.sections.begun else nan,
            self.sections.log_mean,
            self.sections.relative,
            min(self.rows, MOST_ITEMS),
            float(self.kind is Kind.TABLE),
            log1p(self.after_table) if self.rows else nan,
            min(self.indent, 40),
        )
