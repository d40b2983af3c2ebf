"""What a feature group is: a few numbers of a request, the same code for training and serving.

A group first *collects* raw numbers of requests (text, identity, its own memory of finished requests, all as they are
now), then *transforms* them, a pure function on arrays, into two kinds of columns:

- ``columns``: one value a request;
- ``interval_columns``: one value a request and interval of the grid, for what changes along the curve ("how far is this
  interval from the length of the session's last turn?").

Unknown is NaN. Values stay small in range (float32 must carry them) and never depend on requests that had not finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from endcast.predictors.grid import IntervalGrid
from endcast.types import Completion, Request

if TYPE_CHECKING:
    from endcast.predictors.text.text_encoder import TextEncoder

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Columns:
    """``values`` (n, f) and ``intervals`` (n, K, c), float32, NaN for unknown."""

    values: Float32Array
    intervals: Float32Array


class FeatureGroup(Protocol):
    """One subject of features; one file and one registry line add one. It is made for one grid."""

    name: str
    columns: tuple[str, ...]
    interval_columns: tuple[str, ...]
    stateful: bool  #: remembers completions: then requests are collected in the order of the log
    inputs: tuple[str, ...]  #: fields of ``Request`` without which it knows nothing

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, w) raw numbers; w is the group's own."""

    def transform(self, raw: Float32Array) -> Columns:
        """Columns from raw numbers, row by row: no row depends on another."""

    def observe(self, completion: Completion) -> None:
        """Remember a finished request; stateless groups do nothing."""

    def dump(self) -> object:
        """The memory as plain lists, numbers and strings."""

    def load(self, memory: object) -> None:
        """Take over a dumped memory."""


@runtime_checkable
class LearnedGroup(Protocol):
    """A group that reads with tables which training made once, such as a score of words; fixed in the bundle."""

    def load_learned(self, tables: Mapping[str, Float32Array]) -> None:
        """Take over tables; ``BundleError`` if they do not fit."""

    def dump_learned(self) -> Mapping[str, Float32Array]:
        """The tables by name."""


@runtime_checkable
class EncodedGroup(Protocol):
    """A group that reads with the bundle's text encoder."""

    def set_encoder(self, encoder: TextEncoder) -> None:
        """Read with this one from now on."""


@runtime_checkable
class KeptColumns(Protocol):
    """A group that makes columns anew only where something changed."""

    def rows_of(self, requests: Sequence[Request]) -> Float32Array:
        """``transform(collect(requests))``, values and intervals in one row a request: (n, f + K·c)."""


class Stateless:
    """The memory of groups that have none."""

    stateful = False

    def __init__(self, grid: IntervalGrid) -> None:
        self.grid = grid

    def observe(self, completion: Completion) -> None:
        """Nothing to remember."""

    def dump(self) -> object:
        """Nothing remembered."""
        return None

    def load(self, memory: object) -> None:
        """Nothing to take over."""


def no_intervals(rows: int, grid: IntervalGrid) -> Float32Array:
    """(n, K, 0), for groups without interval columns."""
    return np.empty((rows, len(grid), 0), dtype=np.float32)
