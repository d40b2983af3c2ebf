"""Leading blocks of a request's prompt, for policies that send prompts with the same beginning to the same engine.

A block is so many bytes of the prompt as the client wrote it: the router has no tokenizer, and two requests of one
conversation, or with one system prompt, are written alike. What they differ in only makes them match less.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from endcast.router.gateway.messages.body import Body
from endcast.router.gateway.messages.lenient import UNREADABLE

#: Bytes of a block: some 100 tokens, a few of an engine's own blocks.
_BLOCK = 512
#: Blocks looked at; the rest of a longer prompt counts like these.
_MOST = 512


class _Prompt(msgspec.Struct, gc=False):
    """What an engine makes the prompt from; tools stand in front of messages there."""

    model: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")


_DECODE = msgspec.json.Decoder(_Prompt).decode


def leading_blocks(body: Body) -> tuple[int, ...]:
    """Ids of the prompt's whole leading blocks, in order; each stands for itself and all before it.

    Prompts of different models or tools have none in common. None where the body cannot be read.
    """
    if not body.readable:
        return ()
    try:
        told = _DECODE(body.plain)
    except UNREADABLE:
        return ()
    prompt = memoryview(told.messages if body.chat else told.prompt)
    digest = blake2b(b"\0".join((told.model, told.tools)), digest_size=8)
    found = []
    for end in range(_BLOCK, min(len(prompt), _BLOCK * _MOST) + 1, _BLOCK):
        digest.update(prompt[end - _BLOCK : end])
        found.append(int.from_bytes(digest.digest(), "little", signed=True))
    return tuple(found)
