"""Boosted trees over rows of intervals, compiled.

A landmark has one row for each interval: the same columns, the interval's number, and columns of its own. Most splits look
at the same columns and send all intervals one way, so a tree is descended once with all of them, as bits of one number,
and they part only where a split looks at what is the interval's own. Which intervals have at most so much in a column is a
matter of its sorted values: a set for each place among them, made once a landmark. A landmark that has tokens already needs
its later intervals only: the others are in no set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.predictors.features.protocol import Float32Array

Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
Sets = npt.NDArray[np.uint64]  #: of intervals, as bits

#: Most intervals: bits of a set.
MOST_INTERVALS = 64
#: ``splits`` of a node: its column, whether unknown is "yes", and how much further down "no" is ("yes" is the next node).
#: A leaf has ``LEAF``.
COLUMN_BITS, UNKNOWN_BIT, LEAF = 15, 1 << 15, -1
_COLUMN = (1 << COLUMN_BITS) - 1
_ONE = np.uint64(1)


def _bit_numbers() -> tuple[np.uint64, npt.NDArray[np.int64]]:
    """A number whose shifts by 0 … 63 all begin with other six bits, and for each of these beginnings the shift (de Bruijn)."""
    magic = 0x03F79D71B4CB0A89
    table = np.empty(64, dtype=np.int64)
    for shift in range(64):
        table[((magic << shift) & (2**64 - 1)) >> 58] = shift
    return np.uint64(magic), table


_MAGIC, _BIT = _bit_numbers()


@njit(cache=True)
def _sort_columns(vector: Float32Array, shared: int, first: int, ordered: Float32Array, sets: Sets) -> None:
    """For each of the intervals' columns c, of the J intervals from ``first`` on: its known values ``ordered[c]`` (J of K),
    ascending and then infinite, and ``sets[c]`` (K + 2,): the intervals with the least 0, 1, … J of them, and last those
    unknown."""
    each, intervals = ordered.shape
    for c in range(each):
        values, prefix = ordered[c], sets[c]
        known, unknown = 0, np.uint64(0)
        for k in range(first, intervals):
            x = vector[shared + k * each + c]
            if np.isnan(x):
                unknown |= _ONE << np.uint64(k)
                continue
            j = known
            while j > 0 and values[j - 1] > x:
                values[j] = values[j - 1]
                prefix[j + 1] = prefix[j]
                j -= 1
            values[j] = x
            prefix[j + 1] = _ONE << np.uint64(k)
            known += 1
        prefix[0] = 0
        for j in range(known):
            prefix[j + 1] |= prefix[j]
        for j in range(known, intervals - first):
            values[j] = np.inf
            prefix[j + 1] = prefix[known]
        prefix[intervals + 1] = unknown


@njit(cache=True)
def _yes_set(
    column: int, threshold: np.float32, split: int, everything: np.uint64, left: int, ordered: Float32Array, sets: Sets
) -> np.uint64:  # fmt: skip
    """The intervals that a split sends to "yes": ``column`` 0 is the interval's number, those after it are its own;
    ``left`` intervals are in question."""
    if column == 0:
        numbers = np.int64(np.floor(min(max(threshold, np.float32(-1.0)), np.float32(MOST_INTERVALS - 1)))) + 1
        return everything & ~((~np.uint64(0) << np.uint64(numbers)) if numbers < MOST_INTERVALS else np.uint64(0))
    values, of_column, at_most = ordered[column - 1], sets[column - 1], 0
    for j in range(left):
        at_most += values[j] <= threshold
    unknown = of_column[values.shape[0] + 1] if (split & UNKNOWN_BIT) != 0 else np.uint64(0)
    yes_set: np.uint64 = of_column[at_most] | unknown
    return yes_set


@njit(cache=True)
def _add_to_one(
    out: Float32Array, vector: Float32Array, roots: Int32Array, splits: Int32Array, value: Float32Array, shared: int,
    first: int, ordered: Float32Array, sets: Sets, waiting: Int32Array, waiting_sets: Sets,
) -> None:  # fmt: skip
    """``add_trees`` for one landmark: ``out`` (K,), ``vector`` (F,); ``waiting`` are nodes that are still to be looked at,
    and the sets of intervals that wait there."""
    intervals = out.shape[0]
    left = intervals - first
    everything = ((~np.uint64(0)) >> np.uint64(MOST_INTERVALS - left)) << np.uint64(first)
    for root in roots:
        node, here, pending = root, everything, 0
        while True:
            split = splits[node]
            while (split & _COLUMN) < shared:
                x = vector[split & _COLUMN]
                yes = x <= value[node] or (np.isnan(x) and (split & UNKNOWN_BIT) != 0)
                node += 1 if yes else split >> 16
                split = splits[node]
            if split != LEAF:
                yes_set = here & _yes_set(
                    (split & _COLUMN) - shared, value[node], split, everything, left, ordered, sets
                )
                if yes_set == 0:
                    node += split >> 16
                    continue
                if yes_set != here:
                    waiting[pending], waiting_sets[pending] = node + (split >> 16), here & ~yes_set
                    pending += 1
                node, here = node + 1, yes_set
                continue
            if here == everything:
                for k in range(first, intervals):
                    out[k] += value[node]
                break
            while here != 0:
                lowest = here & (~here + _ONE)
                out[_BIT[(lowest * _MAGIC) >> np.uint64(58)]] += value[node]
                here ^= lowest
            if pending == 0:
                break
            pending -= 1
            node, here = waiting[pending], waiting_sets[pending]


@njit(cache=True, nogil=True)
def add_trees(
    out: Float32Array, vectors: Float32Array, first: IntArray,
    roots: Int32Array, splits: Int32Array, value: Float32Array, shared: int,
) -> None:  # fmt: skip
    """Add all trees to ``out`` (n, K), K ≤ ``MOST_INTERVALS``, one after the other as runtimes do, for ``vectors`` (n, F):
    ``shared`` columns, then for each interval its own. Nothing is added in intervals before ``first`` (n,), in [0, K).

    ``roots`` (trees,) into ``splits`` (N,) and ``value`` (N,): thresholds of splits (yes: ≤) and values of leaves. Trees
    know the interval's number as column ``shared``, and its own columns as those after it.
    """
    count, intervals = out.shape
    each = (vectors.shape[1] - shared) // intervals
    ordered, sets = np.empty((each, intervals), dtype=np.float32), np.empty((each, intervals + 2), dtype=np.uint64)
    waiting, waiting_sets = np.empty(intervals, dtype=np.int32), np.empty(intervals, dtype=np.uint64)
    for i in range(count):
        _sort_columns(vectors[i], shared, first[i], ordered, sets)
        _add_to_one(out[i], vectors[i], roots, splits, value, shared, first[i], ordered, sets, waiting, waiting_sets)


@njit(cache=True, nogil=True)
def to_hazards(out: Float32Array, base: Float32Array, slope: np.float32) -> None:
    """Turn sums of trees, ``out`` (n, K), into hazards: the logistic function of ``base`` (n or 1, K) plus ``slope`` times
    what the trees add, in single precision and in the order of the graph."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            offset = base[i if base.shape[0] > 1 else 0, k]
            log_odds = ((out[i, k] + offset) - offset) * slope + offset
            rest = np.exp(-np.abs(np.float64(log_odds)))
            out[i, k] = (1.0 if log_odds >= 0.0 else rest) / (1.0 + rest)
