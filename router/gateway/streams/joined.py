"""Answers that were not streamed and went on elsewhere, put together into one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from endcast.router.gateway.streams.splice import OF_PROMPT, Before, as_one

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def joined(first: bytes, last: bytes, before: Before, text: str, token_ids: Sequence[int]) -> bytes:
    """The JSON of the ``last`` answer with what came ``before`` it: ``text`` and ``token_ids`` go in front of its own.

    What is told of the prompt is the ``first`` answer's. Other members keep their values' bytes.
    """
    members, told = _MEMBERS.decode(last), _MEMBERS.decode(first)
    as_one(members, before)
    (choice,), (told_choice,) = _CHOICES.decode(members["choices"]), _CHOICES.decode(told["choices"])
    if "message" in choice:
        message = _MEMBERS.decode(choice["message"])
        message["content"] = _with(text, message.get("content", _NULL))
        choice["message"] = msgspec.Raw(msgspec.json.encode(message))
    else:
        choice["text"] = _with(text, choice.get("text", _NULL))
    own = msgspec.json.decode(choice.get("token_ids", _NULL), type=list[int] | None)
    if own is not None:
        choice["token_ids"] = msgspec.Raw(msgspec.json.encode([*token_ids, *own]))
    members |= {name: raw for name, raw in told.items() if name in OF_PROMPT}
    choice |= {name: raw for name, raw in told_choice.items() if name in OF_PROMPT}
    members["choices"] = msgspec.Raw(msgspec.json.encode([choice]))
    return msgspec.json.encode(members)


def _with(text: str, own: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text + (msgspec.json.decode(own, type=str | None) or "")))
