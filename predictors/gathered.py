"""Curves of many forecasts, gathered from several tables on the same edges into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from endcast.survival import CurveTable, IntArray


def joined(tables: Sequence[CurveTable]) -> CurveTable:
    """One table of at least one on the same edges."""
    if len(tables) == 1:
        return tables[0]
    return CurveTable(
        tables[0].edges,
        np.concatenate([table.log_survival for table in tables]),
        np.concatenate([table.log_tail for table in tables]),
    )


class Gathered:
    """The table of n forecasts as it grows, and for each its row of that table and its position on that curve."""

    def __init__(self, count: int) -> None:
        self._row, self._position = [0] * count, [0] * count
        self._tables: list[CurveTable] = []
        self._size = 0

    def add(self, table: CurveTable, places: Iterable[tuple[int, int, int]]) -> None:
        """Forecast i reads row r of ``table`` from position p on, for each (i, r, p)."""
        for i, row, position in places:
            self._row[i], self._position[i] = self._size + row, position
        self._tables.append(table)
        self._size += len(table.log_tail)

    def table(self, edges: IntArray) -> CurveTable:
        """All curves; on these ``edges`` if there are none."""
        return joined(self._tables or [CurveTable(edges, np.empty((0, len(edges))), np.empty(0))])

    def places(self) -> tuple[IntArray, IntArray]:
        """``row`` (n,) and ``position`` (n,)."""
        return np.array(self._row, dtype=np.int64), np.array(self._position, dtype=np.int64)
