"""The urgency of starting a request now: it never falls while the request waits, so nobody is overtaken without end.

    r = w_latency/(1 + service/T) + w_ttft·wait/(service + T) + w_tail·(wait/θ)²

Short ones first (the first part, in (0, w_latency]); a wait counts the more, the shorter the service it delays (the
second); what has waited as long as θ is urgent however long it will run (the third).
"""

from __future__ import annotations

import numpy as np

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
        s, scale = self._settings, self._settings.latency_scale_s
        parts: FloatArray = np.empty((3, len(wait_s)))
        parts[0] = (s.w_latency * scale) / (service_s + scale)
        parts[1] = s.w_ttft * wait_s / (service_s + scale)
        parts[2] = s.w_tail * np.square(wait_s / s.tail_scale_s)
        return parts
