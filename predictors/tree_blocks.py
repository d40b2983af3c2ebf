"""Trees laid out for ``tree_block_kernel``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.tree_block_kernel import Uint32Array, add_tree_blocks
from endcast.predictors.tree_kernel import COLUMN_BITS, LEAF, UNKNOWN_BIT, Int32Array, IntArray


@dataclass(frozen=True, eq=False)
class TreeBlocks:
    """Of each column the thresholds that trees compare it with, and of each tree its splits and leaves.

    Column c has ``thresholds[levels[c]:levels[c + 1]]``, ascending, each once. With each goes a set without the unknown
    and one with them: set 2·levels[c] + j, and as many further as c has thresholds. Tree t has the splits ``tree[t]`` to
    ``tree[t + 1]``, in an order in which a split comes after those above it: split s parts what is at ``place[s]``
    by the set ``of[s]``, and its "no" goes to the place 1 + s − tree[t]. Its leaves are all its places, one more than
    splits: ``leaves[tree[t] + t:]``.
    """

    shared: int
    levels: IntArray  #: (columns + 1,)
    thresholds: Float32Array
    tree: IntArray  #: (trees + 1,)
    place: Uint32Array
    of: Uint32Array
    leaves: Float32Array

    @classmethod
    def of_trees(
        cls, roots: Int32Array, splits: Int32Array, value: Float32Array, shared: int, columns: int
    ) -> TreeBlocks:
        """The trees of ``tree_kernel``, over ``columns`` columns."""
        column = splits & ((1 << COLUMN_BITS) - 1)
        inner = splits != LEAF
        by_column = [np.unique(value[inner & (column == c)]) for c in range(columns)]
        levels = np.cumsum([0, *map(len, by_column)], dtype=np.int64)
        of = np.zeros(len(splits), dtype=np.uint32)
        for c, own in enumerate(by_column):
            at = inner & (column == c)
            with_unknown = (splits[at] & UNKNOWN_BIT) != 0
            of[at] = 2 * levels[c] + np.searchsorted(own, value[at]) + np.where(with_unknown, len(own), 0)
        place = _places(roots, splits)
        first = np.searchsorted(np.flatnonzero(inner), [*roots, len(splits)]).astype(np.int64)
        leaves = np.empty(int((~inner).sum()), dtype=np.float32)
        tree_of = np.searchsorted(roots, np.flatnonzero(~inner), side="right") - 1
        leaves[first[tree_of] + tree_of + place[~inner]] = value[~inner]
        return cls(shared, levels, np.concatenate(by_column), first, place[inner], of[inner], leaves)

    def add(self, out: Float32Array, vectors: Float32Array, first: IntArray) -> None:
        """Add all trees to ``out`` (n, K), as ``tree_kernel.add_trees`` does."""
        add_tree_blocks(
            *(out, vectors, first, self.shared, self.levels, self.thresholds),
            *(self.tree, self.place, self.of, self.leaves),
        )


def _places(roots: Int32Array, splits: Int32Array) -> Uint32Array:
    """(N,), the place of each node: "yes", the next node, stays where its split is."""
    place, further, starts, made = [0] * len(splits), (splits >> 16).tolist(), set(roots.tolist()), 0
    for node, split in enumerate(splits.tolist()):
        if node in starts:
            made = 0
        if split != LEAF:
            made += 1
            place[node + 1], place[node + further[node]] = place[node], made
    return np.array(place, dtype=np.uint32)
