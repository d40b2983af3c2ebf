"""A request that an engine gave back before its end, as it is sent again: the prompt with the output so far, smaller caps.

An engine that gives a request back expects its prompt to be computed anew with all that it generated. A text goes on behind the
prompt; a chat goes on within a last message of the assistant's, as vLLM has it: ``continue_final_message`` and no generation
prompt. What cannot go on exactly is named by ``obstacle``: there the client is told instead.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from endcast.router.gateway.messages.body import Body, read_body, whole_number
from endcast.router.gateway.messages.lenient import UNREADABLE

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])
_TRUE, _FALSE = msgspec.Raw(b"true"), msgspec.Raw(b"false")
#: What ``/v1/completions`` generates at most where nothing is said.
_DEFAULT_CAP: Final = 16
#: Members that make an engine tell of tokens or of the prompt, or change that; and those that have it constrain the output
#: by a state of its own, which begins anew with each request.
_UNFIT = (
    "logprobs", "prompt_logprobs", "echo", "suffix", "prompt_embeds", "truncate_prompt_tokens", "kv_transfer_params",
    "return_prompt_text", "use_beam_search", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip


def obstacle(body: Body) -> str:
    """Why a request could not go on elsewhere; empty if it could."""
    members = _plain(body)
    if not members or body.plain is not body.raw:
        return "the body is not strict JSON"
    if body.choices > 1 or members.get("best_of") not in (None, 1):
        return "several answers"
    for name in _UNFIT:
        if not _is_off(members.get(name)):
            return name
    form = members.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        return "response_format"
    if members.get("tool_choice") not in (None, "auto", "none"):
        return "tool_choice"
    for name in _caps(body):  # what is not understood cannot be made smaller
        if members.get(name) not in (None, 0) and whole_number(members[name], 0) == 0:
            return name
    if body.chat:
        return _obstacle_of_chat(members)
    return _obstacle_of_prompt(members, streams=body.streams)


def _caps(body: Body) -> tuple[str, ...]:
    """Members that count output tokens; ``/v1/completions`` ignores one of them."""
    return ("max_tokens", "max_completion_tokens", "min_tokens") if body.chat else ("max_tokens", "min_tokens")


def _is_off(value: object) -> bool:
    """Whether a member's value asks for nothing; a number does, zero too."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def wants_token_ids(body: Body) -> bool:
    """Whether a request of one prompt of token ids also asks for those of its output: it goes on by them."""
    return body.exact_prompt and _plain(body).get("return_token_ids") is True


def stops_of(body: Body) -> tuple[str, ...]:
    """The texts at which the output ends and which are not part of it."""
    members = _plain(body)
    told = members.get("stop")
    if members.get("include_stop_str_in_output") is True:
        return ()
    return tuple(one for one in ([told] if isinstance(told, str) else told or ()) if isinstance(one, str))


def without_begun_stop(text: str, stops: tuple[str, ...]) -> str:
    """``text`` without an end that may be the beginning of one of ``stops``: the engine must see that whole."""
    for length in range(max(map(len, stops), default=0) - 1, 0, -1):
        if any(len(stop) > length and text.endswith(stop[:length]) for stop in stops):
            return text[:-length]
    return text


def continued(body: Body, text: str, tokens: int, token_ids: list[int] | None = None) -> Body | None:
    """The request after ``tokens`` tokens of output, which read ``text``; ``None`` if its cap leaves none.

    Members that need not change keep their values' bytes. ``token_ids`` stand for ``text`` where the prompt is token ids.
    ``body`` must have no ``obstacle``.
    """
    members = _MEMBERS.decode(body.raw)
    if not body.chat and "max_tokens" not in members:
        members["max_tokens"] = msgspec.Raw(str(_DEFAULT_CAP).encode())
    for name in _caps(body):
        value = whole_number(msgspec.json.decode(members.get(name, b"null")), 0)
        if value == 0:
            continue
        if value <= tokens and name != "min_tokens":
            return None
        members[name] = msgspec.Raw(str(max(value - tokens, 0)).encode())
    if body.chat and text:
        _with_answer(members, text)
    elif not body.chat:
        members["prompt"] = _longer(members["prompt"], text, token_ids)
    return read_body(msgspec.json.encode(members), chat=body.chat)


def _with_answer(members: dict[str, msgspec.Raw], text: str) -> None:
    messages = _MESSAGES.decode(members["messages"])
    if members.get("continue_final_message") == _TRUE:
        last = _MEMBERS.decode(messages.pop())
        said = msgspec.json.decode(last["content"], type=str)
        messages.append(msgspec.Raw(msgspec.json.encode(last | {"content": said + text})))
    else:
        messages.append(msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": text})))
        members |= {"continue_final_message": _TRUE, "add_generation_prompt": _FALSE}
    members["messages"] = msgspec.Raw(msgspec.json.encode(messages))


def _longer(prompt: msgspec.Raw, text: str, token_ids: list[int] | None) -> msgspec.Raw:
    told: Any = msgspec.json.decode(prompt)
    if isinstance(told, str):
        told += text
    elif isinstance(told[0], str):
        told = [told[0] + text]
    elif isinstance(told[0], list):
        told = [told[0] + (token_ids or [])]
    else:
        told += token_ids or []
    return msgspec.Raw(msgspec.json.encode(told))


def _obstacle_of_chat(members: dict[str, Any]) -> str:
    messages = members.get("messages")
    if members.get("return_token_ids") is True:
        return "return_token_ids"  # those of the whole would be no generation's
    if not isinstance(messages, list) or not messages:
        return "messages"
    if members.get("continue_final_message") is True:
        last = messages[-1]
        fits = isinstance(last, dict) and isinstance(last.get("content"), str)
        return "" if fits and members.get("add_generation_prompt") is False else "continue_final_message"
    if not _is_off(members.get("continue_final_message")):
        return "continue_final_message"
    return "" if members.get("add_generation_prompt") in (None, True) else "add_generation_prompt"


def _obstacle_of_prompt(members: dict[str, Any], *, streams: bool) -> str:
    """Token ids go on by token ids, which only a stream tells with the text that they are; and a text goes on by its text."""
    prompt = members.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    tells_ids = members.get("return_token_ids") is True
    if isinstance(prompt, str):
        return "return_token_ids" if tells_ids else ""
    if not isinstance(prompt, list) or not all(type(one) is int for one in prompt) or not prompt:
        return "prompt"
    if not tells_ids:
        return "token ids without return_token_ids"
    return "" if streams else "token ids that are not streamed"


def _plain(body: Body) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body.raw) if body.readable else {}
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}
