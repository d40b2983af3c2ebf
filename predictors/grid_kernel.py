"""From hazards of intervals to curves on a grid's fine edges, compiled."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.survival import FloatArray, IntArray


@njit(cache=True, nogil=True)
def fill_curves(
    out: FloatArray, last: FloatArray, hazard: FloatArray, first: IntArray, at: IntArray, share: FloatArray,
    least: float, most: float,
) -> None:  # fmt: skip
    """``out`` (n, J + 1): log survival of curves that lose nothing before the intervals ``first`` (n,), and end in each
    interval from there on with probability ``hazard`` (n, K), kept within [``least``, ``most``]. Interval k goes from the
    fine edge at[k] to at[k + 1], and up to each of those after the first, ``share`` (J,) of its loss is lost. ``last`` (n,):
    the loss of the last interval."""
    for i in range(hazard.shape[0]):
        reached = 0.0
        out[i, : at[first[i]] + 1] = 0.0
        for k in range(first[i], hazard.shape[1]):
            chance = hazard[i, k]
            if chance < least:  # NaN is neither, and stays what it is
                chance = least
            elif chance > most:
                chance = most
            lost = np.log1p(-chance)
            for j in range(at[k], at[k + 1]):
                out[i, j + 1] = reached + lost * share[j]
            reached += lost
            last[i] = lost
