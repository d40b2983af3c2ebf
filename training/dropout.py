"""Names forgotten at random in training, so that a model knows what to do without them.

A log's tenants and models are nearly all known by its end; a fleet's next tenant is not. Rows whose names are made unknown
teach what is expected of a stranger: the pooled forecast, as far as nothing else is known. (Sessions need no such rows: most
requests of any log are the first of theirs.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.types import Request

#: Share of training rows whose names are forgotten, and the fields of a request that are names.
SHARE = 0.25
NAMES = frozenset({"model", "tenant"})


def forget_names(
    raw: Sequence[Float32Array], pipeline: FeaturePipeline, seed: int, share: float = SHARE
) -> list[Float32Array]:
    """Raw numbers (n, w) of each group; in ``share`` of the rows, the same in all groups, those that read names read none."""
    rows = len(raw[0]) if raw else 0
    forgotten = np.random.default_rng([seed, 7]).random(rows) < share
    nobody = Request(request_id="")
    out = []
    for group, numbers in zip(pipeline.groups, raw, strict=True):
        if NAMES.isdisjoint(group.inputs):
            out.append(numbers)
            continue
        unknown = group.collect([nobody])
        out.append(np.where(forgotten[:, None], unknown, numbers).astype(np.float32))
    return out
