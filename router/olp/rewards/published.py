"""The reward as published (arXiv 2607.03948), with its unit of time stated.

    r = w_throughput + w_latency/(1 + completion) + w_ttft/(1 + ttft) + w_tail·1{completion > threshold}

completion = wait + service and ttft = wait + one step, both over ``unit_s``; the threshold is in seconds. To be compared
with, not to be used: it falls while a request waits, so the young overtake the old without end; its last part pays for
being late; and a second or ten as the unit of time changes every order.
"""

from __future__ import annotations

import numpy as np

from endcast.router.olp.settings import OlpSettings
from endcast.survival import FloatArray


class Published:
    """Seconds in; the unit of time is ``unit_s`` seconds."""

    parts = ("throughput", "latency", "ttft", "tail")

    def __init__(self, settings: OlpSettings) -> None:
        """Reads the four weights, ``unit_s`` and ``tail_threshold_s``."""
        self._settings = settings

    def __call__(self, wait_s: FloatArray, service_s: FloatArray, step_s: float) -> FloatArray:
        """(4, n)."""
        s, completion_s = self._settings, wait_s + service_s
        parts: FloatArray = np.empty((4, len(wait_s)))
        parts[0] = s.w_throughput
        parts[1] = s.w_latency / (1.0 + completion_s / s.unit_s)
        parts[2] = s.w_ttft / (1.0 + (wait_s + step_s) / s.unit_s)
        parts[3] = s.w_tail * (completion_s > s.tail_threshold_s)
        return parts
