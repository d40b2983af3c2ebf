"""When to try again: few times, ever later, and never so often that retries themselves become the load.

The budget is a bucket: each call puts ``budget_ratio`` of a retry in, each retry takes one out. So a service that fails
every call is asked at most 1 + ``budget_ratio`` times as often as a healthy one, whatever ``attempts`` says, beyond
a burst of ``budget_burst``. Waits are drawn evenly from 0 to base · 2^k ("full jitter"), so that clients do not come
back in step.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from endcast.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a failed call is tried again.

    ``attempts`` ≥ 1 counts the first one; waits in seconds; ``budget_ratio`` in [0, 1] retries a call on average.
    """

    attempts: int = 3
    base_wait_s: float = 0.05
    longest_wait_s: float = 2.0
    budget_ratio: float = 0.1
    budget_burst: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InputError("attempts", "must be at least 1")
        if not 0.0 <= self.budget_ratio <= 1.0:
            raise InputError("budget_ratio", "must lie between 0 and 1")
        if not (0.0 <= self.base_wait_s <= self.longest_wait_s and self.budget_burst >= 0.0):
            raise InputError("base_wait_s", "waits and the burst must not be negative, nor base_wait_s the longest")


NO_RETRIES = RetryPolicy(attempts=1)


class Retries:
    """The budget of one client, shared by its calls and threads; ``draw`` gives numbers in [0, 1)."""

    def __init__(self, policy: RetryPolicy, draw: Callable[[], float] = random.random) -> None:
        self.policy = policy
        self._draw = draw
        self._lock = threading.Lock()
        self._tokens = policy.budget_burst

    def begin_call(self) -> None:
        """A new call begins: it adds to the budget."""
        with self._lock:
            self._tokens = min(self._tokens + self.policy.budget_ratio, max(self.policy.budget_burst, 1.0))

    def wait_before(self, attempt: int, *, left_s: float, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait before ``attempt`` (2 for the first retry), or None: give up.

        ``left_s`` until the call's deadline, ``at_least_s`` what the service asked for (``Retry-After``).
        """
        if attempt > self.policy.attempts:
            return None
        longest = min(self.policy.base_wait_s * 2.0 ** (attempt - 2), self.policy.longest_wait_s)
        wait = at_least_s + self._draw() * longest
        if wait >= left_s:
            return None
        with self._lock:
            if self._tokens < 1.0:
                return None
            self._tokens -= 1.0
        return wait
