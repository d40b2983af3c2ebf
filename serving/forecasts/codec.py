"""From the bytes of a call to landmarks, and from forecasts to the bytes of the reply. Knows JSON and no HTTP.

What is refused is refused with the field's path; nothing of the input goes into an answer but ``request_id``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from endcast.serving.api.problems import ServiceError, invalid_field, malformed
from endcast.serving.api.schema import CALL_DECODER, REQUEST_DECODER, ForecastRequest, ForecastsCall, KnownParameters
from endcast.serving.forecasts.split_body import cut
from endcast.serving.operations.settings import Settings
from endcast.types import Landmark, Request

#: Most bytes of a long call beside its requests.
LONGEST_SHELL = 64 * 1024
Number = TypeVar("Number", int, float)
Body = TypeVar("Body")

_ANY_DECODER = msgspec.json.Decoder(msgspec.Raw)
_LIST = re.compile(rb"\s*\[")
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_NAMED = re.compile(r"^Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A decoded ``POST /v1/forecasts``: what to forecast, and how to answer."""

    landmarks: tuple[Landmark, ...]
    request_ids: tuple[str | None, ...]
    horizons: tuple[int, ...]
    quantiles: tuple[float, ...]
    curve: bool


def decode_call(body: bytes, settings: Settings) -> Call:
    """Decode and check a body; ``ServiceError`` 400 if it is no JSON, 422 with the field if it breaks a bound."""
    told = decode_body(body, CALL_DECODER)
    if len(told.requests) > settings.max_requests:
        raise _too_many(settings)
    return _call(told, told.requests, settings)


def decode_long_call(body: bytes, settings: Settings) -> Call:
    """The same for a body of megabytes, in small steps between which other threads can run."""
    parts = cut(body, settings.max_requests)
    if isinstance(parts, int):
        raise _too_many(settings)
    if parts is None:
        if _LIST.match(body):
            raise invalid_field("body", "expected `object`, got `array`")
        decode_body(body, _ANY_DECODER)  # if it is no JSON, it says so
        raise invalid_field("requests", "must be given once, as a list, in an object, under a key without escapes")
    if len(parts.shell) > LONGEST_SHELL:
        raise invalid_field("body", f"must have at most {LONGEST_SHELL} bytes beside requests")
    told = decode_body(parts.shell, CALL_DECODER)
    requests = []
    with memoryview(body) as whole:
        for i, (start, stop) in enumerate(zip(parts.starts, parts.stops, strict=True)):
            with whole[start:stop] as part:
                requests.append(decode_body(part, REQUEST_DECODER, f"requests[{i}]"))
    return _call(told, requests, settings)


def _too_many(settings: Settings) -> ServiceError:
    return invalid_field("requests", f"must be at most {settings.max_requests}", "Send several batches")


def _call(told: ForecastsCall, requests: Sequence[ForecastRequest], settings: Settings) -> Call:
    return Call(
        landmarks=tuple(landmark_of(request, f"requests[{i}]") for i, request in enumerate(requests)),
        request_ids=tuple(request.request_id for request in requests),
        horizons=ascending(settings.default_horizons if told.horizons is None else told.horizons),
        quantiles=ascending(settings.default_quantiles if told.quantiles is None else told.quantiles),
        curve=bool(told.curve),
    )


def ascending(values: Sequence[Number]) -> tuple[Number, ...]:
    """Each value once, smallest first."""
    return tuple(sorted(set(values)))


def decode_body(body: bytes | memoryview, decoder: msgspec.json.Decoder[Body], within: str = "") -> Body:
    """A body of a declared type, or the part of one that ``within`` is the path of; ``ServiceError`` 400 if it is no JSON,
    422 with the field if it breaks a bound."""
    try:
        return _decoded(body, decoder)
    except msgspec.ValidationError as error:
        refused = _invalid(error, bytes(body))
        raise invalid_field(_joined(within, refused.field), refused.message, refused.hint) from None
    except msgspec.DecodeError as error:
        path = _path_of_non_finite(bytes(body))
        if path is not None:
            raise invalid_field(_joined(within, path), "must be a finite number") from None
        raise malformed(f"the body is no JSON: {error}") from None
    except UnicodeDecodeError:
        raise malformed("the body is no UTF-8") from None
    except RecursionError:
        raise malformed("the body is nested too deeply") from None


def _decoded(body: bytes | memoryview, decoder: msgspec.json.Decoder[Body]) -> Body:
    """``decoder.decode``, which also takes 64.0 where a whole number belongs: in JSON the two are the same."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error) or len(body) > LONGEST_SHELL:
            raise
        try:
            document = json.loads(bytes(body), parse_float=_whole_if_it_is)
        except json.JSONDecodeError as broken:  # after the value that was no whole number
            raise malformed(f"the body is no JSON: {broken.msg}") from None
        except ValueError:  # a whole number of thousands of digits
            raise error from None
        return decoder.decode(json.dumps(document))


def _whole_if_it_is(digits: str) -> int | float:
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < 2.0**63 else value


def _joined(within: str, field: str | None) -> str:
    inner = "" if field is None or field == "body" else field
    return f"{within}.{inner}" if within and inner else within or inner or "body"


def _invalid(error: msgspec.ValidationError, body: bytes) -> ServiceError:
    """The reply for a value that breaks its declaration; msgspec tells the path at the end of its message."""
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    named = _NAMED.match(what)
    if named is not None:
        field = f"{path}.{named['name']}" if path else named["name"]
        return invalid_field(
            field, "must be given" if named["how"].startswith("missing") else "is no field of this API"
        )
    if "[...]" in path:  # inside a free object msgspec does not tell the name
        path = _path_of_non_finite(body) or path
    return invalid_field(path or "body", what[:1].lower() + what[1:])


def _path_of_non_finite(body: bytes) -> str | None:
    """Path of the first number that is not finite (``NaN``, ``Infinity``, 1e309) in what is else JSON, or None."""
    try:
        document = json.loads(body, parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path or "body"
        if isinstance(value, dict):
            pending.extend((f"{path}.{key}" if path else key, inner) for key, inner in reversed(value.items()))
        elif isinstance(value, list):
            pending.extend((f"{path}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1))
    return None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) < 300 else math.inf


def landmark_of(told: ForecastRequest, path: str) -> Landmark:
    """One generation of a call, at ``path``; ``ServiceError`` 422 names the field that is wrong."""
    if told.prompt_tokens is None and told.prompt is None and told.messages is None:
        raise invalid_field(path, "one of prompt_tokens, prompt and messages must be given")
    if told.prompt is not None and told.messages is not None:
        raise invalid_field(f"{path}.messages", "must be left out where prompt is given")
    if told.messages is not None:
        _check_messages(told.messages, f"{path}.messages")
    parameters = told.parameters or {}
    known = _known_parameters(parameters, f"{path}.parameters")
    request = Request(
        request_id=told.request_id or "",
        arrival_s=told.arrival,
        prompt_tokens=told.prompt_tokens,
        prompt=told.prompt,
        messages=None if told.messages is None else tuple(told.messages),
        model=told.model,
        tenant=told.tenant,
        session=told.session,
        max_tokens=_smallest(known.max_tokens, known.max_completion_tokens),
        context_limit=told.context_limit,
        prefix_blocks=tuple(told.prefix_blocks or ()),
        parameters=parameters,
        attributes=told.attributes or {},
    )
    return Landmark(request=request, generated_tokens=told.generated_tokens or 0, output=told.output)


def _smallest(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)


_NO_PARAMETERS = KnownParameters()


def _known_parameters(parameters: Mapping[str, Any], path: str) -> KnownParameters:
    if not parameters:
        return _NO_PARAMETERS
    try:
        return msgspec.convert(parameters, KnownParameters)
    except msgspec.ValidationError as error:
        refused = _invalid(error, b"")
        raise invalid_field(f"{path}.{refused.field}", refused.message) from None


def _check_messages(messages: Sequence[Mapping[str, Any]], path: str) -> None:
    """A message's content is a text, null, or parts; a part's text is a text. All else in it is free."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if not (content is None or isinstance(content, str | list)):
            raise invalid_field(f"{path}[{i}].content", "must be a text, a list of parts, or null")
        for field, part in _parts(content, f"{path}[{i}].content"):
            if not isinstance(part, dict | str):
                raise invalid_field(field, "must be an object or a text")
            if isinstance(part, dict) and not isinstance(part.get("text"), str | None):
                raise invalid_field(f"{field}.text", "must be a text")
        if not isinstance(message.get("role"), str | None):
            raise invalid_field(f"{path}[{i}].role", "must be a text")


def _parts(content: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(content, list):
        for i, part in enumerate(content):
            yield f"{path}[{i}]", part
