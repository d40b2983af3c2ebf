"""One line of the outcome log: a request as it was told (without its texts, unless they are wanted), what was forecast of
it, and how it ended. JSON; ``endcast.datasets.formats.outcomes`` reads the same lines for training.

A *pending* record is an outcome whose forecast another process of the service may know: that one writes the whole record.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from endcast.curves import Float32Array
from endcast.errors import EndcastError
from endcast.types import Completion, EndReason, Request

VERSION = 1
#: Longer texts in parameters and attributes may be prompts: they go where prompts go.
SHORT = 64
_NESTED = (Mapping, list, tuple)
_PLAIN = frozenset((int, float, bool, str, type(None)))


class RequestPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's fields, named as in the API; ``arrival`` in seconds since 1970."""

    request_id: str | None = None
    arrival: float | None = None
    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    context_limit: int | None = None
    parameters: dict[str, Any] | None = None
    prefix_blocks: tuple[int, ...] | None = None
    attributes: dict[str, Any] | None = None
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None

    @classmethod
    def of(cls, request: Request, *, arrival: float | None, texts: bool) -> RequestPart:
        """What is kept of a request; its prompt only if ``texts``."""
        return cls(
            request_id=request.request_id or None,
            arrival=request.arrival_s if request.arrival_s is not None else arrival,
            model=request.model,
            tenant=request.tenant,
            session=request.session,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            context_limit=request.context_limit,
            parameters=(dict(request.parameters) if texts else slim(request.parameters)) or None,
            prefix_blocks=request.prefix_blocks or None,
            attributes=(dict(request.attributes) if texts else slim(request.attributes)) or None,
            prompt=request.prompt if texts else None,
            messages=tuple(dict(m) for m in request.messages) if texts and request.messages is not None else None,
        )

    def request(self, fallback_id: str) -> Request:
        """The request again."""
        return Request(
            request_id=self.request_id or fallback_id,
            arrival_s=self.arrival,
            model=self.model,
            tenant=self.tenant,
            session=self.session,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            context_limit=self.context_limit,
            parameters=self.parameters or {},
            prefix_blocks=self.prefix_blocks or (),
            attributes=self.attributes or {},
            prompt=self.prompt,
            messages=self.messages,
        )


def light(request: Request) -> Request:
    """The request without its prompt, and without what ``slim`` takes away."""
    texts = request.prompt is not None or request.messages is not None
    if not texts and _is_slim(request.parameters) and _is_slim(request.attributes):
        return request
    return msgspec.structs.replace(
        request,
        prompt=None,
        messages=None,
        parameters=slim(request.parameters),
        attributes=slim(request.attributes),
    )


def _is_slim(values: Mapping[str, Any]) -> bool:
    for value in values.values():
        kind = type(value)
        if kind not in _PLAIN or (kind is str and len(value) > SHORT):
            return False
    return True


def slim(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, and texts of up to ``SHORT`` characters; of what is nested, one level: what features read of parameters
    (such as how many tools there are, and the kind of response format) and no long text."""
    return {name: _slim(value) for name, value in values.items() if not _long(value)}


def _slim(value: object) -> object:
    if isinstance(value, list | tuple):
        return [{} if isinstance(one, _NESTED) else "" if _long(one) else one for one in value]
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if not isinstance(one, _NESTED) and not _long(one)}
    return value


def _long(value: object) -> bool:
    return isinstance(value, str) and len(value) > SHORT


class OutcomePart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a generation ended; ``finished`` in seconds since 1970."""

    output_tokens: int
    end: EndReason
    finished: float
    output: str | None = None


class ShadowPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """P(R ≤ h) by a shadow bundle, one row for each scored landmark of ``ServedPart`` (empty where it made none), and its
    ``hazards`` at the first of them, at ``entered`` tokens."""

    bundle: str
    p_end: tuple[tuple[float, ...], ...]
    entered: int = 0
    hazards: str | None = None


class ServedPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was forecast. ``entered``: tokens at the first forecast; ``landmarks``: tokens at each that is scored.

    ``p_end[i]`` are P(R ≤ h) for ``horizons``; ``reached[i]`` the ``quantiles`` of R and ``stated[i]`` the chance not to
    exceed them. ``hazards`` (K,) of the model at the first forecast and ``drift`` (2, 3, measures) are base64 of float32.
    """

    bundle: str
    entered: int
    aborts: bool
    landmarks: tuple[int, ...]
    horizons: tuple[int, ...]
    p_end: tuple[tuple[float, ...], ...]
    quantiles: tuple[float, ...]
    reached: tuple[tuple[float, ...], ...]
    stated: tuple[tuple[float, ...], ...]
    hazards: str | None = None
    drift: str | None = None
    shadow: ShadowPart | None = None


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line. ``key`` names the generation, once; ``at`` is when it was taken in, in seconds since 1970."""

    outcome_log: int = msgspec.field(default_factory=lambda: VERSION)  # never left out: the line is known by it
    key: str
    at: float
    outcome: OutcomePart
    forecast_id: str | None = None  #: by which it was told, if it was
    request: RequestPart | None = None
    served: ServedPart | None = None
    pending: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """By which it is known when it is told again."""
        return (self.key,) if self.forecast_id is None else (self.key, f"f:{self.forecast_id}")

    def completion(self) -> Completion:
        """What a forecaster observes of it."""
        part = self.request or RequestPart()
        told = self.outcome
        return Completion(
            request=part.request(self.key), output_tokens=told.output_tokens, end=told.end, finished_s=told.finished
        )


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)


def encode_line(record: Record) -> bytes:
    """The record as a line, with its end."""
    return _ENCODER.encode(record) + b"\n"


def decode_line(line: bytes) -> Record:
    """The record of a line; ``EndcastError`` if it is damaged or of a later version."""
    try:
        record = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EndcastError(f"a line of the outcome log is damaged: {error}") from None
    if record.outcome_log > VERSION:
        raise EndcastError(
            f"a line of the outcome log has version {record.outcome_log}, this endcast knows {VERSION}",
            hint="Update endcast",
        )
    return record


def pack(numbers: Float32Array) -> str:
    """Numbers as base64 of little-endian float32."""
    return b64encode(np.ascontiguousarray(numbers, dtype="<f4").tobytes()).decode()


def unpack(text: str) -> Float32Array:
    """(n,), the inverse of ``pack``; ``EndcastError`` if it is none."""
    try:
        return np.frombuffer(b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    except ValueError:
        raise EndcastError("a line of the outcome log has damaged numbers") from None
