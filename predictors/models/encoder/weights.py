"""Weights with 8 bits: each row or column of a matrix a scale of its own.

Only weights are rounded. Rounding what flows between layers as well (dynamic quantization) takes its scale from the whole
batch: a forecast would then depend on the requests that happen to stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.predictors.features.protocol import Float32Array

_MOST = 127


@dataclass(frozen=True, eq=False)
class Rounded:
    """``numbers`` (a, b) int8 times ``scale``, (a,) of the rows if ``axis`` is 0, (b,) of the columns if it is 1."""

    numbers: npt.NDArray[np.int8]
    scale: Float32Array
    axis: int

    @classmethod
    def of(cls, weight: Float32Array, axis: int) -> Rounded:
        """The nearest."""
        scale = (np.abs(weight).max(axis=1 - axis) / _MOST).astype(np.float32)
        scale[scale == 0.0] = 1.0
        numbers = np.rint(weight / np.expand_dims(scale, 1 - axis)).clip(-_MOST, _MOST).astype(np.int8)
        return cls(numbers, scale, axis)

    @property
    def weight(self) -> Float32Array:
        """(a, b), as they count."""
        weight: Float32Array = self.numbers.astype(np.float32) * np.expand_dims(self.scale, 1 - self.axis)
        return weight
