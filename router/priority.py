"""Priorities of a log's requests: what each counts beside the others, told with its sampling parameters."""

from __future__ import annotations

import msgspec
import numpy as np

from endcast.datasets.trace import Trace
from endcast.errors import SimulationError
from endcast.survival import FloatArray

#: The parameter that tells it.
PARAMETER = "weight"


def weights_of(trace: Trace) -> FloatArray | None:
    """(n,), each request's ``weight`` among its ``parameters``, 1 where it tells none; nothing where none does.

    ``SimulationError`` for a weight that is no finite number above 0.
    """
    column, weights = trace.table.column("parameters"), np.ones(len(trace))
    found = False
    for i in np.flatnonzero(column.is_valid().to_numpy()):
        weight = msgspec.json.decode(column[int(i)].as_py()).get(PARAMETER)
        if weight is None:
            continue
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.0 < weight < float("inf"):
            raise SimulationError(
                f"request {i + 1} of the log has the weight {weight!r:.60}",
                hint="A weight is a number above 0, 1 by default",
            )
        weights[i], found = float(weight), True
    return weights if found else None
