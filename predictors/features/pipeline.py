"""The feature groups of one bundle, in order, as one vector a request.

A vector is the groups' columns, then their interval columns, interval by interval: ``F = f + K·c`` float32 numbers. Models
see it whole; ``split`` takes it apart again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from endcast.errors import BundleError
from endcast.predictors.features import FEATURES
from endcast.predictors.features.protocol import (
    Columns,
    EncodedGroup,
    FeatureGroup,
    Float32Array,
    KeptColumns,
    LearnedGroup,
)
from endcast.predictors.features.rows_kernel import put_rows
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.learned import Tables
from endcast.types import Completion, Request

if TYPE_CHECKING:
    from endcast.predictors.text.text_encoder import TextEncoder

#: Finite values are kept within this, so that every model and every float32 graph can carry them.
LIMIT = 1e6


class FeaturePipeline:
    """Groups by name for one grid, with the memory that the stateful ones keep."""

    def __init__(self, groups: Sequence[str], grid: IntervalGrid) -> None:
        self.grid = grid
        self.groups: tuple[FeatureGroup, ...] = tuple(FEATURES.get(name)(grid) for name in groups)
        self.observed = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups, in order."""
        return tuple(group.name for group in self.groups)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """(f,), ``group.column``."""
        return tuple(f"{group.name}.{column}" for group in self.groups for column in group.columns)

    @cached_property
    def interval_columns(self) -> tuple[str, ...]:
        """(c,), ``group.column``."""
        return tuple(f"{group.name}.{column}" for group in self.groups for column in group.interval_columns)

    @property
    def width(self) -> int:
        """F."""
        return len(self.columns) + len(self.grid) * len(self.interval_columns)

    def collect(self, requests: Sequence[Request]) -> list[Float32Array]:
        """Raw numbers of each group, from what is remembered now."""
        return [group.collect(requests) for group in self.groups]

    def transform(self, raw: Sequence[Float32Array]) -> Columns:
        """``values`` (n, f) and ``intervals`` (n, K, c), clipped to ±``LIMIT``."""
        parts = [group.transform(numbers) for group, numbers in zip(self.groups, raw, strict=True)]
        rows = len(raw[0]) if raw else 0
        values = np.concatenate([np.empty((rows, 0), np.float32), *(part.values for part in parts)], axis=1)
        empty = np.empty((rows, len(self.grid), 0), np.float32)
        intervals = np.concatenate([empty, *(part.intervals for part in parts)], axis=2)
        return Columns(np.clip(values, -LIMIT, LIMIT), np.clip(intervals, -LIMIT, LIMIT))

    def features(self, requests: Sequence[Request]) -> Float32Array:
        """(n, F), the vectors of these requests from what is remembered now."""
        out = np.empty((len(requests), self.width), np.float32)
        shared, every = len(self.columns), len(self.interval_columns)
        intervals = out[:, shared:].reshape(len(requests), len(self.grid), every)
        at, interval_at = 0, 0
        for group, keeps in zip(self.groups, self._keeping, strict=True):
            values, each = len(group.columns), len(group.interval_columns)
            if keeps is not None:
                put_rows(out, keeps.rows_of(requests), at, values, shared + interval_at, every, each)
            else:
                part = group.transform(group.collect(requests))
                out[:, at : at + values] = part.values
                intervals[:, :, interval_at : interval_at + each] = part.intervals
            at, interval_at = at + values, interval_at + each
        np.minimum(np.maximum(out, -LIMIT, out=out), LIMIT, out=out)
        return out

    @cached_property
    def _keeping(self) -> tuple[KeptColumns | None, ...]:
        return tuple(group if isinstance(group, KeptColumns) else None for group in self.groups)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Remember finished requests, in the order in which they finished."""
        for completion in completions:
            for group in self.groups:
                if group.stateful:
                    group.observe(completion)
        self.observed += len(completions)

    def dump(self) -> bytes:
        """The memory of all groups (MessagePack: data only)."""
        memory = {group.name: group.dump() for group in self.groups if group.stateful}
        return msgspec.msgpack.encode({"observed": self.observed, "groups": memory})

    def load(self, state: bytes) -> None:
        """Take over a dumped memory of a pipeline with the same groups."""
        try:
            decoded = msgspec.msgpack.decode(state, type=_Memory)
        except msgspec.DecodeError as error:
            raise BundleError(f"the memory of finished requests is damaged: {error}") from None
        stateful = [group for group in self.groups if group.stateful]
        if set(decoded.groups) != {group.name for group in stateful}:
            raise BundleError("the memory of finished requests belongs to other feature groups")
        for group in stateful:
            group.load(decoded.groups[group.name])
        self.observed = decoded.observed

    @property
    def encoded_groups(self) -> tuple[str, ...]:
        """Names of those that read with a text encoder."""
        return tuple(group.name for group in self.groups if isinstance(group, EncodedGroup))

    def set_encoder(self, encoder: TextEncoder) -> None:
        """Let the groups that read with a text encoder read with this one."""
        for group in self.groups:
            if isinstance(group, EncodedGroup):
                group.set_encoder(encoder)

    def dump_learned(self) -> dict[str, Tables]:
        """The tables that groups learned in training, by group."""
        return {group.name: group.dump_learned() for group in self.groups if isinstance(group, LearnedGroup)}

    def load_learned(self, learned: Mapping[str, Tables]) -> None:
        """Take over such tables; ``BundleError`` if a group's are missing."""
        for group in self.groups:
            if isinstance(group, LearnedGroup):
                if group.name not in learned:
                    raise BundleError(
                        f"the tables that {group.name} learned are missing", hint="Train the bundle again"
                    )
                group.load_learned(learned[group.name])


class _Memory(msgspec.Struct):
    observed: int
    groups: dict[str, object]


def join(columns: Columns) -> Float32Array:
    """(n, F) from values (n, f) and intervals (n, K, c)."""
    rows, intervals, each = columns.intervals.shape
    return np.concatenate([columns.values, columns.intervals.reshape(rows, intervals * each)], axis=1)


def split(features: Float32Array, values: int, intervals: int) -> Columns:
    """The inverse of ``join`` for ``values`` = f columns and ``intervals`` = K."""
    each = (features.shape[1] - values) // intervals
    rest = features[:, values:].reshape(len(features), intervals, each)
    return Columns(features[:, :values], rest)
