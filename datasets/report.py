"""What a reader did with a log: rows read, kept, dropped and repaired, with reasons and line numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

#: So many line numbers are kept for each reason.
FIRST_LINES = 5


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows one reason concerns, and the smallest of their line numbers (at most ``FIRST_LINES``)."""

    count: int
    first: tuple[int, ...] = ()


class ReadReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a log was read. ``numbering`` says what ``Lines.first`` counts: lines of a text, rows of a table, from 1.

    ``rows_read`` counts requests found, so that ``rows_read = rows_kept + rows_dropped``; a record that could not be
    taken apart counts as one.
    """

    format: str
    sha256: str
    rows_read: int
    rows_kept: int
    numbering: str = "line"
    dropped: Mapping[str, Lines] = {}
    repaired: Mapping[str, Lines] = {}
    notes: tuple[str, ...] = ()

    @property
    def rows_dropped(self) -> int:
        """Sum over all reasons; a row is dropped for the first reason found."""
        return sum(lines.count for lines in self.dropped.values())


@dataclass
class Tally:
    """Collects a ``ReadReport`` while a log is being read. ``has_ids``: the log gives its requests ids."""

    numbering: str = "line"
    has_ids: bool = False
    rows_read: int = 0
    dropped: dict[str, Lines] = field(default_factory=dict)
    repaired: dict[str, Lines] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def read(self, rows: int) -> None:
        """``rows`` more were found."""
        self.rows_read += rows

    def drop(self, reason: str, lines: npt.NDArray[np.integer[Any]] | Iterable[int]) -> None:
        """The rows at ``lines`` are left out because of ``reason``."""
        _add(self.dropped, reason, lines)

    def repair(self, reason: str, lines: npt.NDArray[np.integer[Any]] | Iterable[int]) -> None:
        """The rows at ``lines`` are kept, changed as ``reason`` says."""
        _add(self.repaired, reason, lines)

    def note(self, text: str) -> None:
        """Something that holds for the log as a whole; said once."""
        self.notes.setdefault(text)

    def report(self, *, format: str, sha256: str) -> ReadReport:
        """The report as it stands now."""
        gone = sum(lines.count for lines in self.dropped.values())
        return ReadReport(
            format=format,
            sha256=sha256,
            rows_read=self.rows_read,
            rows_kept=self.rows_read - gone,
            numbering=self.numbering,
            dropped=dict(self.dropped),
            repaired=dict(self.repaired),
            notes=tuple(self.notes),
        )


def _add(table: dict[str, Lines], reason: str, lines: npt.NDArray[np.integer[Any]] | Iterable[int]) -> None:
    new = lines.tolist() if isinstance(lines, np.ndarray) else list(lines)
    if new:
        old = table.get(reason, Lines(count=0))
        table[reason] = Lines(count=old.count + len(new), first=tuple(sorted([*old.first, *new])[:FIRST_LINES]))


def describe_lines(lines: Lines, numbering: str) -> str:
    """For people: ``3 (lines 2, 9, 17)``; ``…`` where there are more than are listed."""
    if not lines.first:
        return f"{lines.count:,}"
    more = ", …" if lines.count > len(lines.first) else ""
    word = numbering if lines.count == 1 else f"{numbering}s"
    return f"{lines.count:,} ({word} {', '.join(map(str, lines.first))}{more})"
