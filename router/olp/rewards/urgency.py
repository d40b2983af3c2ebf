"""The urgency of starting a request now: it never falls while the request waits, so nobody is overtaken without end.

    r = w_latency/(1 + service/T) + w_ttft·wait/(service + T) + w_tail·(wait/θ)²

Short ones first (the first part, in (0, w_latency]); a wait counts the more, the shorter the service it delays (the
second); what has waited as long as θ is urgent however long it will run (the third).
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.olp.settings import OlpSettings
from endcast.survival import FloatArray


class Urgency:
    """Seconds in, T = ``latency_scale_s`` and θ = ``tail_scale_s``."""

    parts = ("latency", "ttft", "tail")

    def __init__(self, settings: OlpSettings) -> None:
        """Reads ``w_latency``, ``w_ttft``, ``w_tail`` and the two scales."""
        if settings.w_latency == settings.w_ttft == settings.w_tail == 0.0:
            raise InputError("w_latency", "with the reward 'urgency', w_latency, w_ttft or w_tail must be above 0")
        self._settings = settings

    def __call__(self, wait_s: FloatArray, service_s: FloatArray, step_s: float) -> FloatArray:
        """(3, n)."""
        s = self._settings
        parts: FloatArray = _urgency(
            wait_s, service_s, s.latency_scale_s, s.tail_scale_s, s.w_latency, s.w_ttft, s.w_tail
        )
        return parts


@njit(cache=True)
def _urgency(
    wait_s: FloatArray, service_s: FloatArray, scale_s: float, tail_s: float, latency: float, ttft: float, tail: float
) -> FloatArray:
    parts = np.empty((3, wait_s.shape[0]))
    for j in range(wait_s.shape[0]):
        late = wait_s[j] / tail_s
        parts[0, j] = latency * scale_s / (service_s[j] + scale_s)
        parts[1, j] = ttft * wait_s[j] / (service_s[j] + scale_s)
        parts[2, j] = tail * (late * late)
    return parts
