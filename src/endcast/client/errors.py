"""What a call of the forecast service can end in, beside an answer."""

from __future__ import annotations

from endcast.errors import EndcastError


class ClientError(EndcastError):
    """Base of all that can go wrong with a call; ``request_id`` finds it in the service's log, where there is one."""

    def __init__(self, message: str, *, hint: str = "", request_id: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.request_id = request_id


class ServiceUnavailable(ClientError):
    """No usable answer: not reached, cut off, not in time, overloaded or failing; trying again later may help.

    ``status`` is that of the answer, ``None`` where there was none; ``sent`` whether the service may have seen the call;
    ``retry_after_s`` how long it asks to be left alone.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        request_id: str | None = None,
        status: int | None = None,
        sent: bool = True,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.status = status
        self.sent = sent
        self.retry_after_s = retry_after_s


class CallRefused(ClientError):
    """The service understood the call and refuses it (4xx): the same call will be refused again.

    ``status``, ``code`` and ``field`` are as docs/service.md lists them.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        field: str | None = None,
        hint: str = "",
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.status = status
        self.code = code
        self.field = field


class UnexpectedAnswer(ClientError):
    """The answer is not one of this API: a proxy's page, another service, or another version."""
