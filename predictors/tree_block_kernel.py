"""``tree_kernel`` for many landmarks at once, compiled: every split of a tree is applied to all of them, without a branch.

Walking a tree costs most where it cannot be foreseen which way a landmark goes. Here nothing is foreseen. Each split has a
set of intervals (as bits) that it sends to "yes", for each landmark; a tree begins with all intervals at one place, and each
split parts what is at its place: "yes" stays there, "no" goes to a new one. In the end each place is a leaf. That is a load, an
"and" and a store for several landmarks in one instruction, so it pays from some landmarks on (``boosted_graph.FEW``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.tree_kernel import MOST_INTERVALS, IntArray, Sets

Uint32Array = npt.NDArray[np.uint32]

#: Landmarks that are worked on together: their sets stay in the cache nearest to the core but one.
BLOCK = 32
_ONE = np.uint64(1)
_NONE = np.uint64(0)


@njit(cache=True, nogil=True)
def _part_alike(sets: Sets, values: Float32Array, thresholds: Float32Array, everything: Sets) -> None:
    """Sets of a column that all intervals of a landmark see alike. ``sets`` (2m, r): of each of ``thresholds`` (m,) without
    those unknown, then with; ``values`` and ``everything``, all its intervals in question, of each landmark (r,)."""
    m = thresholds.shape[0]
    for j in range(m):
        for r in range(values.shape[0]):
            sets[j, r] = everything[r] if values[r] <= thresholds[j] else _NONE
    for j in range(m):
        for r in range(values.shape[0]):
            sets[m + j, r] = sets[j, r] | (everything[r] if np.isnan(values[r]) else _NONE)


@njit(cache=True, nogil=True)
def _part_own(
    sets: Sets, vectors: Float32Array, column: int, each: int, thresholds: Float32Array, first: IntArray, unknown: Sets
) -> None:
    """Sets of a column of the intervals' own, as above: interval k has it at ``column`` + k · ``each`` of ``vectors``
    (r, F); ``thresholds`` ascend. ``unknown`` (r,) is overwritten."""
    m, intervals = thresholds.shape[0], (vectors.shape[1] - column + each - 1) // each
    sets[:m] = 0
    for r in range(vectors.shape[0]):
        unknown[r] = 0
        for k in range(first[r], intervals):
            x, bit = vectors[r, column + k * each], _ONE << np.uint64(k)
            if np.isnan(x):
                unknown[r] |= bit
                continue
            j, left = 0, m  # j becomes the first threshold that is not below x
            while left > 0:
                half = left >> 1
                below = thresholds[j + half] < x
                j += half + 1 if below else 0
                left = left - half - 1 if below else half
            if j < m:
                sets[j, r] |= bit
    for j in range(1, m):
        for r in range(vectors.shape[0]):
            sets[j, r] |= sets[j - 1, r]
    for j in range(m):
        for r in range(vectors.shape[0]):
            sets[m + j, r] = sets[j, r] | unknown[r]


@njit(cache=True, nogil=True)
def _part_by_number(sets: Sets, thresholds: Float32Array) -> None:
    """Sets of the intervals' number, which is never unknown."""
    m = thresholds.shape[0]
    for j in range(m):
        at_most = _NONE
        for k in range(MOST_INTERVALS):
            if k <= thresholds[j]:
                at_most |= _ONE << np.uint64(k)
        sets[j] = at_most
        sets[m + j] = at_most


@njit(cache=True, nogil=True)
def _make_sets(
    sets: Sets, vectors: Float32Array, first: IntArray, everything: Sets, shared: int, each: int,
    levels: IntArray, thresholds: Float32Array,
) -> None:  # fmt: skip
    values, unknown = np.empty(vectors.shape[0], dtype=np.float32), np.empty(vectors.shape[0], dtype=np.uint64)
    for c in range(shared + 1 + each):
        of_column = thresholds[levels[c] : levels[c + 1]]
        part = sets[2 * levels[c] : 2 * levels[c + 1]]
        if c < shared:
            values[:] = vectors[:, c]
            _part_alike(part, values, of_column, everything)
        elif c == shared:
            _part_by_number(part, of_column)
        else:
            _part_own(part, vectors, c - 1, each, of_column, first, unknown)


@njit(cache=True, nogil=True)
def _split(here: Sets, other: Sets, yes: Sets) -> None:
    for r in range(here.shape[0]):
        before = here[r]
        stays = before & yes[r]
        here[r], other[r] = stays, before ^ stays


@njit(cache=True, nogil=True)
def _add_leaf(out: Float32Array, here: np.uint64, value: np.float32) -> None:
    """Add ``value`` to the intervals ``here``, the lowest bit being the first of ``out``."""
    for k in range(out.shape[0]):
        out[k] += value if (here >> np.uint64(k)) & _ONE != 0 else np.float32(0.0)


@njit(cache=True, nogil=True)
def _add_tree(
    out: Float32Array, sets: Sets, first: IntArray, everything: Sets, place: Uint32Array, of: Uint32Array,
    leaves: Float32Array, reached: Sets, found: IntArray,
) -> None:  # fmt: skip
    """One tree: ``place`` and ``of`` (s,), ``leaves`` (s + 1,); room in ``reached`` (≥ s + 1, r) and ``found``."""
    for r in range(everything.shape[0]):
        reached[0, r] = everything[r]
    for s in range(place.shape[0]):
        _split(reached[place[s]], reached[s + 1], sets[of[s]])
    for r in range(everything.shape[0]):
        count = 0
        for leaf in range(leaves.shape[0]):
            found[count] = leaf
            count += 1 if reached[leaf, r] != 0 else 0
        low = max(first[r] - (first[r] - out.shape[1]) % 4, 0)  # so that what is left makes whole instructions
        for i in range(count):
            leaf = found[i]
            _add_leaf(out[r, low:], reached[leaf, r] >> np.uint64(low), leaves[leaf])


@njit(cache=True, nogil=True)
def add_tree_blocks(
    out: Float32Array, vectors: Float32Array, first: IntArray, shared: int, levels: IntArray, thresholds: Float32Array,
    tree: IntArray, place: Uint32Array, of: Uint32Array, leaves: Float32Array,
) -> None:  # fmt: skip
    """``add_trees`` of ``tree_kernel``, to the last bit, for (n, F) ``vectors`` and trees laid out as ``TreeBlocks`` says."""
    count, intervals = out.shape
    each, trees = (vectors.shape[1] - shared) // intervals, tree.shape[0] - 1
    most = 1
    for t in range(trees):
        most = max(most, tree[t + 1] - tree[t] + 1)
    found = np.empty(most + 1, dtype=np.int64)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        sets = np.empty((2 * thresholds.shape[0], stop - start), dtype=np.uint64)
        reached = np.empty((most, stop - start), dtype=np.uint64)
        everything = np.empty(stop - start, dtype=np.uint64)
        for r in range(stop - start):
            left = np.uint64(intervals - first[start + r])
            everything[r] = (~_NONE >> (np.uint64(MOST_INTERVALS) - left)) << np.uint64(first[start + r])
        own = first[start:stop]
        _make_sets(sets, vectors[start:stop], own, everything, shared, each, levels, thresholds)
        for t in range(trees):
            a, b = tree[t], tree[t + 1]
            _add_tree(
                out[start:stop], sets, own, everything, place[a:b], of[a:b], leaves[a + t : b + t + 1], reached, found
            )
