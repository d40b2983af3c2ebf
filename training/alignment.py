"""Which part of a logged output had been written after so many tokens: the log's own counts say, token by even token."""

from __future__ import annotations

import numpy as np

from endcast.predictors.landmarks import EVERY
from endcast.survival import IntArray

#: Landmarks of one output at most: what runs longer is read no further.
MOST_TOKENS = 4096


def written(characters: int, generated: int, output_tokens: int) -> int:
    """How many of an output's ``characters`` had been written when ``generated`` of its tokens had."""
    return round(characters * min(generated, output_tokens) / output_tokens)


def landmarks_of(lengths: IntArray, every: int = EVERY) -> tuple[IntArray, IntArray]:
    """Every landmark at which requests of these ``lengths`` (n,) were still running: index (m,), tokens (m,) > 0."""
    count = np.maximum(np.minimum(lengths, MOST_TOKENS) - 1, 0) // every
    request = np.repeat(np.arange(len(lengths)), count)
    place = np.arange(len(request)) - (np.cumsum(count) - count)[request]
    return request, (place + 1) * every
