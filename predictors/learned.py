"""Tables that feature groups learned in training, as one file of a bundle: names, shapes and float32 numbers, no code."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError

Tables = Mapping[str, npt.NDArray[np.float32]]

_Encoded = dict[str, dict[str, tuple[list[int], bytes]]]


def encode_learned(learned: Mapping[str, Tables]) -> bytes:
    """Tables by owner and name; equal tables give equal bytes."""
    plain = {
        owner: {
            name: (list(table.shape), np.ascontiguousarray(table, dtype="<f4").tobytes())
            for name, table in sorted(tables.items())
        }
        for owner, tables in sorted(learned.items())
    }
    return msgspec.msgpack.encode(plain)


def decode_learned(data: bytes) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
    """The inverse; ``BundleError`` if the file is damaged or a number is not finite."""
    try:
        plain = msgspec.msgpack.decode(data, type=_Encoded)
        learned = {
            owner: {name: _table(shape, numbers) for name, (shape, numbers) in tables.items()}
            for owner, tables in plain.items()
        }
    except (msgspec.DecodeError, ValueError) as error:
        raise BundleError(f"the learned tables are damaged: {error}", hint="Train the bundle again") from None
    return learned


def _table(shape: list[int], numbers: bytes) -> npt.NDArray[np.float32]:
    if any(size < 0 for size in shape) or len(numbers) != 4 * math.prod(shape):
        raise ValueError("a table's shape does not fit its numbers")
    table = np.frombuffer(numbers, dtype="<f4").astype(np.float32).reshape(shape)
    if not np.isfinite(table).all():
        raise ValueError("a table holds numbers that are not finite")
    return table
