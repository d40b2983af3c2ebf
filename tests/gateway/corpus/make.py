"""Writes the conformance corpus: one JSON file a case, in the folders beside this file. README.md tells the format.

``python make.py`` writes the files; ``python make.py --check`` exits with 1 if they are not what it would write.
"""

from __future__ import annotations

import base64
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = '{"include_usage":true,"continuous_usage_stats":true}'
ASKED = f'{{"stream_options":{BOTH},'
SSE = [["Content-Type", "text/event-stream; charset=utf-8"]]
JSON = [["Content-Type", "application/json"]]
Case = dict[str, Any]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def body_of(data: str | bytes) -> Any:
    """Text as itself, anything else as base64; a long run of the letter x as a number."""
    if isinstance(data, str):
        before, run, after = data.partition("x" * 1000)
        rest = after.lstrip("x")
        return {"parts": [before, len(run) + len(after) - len(rest), rest]} if run else data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def case(
    name: str,
    about: str,
    *,
    send: str | bytes = "",
    answers: list[Case] | None = None,
    get: str | bytes | None = None,
    receives: str | bytes | None = None,
    target: str = CHAT,
    method: str = "POST",
    headers: list[list[str]] | None = None,
    request: Case | None = None,
    engine: Case | None = None,
    client: Case | None = None,
    books: Case | None = None,
) -> Case:
    """A case; what is not said follows from the last answer: the client gets its status and body."""
    told = answers or [answer('{"ok":true}')]
    last = told[-1]
    asked = {"method": method, "target": target, "headers": headers or JSON, "body": body_of(send), **(request or {})}
    heard = {"receives": {"target": target, "body": body_of(send if receives is None else receives)}, "answers": told}
    got = {"status": last["status"], "body": last["body"] if get is None else body_of(get), **(client or {})}
    return {
        "name": name,
        "about": about,
        "request": asked,
        "engine": heard | (engine or {}),
        "client": got,
        "books": books,
    }


def answer(body: str | bytes = "", status: int = 200, headers: list[list[str]] | None = None, **more: Any) -> Case:
    """What the engine says; ``framing`` is length, chunked or close, ``ends`` is whole, cut or reset."""
    return {"status": status, "headers": JSON if headers is None else headers, "body": body_of(body),
            "framing": "length", "ends": "whole", **more}  # fmt: skip


def streamed(body: str | bytes, **more: Any) -> Case:
    return answer(body, **{"headers": SSE, "framing": "chunked", **more})


def books(tokens: list[int], ends: list[str] | None = None, prompt: int | None = 7, problem: str | None = None) -> Case:
    """What the router's log must say: tokens and end of each answer."""
    return {
        "prompt_tokens": prompt,
        "output_tokens": tokens,
        "ends": ends or ["stop"] * len(tokens),
        "problem": problem,
    }


# ---- streams


def chunk(index: int, delta: Any, tokens: int | None, *, chat: bool, **more: Any) -> Case:
    said = {"delta": delta} if chat else {"text": delta.get("content", "") if isinstance(delta, dict) else delta}
    kind = "chat.completion.chunk" if chat else "text_completion"
    choice = {"index": index, **said, "logprobs": None, "finish_reason": None} | more
    usage = (
        {}
        if tokens is None
        else {"usage": {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}}
    )
    return {"id": "cmpl-1", "object": kind, "created": 1, "model": "m", "choices": [choice]} | usage


def total(tokens: int) -> Case:
    usage = {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}
    return {"id": "cmpl-1", "object": "x", "created": 1, "model": "m", "choices": [], "usage": usage}


def sse(frames: list[Any], *, end: str = "\n", data: str = "data: ", dump: Any = compact) -> str:
    """Frames as a stream; strings as they are."""
    return "".join(data + (frame if isinstance(frame, str) else dump(frame)) + 2 * end for frame in frames)


def unasked(frames: list[Any], *, keep_total: bool = False) -> list[Any]:
    """The same stream from an engine that was not asked for usage (``keep_total``: for usage at the end only)."""
    left = [{k: v for k, v in f.items() if k != "usage" or (keep_total and not f["choices"])} if isinstance(f, dict) else f
            for f in frames]  # fmt: skip
    return [f for f in left if keep_total or not (isinstance(f, dict) and f.get("choices") == [] and len(f) == 5)]


ROLE = {"role": "assistant", "content": ""}
SAID: dict[str, list[tuple[Any, int]]] = {
    "plain": [({"content": "Hello"}, 1), ({"content": " world"}, 2)],
    "cjk": [({"content": "你好"}, 1), ({"content": "🌍\u2028é"}, 3)],
    "speculative": [({"content": "a b c d"}, 4), ({"content": "e"}, 5), ({"content": ""}, 7)],
    "reasoning": [({"reasoning_content": "hm"}, 1), ({"reasoning": "so"}, 2), ({"content": "yes"}, 3)],
    "tools": [({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}, 3),
              ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": "}"}'}}]}, 9)],
    "words_like_usage": [({"content": '"usage":{"a":1}},"usage":null'}, 1), ({"content": '\\"usage\\": {'}, 4)],
    "held_back": [({"content": ""}, 3), ({"content": "stop-string text"}, 6)],
}  # fmt: skip


def spoken(kind: str, *, chat: bool = True, n: int = 1, finish: str = "stop", **end: Any) -> tuple[list[Any], int]:
    """A whole stream with usage in every event, as asked for with both options; tokens of each answer."""
    frames = [chunk(i, ROLE, 0, chat=chat) for i in range(n)] if chat else []
    for delta, tokens in SAID[kind]:
        frames += [chunk(i, delta, tokens, chat=chat) for i in reversed(range(n))]
    count = SAID[kind][-1][1] + 1
    frames += [chunk(i, {}, count, chat=chat, finish_reason=finish, stop_reason=None, **end) for i in range(n)]
    return [*frames, total(count * n), "[DONE]"], count


def asked_body(options: str | None, *, chat: bool, n: int = 1) -> tuple[str, str]:
    """A client's body with such stream options, and what reaches the engine."""
    prompt = '"messages":[{"role":"user","content":"hi"}]' if chat else '"prompt":"hi"'
    rest = f'{prompt}, "n":{n}, "temperature":1.0e0'
    if options is None:
        return f'{{"stream":true,{rest}}}', f'{ASKED}"stream":true,{rest}}}'
    return f'{{"stream":true,"stream_options":{options}, {rest}}}', f'{{"stream":true,"stream_options":{BOTH}, {rest}}}'


OPTIONS = {
    "absent": None,
    "null": "null",
    "no": '{"include_usage":false}',
    "asked": '{"include_usage":true}',
    "both": BOTH,
}


def stream_case(name: str, about: str, frames: list[Any], tokens: int, *, options: str = "absent", chat: bool = True,
                n: int = 1, ended: str = "stop", **wire: Any) -> Case:  # fmt: skip
    send, receives = asked_body(OPTIONS[options], chat=chat, n=n)
    kept = frames if options == "both" else unasked(frames, keep_total=options == "asked")
    return case(
        name, about, send=send, receives=receives, target=CHAT if chat else COMPLETIONS,
        answers=[streamed(sse(frames, **wire))], get=sse(kept, **wire), books=books([tokens] * n, [ended] * n),
    )  # fmt: skip


def streams() -> Iterator[Case]:
    for options in OPTIONS:
        for chat in (True, False):
            for n in (1, 3):
                frames, tokens = spoken("plain", chat=chat, n=n)
                name = f"usage-{options}-{'chat' if chat else 'completions'}-n{n}"
                yield stream_case(
                    name, f"stream_options {options}, n = {n}", frames, tokens, options=options, chat=chat, n=n
                )
    for kind in SAID:
        for options in ("absent", "asked"):
            frames, tokens = spoken(kind, finish="tool_calls" if kind == "tools" else "stop")
            yield stream_case(f"said-{kind}-{options}", f"content: {kind}", frames, tokens, options=options)
    wires: dict[str, Case] = {
        "crlf": {"end": "\r\n"}, "cr": {"end": "\r"}, "no-space": {"data": "data:"}, "spaced-json": {"dump": json.dumps},
        "crlf-no-space": {"end": "\r\n", "data": "data:"}, "comments": {"data": ": keep-alive\ndata: "},
        "ids": {"data": "event: message\nid: {1}\ndata: "},
        "usage-first": {"dump": lambda f: compact(dict(sorted(f.items(), key=lambda kv: kv[0] != "usage")))},
        "usage-middle": {"dump": lambda f: compact(dict(sorted(f.items())) | {"x": [1, {"usage": 2}]})},
    }  # fmt: skip
    for name, wire in wires.items():
        for options in ("absent", "asked"):
            frames, tokens = spoken("cjk")
            yield stream_case(f"wire-{name}-{options}", f"on the wire: {name}", frames, tokens, options=options, **wire)
    for finish, end in (("length", "length"), ("abort", "abort"), ("content_filter", "stop"), ("tool_calls", "stop")):
        frames, tokens = spoken("plain", finish=finish)
        yield stream_case(f"finish-{finish}", "every end reason is seen", frames, tokens, ended=end)
    for reason, end in ((128009, "stop"), ("</s>", "stop"), ("recomputed", "unfinished")):
        frames, tokens = spoken("plain")
        frames[-3]["choices"][0]["stop_reason"] = reason
        yield stream_case(
            f"stop-reason-{reason}".replace("</s>", "text"),
            "integer, text, recompute marker",
            frames,
            tokens,
            ended=end,
        )
    yield from fingerprints()
    yield from odd_streams()


def fingerprints() -> Iterator[Case]:
    """Engines tell ``system_fingerprint`` in the last chunk: that of the usage, or, without one, that of the end."""
    mark = {"system_fingerprint": "engine-1.0"}
    for options in ("absent", "asked"):
        frames, tokens = spoken("cjk")
        heard = [*frames[:-2], frames[-2] | mark, "[DONE]"]
        kept = unasked(frames, keep_total=options == "asked")
        shown = [*kept[:-2], kept[-2] | mark, "[DONE]"]
        send, receives = asked_body(OPTIONS[options], chat=True)
        for wire, end in (("lf", "\n"), ("crlf", "\r\n")):
            yield case(
                f"fingerprint-{options}-{wire}", "what the usage event told beside usage stands in the last event",
                send=send, receives=receives, answers=[streamed(sse(heard, end=end))], get=sse(shown, end=end),
                books=books([tokens]),
            )  # fmt: skip


def odd_streams() -> Iterator[Case]:
    frames, tokens = spoken("plain")
    send, receives = asked_body(None, chat=True)

    def odd(name: str, about: str, engine: str | bytes, client: str | bytes, told: Case | None = None) -> Case:
        return case(f"odd-{name}", about, send=send, receives=receives, answers=[streamed(engine)], get=client,
                    books=told or books([tokens]))  # fmt: skip

    whole, left = sse(frames), sse(unasked(frames))
    yield odd("no-done", "all ended, no [DONE]: a whole stream", sse(frames[:-1]), sse(unasked(frames[:-1])))
    yield odd("done-unterminated", "the last event lacks its empty line", whole[:-2], left[:-2])
    yield odd("done-one-newline", "the last event lacks half of its end", whole[:-1], left[:-1])
    yield odd("bom", "a byte order mark before the first event", "\ufeff" + whole, "\ufeff" + left)
    yield odd("not-json", "an event that is no JSON passes", "data: hello {\n\n" + whole, "data: hello {\n\n" + left)
    yield odd(
        "scalars",
        "JSON that is no chunk passes",
        "data: 7\n\ndata: null\n\n" + whole,
        "data: 7\n\ndata: null\n\n" + left,
    )
    yield odd("choices-null", "choices null", 'data: {"choices":null}\n\n' + whole, 'data: {"choices":null}\n\n' + left)
    empty = 'data: {"choices":[],"prompt_filter_results":[]}\n\n'
    yield odd("choices-empty", "no choices and no usage: passes", empty + whole, empty + left)
    quiet = "".join(sse(unasked([frame])) + ": ping\n\n" for frame in frames)
    yield odd("pings", "comments between events", whole.replace("\n\n", "\n\n: ping\n\n"), quiet)
    null = compact(frames[1] | {"usage": None})
    yield odd(
        "usage-null", "usage null is the engine's own and stays", f"data: {null}\n\n{whole}", f"data: {null}\n\n{left}"
    )
    lines = whole.replace('"choices":', '\ndata: "choices":')
    yield odd("multi-line", "an event's data on two lines", lines, left.replace('"choices":', '\ndata: "choices":'))
    lines = whole.replace('"usage":', '\ndata: "usage":')
    yield odd("multi-line-usage", "usage on a line of its own", lines, left)
    alone = compact(chunk(0, {"content": "?"}, None, chat=True)).replace('"?"', '"\\ud83d"')
    marked = alone[:-1] + ',"usage":{"prompt_tokens":7,"completion_tokens":1}}'
    yield odd("half-surrogate", "half of a surrogate pair", f"data: {marked}\n\n{whole}", f"data: {alone}\n\n{left}")
    nan = compact(chunk(0, {"content": "x"}, 1, chat=True)).replace(
        '"logprobs":null', '"logprobs":{"p":NaN,"q":-Infinity,"r":1e999}'
    )
    bare = nan[: nan.index(',"usage"')] + "}"
    yield odd("nan", "numbers that are none", f"data: {nan}\n\n{whole}", f"data: {bare}\n\n{left}")
    for name, delta in (("delta-text", "x"), ("delta-list", [1]), ("delta-null", None)):
        strange = chunk(0, None, 1, chat=True)
        strange["choices"][0]["delta"] = delta
        yield odd(name, "a delta of no known shape", sse([strange]) + whole, sse(unasked([strange])) + left)
    huge = whole.replace('"completion_tokens":1,', "").replace('"completion_tokens":1}', '"completion_tokens":1e400}')
    yield odd("usage-huge", "a count beyond any number is no count", huge, left)
    floats = whole.replace('"completion_tokens":3}', '"completion_tokens":3.0}')
    yield odd("usage-float", "3.0 is 3", floats, left)
    twice = whole.replace('"choices":[{', '"usage":{"prompt_tokens":1},"choices":[{')
    yield odd("usage-twice", "usage is there twice; the last one counts", twice, left)
    error = 'data: {"error":{"message":"the engine broke","code":500}}\n\n'
    some, shown = sse(frames[:2]), sse(unasked(frames[:2]))
    failed = books([1], ["error"])
    yield odd(
        "error", "an error event, then [DONE]", some + error + sse(["[DONE]"]), shown + error + sse(["[DONE]"]), failed
    )
    yield odd("error-no-done", "an error event and no [DONE]", some + error, shown + error, failed)
    old = 'data: {"object":"error","message":"the engine broke","code":500}\n\n'
    yield odd(
        "error-old",
        "an error event as older engines write it",
        some + old + sse(["[DONE]"]),
        shown + old + sse(["[DONE]"]),
        failed,
    )
    only = error + sse(["[DONE]"])
    yield odd("error-only", "nothing but an error event", only, only, books([0], ["error"], None))


# ---- requests


def requests() -> Iterator[Case]:
    said = compact({"id": "1", "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3}})  # fmt: skip
    plain = {
        "unknown-fields": '{"messages":[{"role":"user","content":"hi","z":1}],"zzz":{"a":[1,2.50]},"vllm_xargs":{"k":null}}',
        "number-forms": '{"messages":[],"temperature":1e0,"top_p":1.0,"max_tokens":1e3,"seed":10000000000000000000000,"k":-0.0}',
        "multi-part": '{"messages":[{"role":"user","content":[{"type":"text","text":"你好"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}',
        "nulls": '{"messages":[{"role":"assistant","content":null,"tool_calls":null}],"stop":null,"n":null,"stream":null,"max_tokens":null}',
        "duplicate-keys": '{"messages":[],"temperature":0,"temperature":1,"stream":true,"stream":false}',
        "escapes": '{"messages":[{"role":"user","content":"\\u4f60\\ud83c\\udf0d\\/\\u0000"}],"mod\\u0065l":"m"}',
        "nan": '{"messages":[],"temperature":NaN,"top_p":Infinity}', "huge": '{"messages":[],"temperature":1e400}',
        "half-surrogate": '{"messages":[{"role":"user","content":"\\ud83d"}]}', "bom": '\ufeff{"messages":[]}',
        "deep": '{"messages":[],"z":' + "[" * 2000 + "]" * 2000 + "}", "white-space": ' \t\r\n{ "messages" : [ ] }\n',
        "not-json": "hello", "list": "[1]", "empty": "", "truncated": '{"messages":[', "stream-text": '{"stream":"true"}',
        "priority-huge": '{"messages":[],"priority":' + "9" * 400 + "}", "priority-text": '{"messages":[],"priority":"high"}',
        "tools": '{"messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required"}',
    }  # fmt: skip
    plain |= {
        f"cap-{cap}": f'{{"messages":[],"max_tokens":{cap}}}' for cap in ("0", "-1", "1000000000", '"3"', "2.5", "true")
    }
    for name, body in plain.items():
        yield case(f"body-{name}".replace('"', ""), "reaches the engine with the same bytes", send=body, answers=[answer(said)],
                   books=books([3]))  # fmt: skip
    yield case(
        "body-not-utf8",
        "bytes that are no text",
        send=b'{"messages":[],"z":"\xff"}',
        answers=[answer(said)],
        books=books([3]),
    )
    large = '{"messages":[{"role":"user","content":"' + "x" * 300_000 + '"}]}'
    yield case("body-large", "300,000 bytes, sent in pieces", send=large, answers=[answer(said)], books=books([3]),
               request={"framing": "chunked"})  # fmt: skip
    for prompt in ("[1,2,3,4,5,6,7]", '"hi"', '["hi"]', "[[1,2,3,4,5,6,7]]"):
        send = f'{{"prompt":{prompt},"max_tokens":5}}'
        name = {"[1": "ids", '"h': "text", '["': "texts", "[[": "lists-of-ids"}[prompt[:2]]
        yield case(
            f"prompt-{name}",
            "prompts of every shape",
            send=send,
            answers=[answer(said)],
            target=COMPLETIONS,
            books=books([3]),
        )
    two = compact({"choices": [{"index": i, "text": "x", "finish_reason": "length"} for i in (0, 1)],
                   "usage": {"prompt_tokens": 7, "completion_tokens": 6}})  # fmt: skip
    for n in ("2", "2.0", "2e0"):
        yield case(f"n-{n}", "two answers, however the number is written", send=f'{{"prompt":"x","n":{n}}}', answers=[answer(two)],
                   target=COMPLETIONS, books=books([3, 3], ["length", "length"]))  # fmt: skip
    yield from stream_options()
    for status, text in (
        (400, "bad"),
        (404, "no such model"),
        (401, "key"),
        (422, "n"),
        (429, "busy"),
        (500, "broke"),
        (413, "large"),
    ):
        told = answer(compact({"error": {"message": text}}), status, [*JSON, ["Retry-After", "7"]])
        yield case(f"status-{status}", "the engine's refusals pass", send='{"messages":[],"max_tokens":0}', answers=[told],
                   client={"headers": {"Retry-After": "7"}}, books=books([0], ["error"], None))  # fmt: skip


def stream_options() -> Iterator[Case]:
    frames, tokens = spoken("plain")
    for name, options in (
        ("empty", "{}"),
        ("text", '"yes"'),
        ("number", '{"include_usage":1}'),
        ("unclear", '{"include_usage":false,"continuous_usage_stats":true}'),
    ):
        send = f'{{"messages":[],"stream":true,"stream_options":{options}}}'
        yield case(f"options-{name}", "options that engines read differently are left alone", send=send,
                   answers=[streamed(sse(frames))], books=books([tokens]))  # fmt: skip
    send = '{"metadata":{"stream_options": 1},"stream":true,"messages":[],"x":"\\"stream_options\\": {"}'
    yield case("options-nested", "the name elsewhere is no option", send=send, receives=ASKED + send[1:],
               answers=[streamed(sse(frames))], get=sse(unasked(frames)), books=books([tokens]))  # fmt: skip
    send = '{"messages":[], "stream" : true , "stream_options" : {"include_usage" : true, "z" : 1.0} , "k":1.50}'
    receives = send.replace(
        '{"include_usage" : true, "z" : 1.0}', '{"include_usage":true,"z":1.0,"continuous_usage_stats":true}'
    )
    yield case("options-more", "other options stay", send=send, receives=receives, answers=[streamed(sse(frames))],
               get=sse(unasked(frames, keep_total=True)), books=books([tokens]))  # fmt: skip


def main() -> int:
    from_here = {"streams": streams(), "requests": requests()}
    more = runpy.run_path(str(HERE / "make_http.py"))  # beside this file, whichever way it is run
    here = SimpleNamespace(**globals())
    made: dict[Path, str] = {}
    for folder, cases in (from_here | {name: more[name](here) for name in ("http", "faults")}).items():
        for one in cases:
            path = HERE / folder / f"{one['name']}.json"
            assert path not in made, path
            made[path] = json.dumps(one, indent=1, ensure_ascii=True) + "\n"
    there = {path: path.read_text(encoding="utf-8") for path in HERE.glob("*/*.json")}
    if "--check" in sys.argv:
        wrong = sorted(str(path) for path in made.keys() | there.keys() if made.get(path) != there.get(path))
        print(*wrong, sep="\n")
        return int(bool(wrong))
    for path in there.keys() - made.keys():
        path.unlink()
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(len(made), "cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
