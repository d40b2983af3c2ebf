"""The decode step that goes on: what streams told since the last one was closed, on its way into the cluster."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from endcast.router.cluster import ClusterState
from endcast.router.entries import REQUEST
from endcast.survival import IntArray


class Step:
    """Tokens, ends, prompt sizes and clients who left, gathered for ``cluster`` until the next round."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.tokens: defaultdict[int, int] = defaultdict(int)  #: that what runs in a slot has more
        self._ended: list[int] = []
        self._recounted: list[tuple[int, int]] = []
        self._withdrawn: list[int] = []

    def prompt(self, slot: int, tokens: int) -> None:
        """The prompt of what runs in ``slot`` has so many tokens."""
        self._recounted.append((slot, tokens))

    def end(self, slot: int) -> None:
        """What ran in ``slot`` is gone."""
        self._ended.append(slot)
        if self._recounted:
            self._recounted = [entry for entry in self._recounted if entry[0] != slot]

    def withdraw(self, number: int) -> None:
        """The waiting entry of this number was given up."""
        self._withdrawn.append(number)

    def close(self) -> None:
        """All but withdrawals goes into the cluster."""
        if self.tokens or self._ended:
            self._cluster.stepped(self._dense_tokens(), np.array(self._ended, dtype=np.int64))
            self.tokens.clear()
            self._ended.clear()
        if self._recounted:
            slots, prompts = zip(*self._recounted, strict=True)
            self._recounted.clear()
            self._cluster.recounted(np.array(slots), np.array(prompts))

    def _dense_tokens(self) -> IntArray:
        """(S,) of each slot."""
        tokens = np.zeros(len(self._cluster.slots), dtype=np.int64)
        if self.tokens:
            tokens[np.fromiter(self.tokens, np.int64)] = np.fromiter(self.tokens.values(), np.int64)
        return tokens

    def carry_out_withdrawals(self) -> None:
        """Entries that were given up leave the pool."""
        if not self._withdrawn:
            return
        waiting = self._cluster.pool.field(REQUEST)  # rising: a request of another attempt has a new number
        gone = np.sort(np.array(self._withdrawn))
        self._withdrawn.clear()
        self._cluster.withdrawn(np.searchsorted(waiting, gone))
