"""Answers that were not streamed and went on elsewhere, put together into one."""

from __future__ import annotations

import msgspec

from endcast.router.gateway.streams.splice import Before, as_one

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def joined(answer: bytes, before: Before, text: str) -> bytes:
    """The JSON of the last ``answer`` with what came ``before`` it, ``text``. Other members keep their values' bytes."""
    members = _MEMBERS.decode(answer)
    as_one(members, before)
    (choice,) = _CHOICES.decode(members["choices"])
    if "message" in choice:
        message = _MEMBERS.decode(choice["message"])
        message["content"] = _with(text, message.get("content", _NULL))
        choice["message"] = msgspec.Raw(msgspec.json.encode(message))
    else:
        choice["text"] = _with(text, choice.get("text", _NULL))
    members["choices"] = msgspec.Raw(msgspec.json.encode([choice]))
    return msgspec.json.encode(members)


def _with(text: str, own: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text + (msgspec.json.decode(own, type=str | None) or "")))
