"""What the service refuses: an HTTP status, a code for machines, the field, one sentence. Never the input itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from endcast.errors import EndcastError
from endcast.serving.api.schema import ErrorDetail, ErrorReply

#: A field's name in a reply is cut to this many characters: the name of an unknown one is the client's.
SHOWN_CHARACTERS = 120
#: Milliseconds that the caller waits for its answer at most.
DEADLINE_HEADER = "endcast-deadline-ms"


class ServiceError(EndcastError):
    """A call that is answered with ``status`` (4xx or 5xx), an ``ErrorReply`` and ``headers``."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.headers = dict(headers or {})
        self.status = status
        self.code = code
        self.field = field if field is None or len(field) <= SHOWN_CHARACTERS else f"{field[:SHOWN_CHARACTERS]}…"

    def body(self) -> bytes:
        """The reply, as JSON."""
        detail = ErrorDetail(code=self.code, message=self.message, field=self.field, hint=self.hint or None)
        return msgspec.json.encode(ErrorReply(error=detail))


def invalid_field(field: str, message: str, hint: str = "") -> ServiceError:
    """422: the JSON is well formed, but ``field`` is not what it has to be."""
    return ServiceError(422, "invalid_field", message, field=field, hint=hint)


def malformed(message: str) -> ServiceError:
    """400: the body is no JSON."""
    return ServiceError(400, "malformed_json", message)


def body_too_large(limit: int) -> ServiceError:
    """413."""
    return ServiceError(413, "body_too_large", f"the body is larger than {limit} bytes", hint="Send several batches")


def encoded_body() -> ServiceError:
    """415."""
    return ServiceError(
        415, "encoded_body", "the body is compressed", field="content-encoding", hint="Send it as it is"
    )


def other_content() -> ServiceError:
    """415."""
    return ServiceError(
        415, "other_content", "the body must be JSON in UTF-8", field="content-type", hint="Send application/json"
    )


def slow_body(seconds: float) -> ServiceError:
    """408; the connection is closed, since the rest of the body may still come."""
    return ServiceError(
        408, "slow_body", f"the body did not arrive within {seconds:g} seconds", headers={"connection": "close"}
    )


def deadline_passed() -> ServiceError:
    """504."""
    return ServiceError(
        504, "deadline_passed", "the call's own deadline passed before its forecasts were made", field=DEADLINE_HEADER
    )


def busy(retry_after_s: int) -> ServiceError:
    """429."""
    return ServiceError(
        429,
        "busy",
        "more calls are waiting than the service takes",
        hint="Call again after 'retry-after' seconds",
        headers={"retry-after": str(retry_after_s)},
    )


def unauthenticated() -> ServiceError:
    """401."""
    return ServiceError(
        401,
        "unauthenticated",
        "this call needs a key that the service knows",
        hint="Send it as 'Authorization: Bearer KEY'",
        headers={"www-authenticate": "Bearer"},
    )


def forbidden() -> ServiceError:
    """403."""
    return ServiceError(403, "forbidden", "this call needs an admin key", hint="See admin_keys in docs/operating.md")


def bundle_refused(message: str, hint: str = "") -> ServiceError:
    """409: another bundle was not served; the old one is."""
    return ServiceError(409, "bundle_refused", f"{message:.300}", hint=f"{hint:.300}")


def contradiction(field: str, message: str) -> ServiceError:
    """409: two fields of a call say different things."""
    return ServiceError(409, "contradiction", message, field=field, hint="Leave one of them out")


def not_ready(message: str) -> ServiceError:
    """503."""
    return ServiceError(503, "not_ready", message)


def unknown_stream() -> ServiceError:
    """404."""
    return ServiceError(
        404,
        "unknown_stream",
        "there is no such stream",
        field="stream_id",
        hint="If there was, the process that held it has ended: open it again with the text so far",
    )


def stream_gone() -> ServiceError:
    """410."""
    return ServiceError(
        410,
        "stream_gone",
        "this stream is no longer open",
        field="stream_id",
        hint="It was closed, left alone for too long, or its bundle is too old: open it again with the text so far",
    )


def stream_unreachable() -> ServiceError:
    """503: the process that holds the stream does not answer."""
    return ServiceError(
        503, "stream_unreachable", "the process that holds this stream did not answer", field="stream_id"
    )


def internal() -> ServiceError:
    """500: endcast's own fault; the server's log tells more."""
    return ServiceError(500, "internal", "the service failed on this call", hint="See the server's log")
