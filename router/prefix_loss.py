"""What a placement loses in prefix caches: tokens that one worker would read again although another has them.

Caches are worth a detour, not any detour. So a hit is traded against balance inside the same score: a request placed
where its prefix has not been seen, or less of it than elsewhere, pays ``prefix_weight`` for each prompt token that is
prefilled again for that reason. A request whose prefix nobody has seen pays nothing anywhere, and so is none the worse
candidate for it.
"""

from __future__ import annotations

import numpy as np

from endcast.router.policy import ClusterView, PolicySettings
from endcast.router.prefix import tokens_seen
from endcast.survival import FloatArray, IntArray


def prefix_loss(view: ClusterView, settings: PolicySettings, who: IntArray | None = None) -> FloatArray:
    """(m, G) what waiting requests lose on each worker against the best that accepts any, in KV tokens of balance.

    Of those ``who`` (m,), or else of the oldest, as many as may be looked at in one round; (0, G) where
    the weight is 0, no request has told its blocks, or no worker accepts any.
    """
    if settings.prefix_weight == 0.0 or view.prefixes is None or not view.accepting.any():
        return np.zeros((0, len(view.load)))
    if who is None:
        who = np.arange(min(settings.candidates + int(view.free.sum()), len(view.waiting)))
    blocks, matched = view.prefixes.match(view.waiting[who])
    seen = tokens_seen(blocks, matched, view.waiting_prompt[who])
    best = seen[:, view.accepting].max(axis=1, keepdims=True)
    lost: FloatArray = settings.prefix_weight * np.maximum(best - seen, 0.0)
    return lost
