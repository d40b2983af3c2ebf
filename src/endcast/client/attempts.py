"""What the sync and the async client share of sending: options, deadlines, and which failures are worth another try."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from endcast.client.errors import ServiceUnavailable
from endcast.client.retry import Retries, RetryPolicy
from endcast.client.wire import RETRIED_STATUSES, Call, headers_of
from endcast.errors import InputError
from endcast.types import shown

#: An answer larger than this is not read to its end.
MOST_ANSWER_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a client calls.

    ``timeout_s`` is for a whole call with its retries, ``connect_timeout_s`` for one connection; ``key`` an API key;
    ``connections`` most that are kept open and used again.
    """

    key: str | None = field(default=None, repr=False)
    timeout_s: float = 5.0
    connect_timeout_s: float = 1.0
    connections: int = 100
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if not (self.timeout_s > 0.0 and self.connect_timeout_s > 0.0):
            raise InputError("timeout_s", "timeouts must be above 0 seconds")
        if self.connections < 1:
            raise InputError("connections", "must be at least 1")

    @property
    def limits(self) -> httpx.Limits:
        """Connections that are kept."""
        return httpx.Limits(
            max_connections=self.connections, max_keepalive_connections=self.connections, keepalive_expiry=60.0
        )


def checked_url(url: str) -> httpx.URL:
    """The service's address; ``InputError`` unless it is an http or https one."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError("url", f"is no address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError("url", f"must be like http://127.0.0.1:8080, not {shown(url)}")
    return parsed


class Attempts:
    """One call's attempts: its id, its deadline, and what to do after each failure."""

    def __init__(
        self,
        call: Call[Any],
        options: Options,
        retries: Retries,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call, self._options, self._retries, self._clock = call, options, retries, clock
        self._timeout_s = options.timeout_s if timeout_s is None else timeout_s
        if not self._timeout_s > 0.0:
            raise InputError("timeout_s", "must be above 0 seconds")
        self._deadline = clock() + self._timeout_s
        self._attempt = 1
        self.request_id = secrets.token_hex(8)
        retries.begin_call()

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; ``ServiceUnavailable`` when there are none."""
        left = self._deadline - self._clock()
        if left <= 0.0:
            raise self.too_late()
        return left

    def check_deadline(self) -> None:
        """``ServiceUnavailable`` when it has passed."""
        _ = self.left_s

    def headers(self) -> dict[str, str]:
        """Headers of the next attempt."""
        return headers_of(self._call, key=self._options.key, request_id=self.request_id, left_s=self.left_s)

    def timeout(self) -> httpx.Timeout:
        """How long each step of the next attempt may take."""
        left = self.left_s
        return httpx.Timeout(left, connect=min(self._options.connect_timeout_s, left))

    def wait_after(self, error: ServiceUnavailable) -> float:
        """Seconds to wait before trying again; raises ``error`` where it is not worth it."""
        answered = error.status is not None
        may_repeat = self._call.repeatable or not error.sent or error.status == 429
        worth_it = error.status in RETRIED_STATUSES if answered else True
        left = self._deadline - self._clock()
        self._attempt += 1
        wait = None
        if may_repeat and worth_it and left > 0.0:
            wait = self._retries.wait_before(self._attempt, left_s=left, at_least_s=error.retry_after_s)
        if wait is None:
            raise error
        return wait

    def too_late(self) -> ServiceUnavailable:
        """The deadline passed."""
        return ServiceUnavailable(f"no answer within {self._timeout_s:g} s", request_id=self.request_id)

    def too_large(self) -> ServiceUnavailable:
        """The answer does not end."""
        return ServiceUnavailable(f"the answer is larger than {MOST_ANSWER_BYTES} bytes", request_id=self.request_id)

    def not_reached(self, error: httpx.RequestError) -> ServiceUnavailable:
        """What httpx says, in the client's words."""
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return self.too_late()
        connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        what = "cannot reach the service" if connecting else "the connection broke"
        return ServiceUnavailable(
            f"{what}: {error or type(error).__name__}", request_id=self.request_id, sent=not connecting
        )
