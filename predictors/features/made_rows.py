"""Rows of columns that were made before, by key: most requests of a batch have a key that was asked about just now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from endcast.predictors.features.protocol import Float32Array

#: Most rows kept, beyond those that one batch needs; then all are forgotten and made anew.
MOST_ROWS = 4_096


class MadeRows:
    """(n, width) float32 rows by key, in one array so that a batch is gathered at once."""

    def __init__(self, width: int) -> None:
        self._rows: Float32Array = np.empty((64, width), dtype=np.float32)
        self._place: dict[int | None, int] = {}
        self._used = 0

    def missing(self, keys: Sequence[int | None]) -> dict[int | None, int]:
        """The keys that have no row, each with a position at which it stands among ``keys``."""
        if self._used > MOST_ROWS:
            self.clear()
        place = self._place
        return {key: i for i, key in enumerate(keys) if key not in place}

    def keep(self, keys: Sequence[int | None], rows: Float32Array) -> None:
        """Keep one row (n, width) for each of ``keys`` (n,), which have none."""
        end = self._used + len(keys)
        if end > len(self._rows):
            larger = np.empty((max(end, 2 * len(self._rows)), self._rows.shape[1]), dtype=np.float32)
            larger[: self._used] = self._rows[: self._used]
            self._rows = larger
        self._rows[self._used : end] = rows
        self._place.update(zip(keys, range(self._used, end), strict=True))
        self._used = end

    def rows(self, keys: Sequence[int | None]) -> Float32Array:
        """(n, width), the rows of ``keys``, all of which have one; a copy."""
        return self._rows.take([self._place[key] for key in keys], axis=0)

    def forget(self, keys: Iterable[int | None]) -> None:
        """Forget the rows of ``keys``."""
        for key in keys:
            self._place.pop(key, None)

    def clear(self) -> None:
        """Forget all; the memory that many rows took is given back."""
        self._rows, self._place, self._used = self._rows[:64].copy(), {}, 0
