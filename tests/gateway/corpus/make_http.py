"""The cases of HTTP itself and of faults, for ``make.py``, whose helpers come as ``m``."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]
SEND = '{"messages":[],"max_tokens":5}'
SAID = (
    '{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"length"}],'
    '"usage":{"prompt_tokens":7,"completion_tokens":3}}'
)


def http(m: Any) -> Iterator[Case]:
    """Headers, targets, methods, framing."""
    books = m.books([3], ["length"])

    def both(name: str, about: str, **how: Any) -> Case:
        """A routed call with the usual answer unless told otherwise."""
        made: Case = m.case(name, about, **{"send": SEND, "answers": [m.answer(SAID)], "books": books, **how})
        return made

    def passed(name: str, about: str, method: str, target: str, **how: Any) -> Case:
        """A call to another path, of which no books are kept."""
        made: Case = m.case(name, about, method=method, target=target, **how)
        return made

    mine = [*m.JSON, ["X-Mine", "a"], ["x-mine", "b"], ["User-Agent", "me/1"], ["Accept", "text/event-stream"]]
    kept = {"receives": {"target": m.CHAT, "body": SEND, "headers": {"X-Mine": ["a", "b"], "User-Agent": ["me/1"], "Accept": ["text/event-stream"]}}}  # fmt: skip
    yield both("headers-kept", "a client's headers reach the engine, doubled ones doubled", headers=mine, engine=kept)
    hop = [*m.JSON, ["Connection", "keep-alive, X-Hop"], ["X-Hop", "1"], ["Keep-Alive", "timeout=5"], ["TE", "trailers"],
           ["Proxy-Authorization", "x"], ["X-data-parallel-rank", "7"], ["Accept-Encoding", "gzip"]]  # fmt: skip
    gone = {
        "X-Hop": [],
        "Keep-Alive": [],
        "TE": [],
        "Proxy-Authorization": [],
        "X-data-parallel-rank": [],
        "Accept-Encoding": ["identity"],
    }
    yield both("headers-of-one-hop", "headers of one hop end there; no pin but the router's", headers=hop,
               engine={"receives": {"target": m.CHAT, "body": SEND, "headers": gone}})  # fmt: skip
    large = [*m.JSON, ["X-Large", "v" * 30_000], ["Authorization", "Bearer " + "k" * 4_000]]
    yield both("headers-large", "30,000 bytes of one header", headers=large,
               engine={"receives": {"target": m.CHAT, "body": SEND, "headers": {"X-Large": ["v" * 30_000]}}})  # fmt: skip
    yield both(
        "headers-not-ascii",
        "a header in Latin-1 and one in UTF-8",
        headers=[*m.JSON, ["X-Word", "caf\xe9"], ["X-Wide", "你好"]],
    )
    answered = [
        *m.JSON,
        ["X-One", "1"],
        ["Set-Cookie", "a=1"],
        ["Set-Cookie", "b=2"],
        ["Connection", "X-Hop"],
        ["X-Hop", "1"],
        ["Keep-Alive", "timeout=5"],
    ]
    yield both("answer-headers", "an engine's headers reach the client, those of one hop do not",
               answers=[m.answer(SAID, headers=answered)],
               client={"headers": {"X-One": "1", "Set-Cookie": "a=1, b=2", "X-Hop": None, "Keep-Alive": None}})  # fmt: skip
    yield both("answer-header-large", "30,000 bytes", answers=[m.answer(SAID, headers=[*m.JSON, ["X-L", "v" * 30_000]])],
               client={"headers": {"X-L": "v" * 30_000}})  # fmt: skip
    yield both("answer-header-latin", "Latin-1", answers=[m.answer(SAID, headers=[*m.JSON, ["X-L", "caf\xe9"]])])
    for framing in ("length", "chunked", "close"):
        yield both(
            f"answer-{framing}", "however an engine tells its answer's end", answers=[m.answer(SAID, framing=framing)]
        )
        frames, tokens = m.spoken("cjk")
        send, receives = m.asked_body(None, chat=True)
        yield both(f"stream-{framing}", "the same of a stream", send=send, receives=receives,
                   answers=[m.streamed(m.sse(frames), framing=framing)], get=m.sse(m.unasked(frames)), books=m.books([tokens]))  # fmt: skip
        kind = [["content-type", "Text/Event-Stream;charset=UTF-8"]]
        yield both(f"stream-{framing}-type", "a content type in other letters", send=send, receives=receives,
                   answers=[m.streamed(m.sse(frames), framing=framing, headers=kind)], get=m.sse(m.unasked(frames)),
                   books=m.books([tokens]))  # fmt: skip
    yield both(
        "answer-http-1.0",
        "an engine that speaks HTTP/1.0",
        answers=[m.answer(SAID, framing="close", version="HTTP/1.0")],
    )
    yield both(
        "answer-interim",
        "103 before the answer",
        answers=[m.answer(SAID, before="HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")],
    )
    yield both(
        "answer-trailers",
        "trailers behind a chunked answer",
        answers=[m.answer(SAID, framing="chunked", trailers="X-T: 1\r\n")],
    )
    yield both("answer-reason", "an unusual reason phrase and status", answers=[m.answer('{"error":{"message":"x"}}', 418, reason="I am odd")],
               client={"status": 418, "reason": "I am odd"}, books=m.books([0], ["error"], None))  # fmt: skip
    squeezed = gzip.compress(SAID.encode(), mtime=0)
    yield both("answer-gzip", "compressed though it was not asked for", get=squeezed,
               answers=[m.answer(squeezed, headers=[*m.JSON, ["Content-Encoding", "gzip"]])],
               client={"headers": {"Content-Encoding": "gzip"}})  # fmt: skip
    frames, tokens = m.spoken("cjk")
    send, receives = m.asked_body(None, chat=True)
    squeezed = gzip.compress(m.sse(frames).encode(), mtime=0)
    yield both("stream-gzip", "a compressed stream is passed decompressed, so that usage can be taken out", send=send, receives=receives,
               answers=[m.streamed(squeezed, headers=[*m.SSE, ["Content-Encoding", "gzip"]])], get=m.sse(m.unasked(frames)),
               client={"headers": {"Content-Encoding": None}}, books=m.books([tokens]))  # fmt: skip
    for name, target in (("query", "?a=%2F&b=&c=%E4%BD%A0&d=+"), ("encoded", "?x=%zz&y={}|")):
        yield both(f"target-{name}", "path and query exactly as the client wrote them", target=m.CHAT + target)
    yield both("request-chunked", "a request's body in chunks", request={"framing": "chunked"})
    yield both("request-expect", "Expect: 100-continue is answered", request={"framing": "expect"})
    yield both("request-http-1.0", "a client of HTTP/1.0", request={"version": "HTTP/1.0"})
    yield both("request-no-type", "no content type", headers=[["X-A", "1"]])
    yield both("redirect", "a redirect is the client's to follow", answers=[m.answer("", 307, [["Location", "/elsewhere?a=%2F"]])],
               client={"headers": {"Location": "/elsewhere?a=%2F"}}, books=m.books([0], ["error"], None))  # fmt: skip
    yield passed("pass-get", "another path", "GET", "/version?x=1", answers=[m.answer('{"version":"0"}')])
    yield passed(
        "pass-put",
        "any method and body",
        "PUT",
        "/a/b%2Fc//d?e=%20",
        send=b"\x00\xff" * 50,
        answers=[m.answer(b"\xff\x00", 201)],
    )
    yield passed("pass-delete", "204 has no body", "DELETE", "/v1/files/1", answers=[m.answer("", 204, [])])
    yield passed(
        "pass-options",
        "OPTIONS",
        "OPTIONS",
        m.CHAT,
        answers=[m.answer("", 200, [["Allow", "POST"]])],
        client={"headers": {"Allow": "POST"}},
    )
    yield passed("pass-head", "HEAD has no body, but its length", "HEAD", "/v1/models", answers=[m.answer("12345", bodiless=True)],
                 get="", client={"headers": {"Content-Length": "5"}})  # fmt: skip
    yield passed(
        "pass-304",
        "304",
        "GET",
        "/thing",
        answers=[m.answer("", 304, [["ETag", '"a"']])],
        client={"headers": {"ETag": '"a"'}},
    )
    yield passed("pass-stream", "a stream of another path, untouched", "POST", "/v1/responses", send='{"stream":true}',
                 answers=[m.streamed('data: {"choices":[],"usage":{"a":1}}\n\n')])  # fmt: skip
    yield passed(
        "models",
        "one pool's models are its engine's answer",
        "GET",
        "/v1/models",
        answers=[m.answer('{"object":"list","data":[]}')],
    )


def faults(m: Any) -> Iterator[Case]:
    """Failures before the first byte are tried again; behind it they end the stream, without what had come of an event."""
    frames, tokens = m.spoken("plain")
    send, receives = m.asked_body(None, chat=True)
    whole, left = m.streamed(m.sse(frames)), m.sse(m.unasked(frames))
    for name, first in {
        "503": m.answer('{"error":{}}', 503), "502": m.answer("", 502), "504": m.answer("", 504, framing="close"),
        "reset": m.answer("", ends="reset", bodiless=True, head=False), "headers-only": m.streamed("", ends="reset"),
        "empty": m.streamed(""), "half-headers": m.answer("", ends="cut", head="HTTP/1.1 200 OK\r\nContent-Ty"),
        "garbage": m.answer("", ends="cut", head="what is this\r\n\r\n"), "empty-200": m.answer(""),
        "half-body": m.answer(SAID, ends="cut", length=1000),
    }.items():  # fmt: skip
        yield m.case(f"before-{name}", "tried again before the first byte", send=send, receives=receives,
                     answers=[first, whole], get=left, books=m.books([tokens]))  # fmt: skip
    cut = (
        'data: {"error":{"message":"the engine\'s stream broke off","type":"router_error","code":"stream_cut","param":null}}'
        "\n\ndata: [DONE]\n\n"
    )
    some, shown = m.sse(frames[:3]), m.sse(m.unasked(frames[:3]))
    half = m.sse(frames[3:4])[:40]
    lost = m.books([2], ["error"], problem="stream_cut")
    for ends in ("cut", "reset", "whole"):
        for name, tail in (("", ""), ("-half", half), ("-half-line", "data: {}\n")):
            yield m.case(f"cut-{ends}{name}", f"a stream that ends early: {ends}{name}", send=send, receives=receives,
                         answers=[m.streamed(some + tail, ends=ends)], get=shown + cut, books=lost)  # fmt: skip
    yield m.case("cut-after-all", "all had ended: nothing is missing", send=send, receives=receives, books=m.books([tokens]),
                 answers=[m.streamed(m.sse(frames[:-1]), ends="whole")], get=m.sse(m.unasked(frames[:-1])))  # fmt: skip
    yield m.case("open-after-done", "the engine keeps a stream open that has come to its end", send=send, receives=receives,
                 answers=[m.streamed(m.sse(frames), ends="open")], get=left, books=m.books([tokens]))  # fmt: skip
    three, count = m.spoken("plain", n=3)
    send3, receives3 = m.asked_body(None, chat=True, n=3)
    yield m.case("cut-one-of-three", "one answer had ended, two had not", send=send3, receives=receives3,
                 answers=[m.streamed(m.sse(three[:10]))], get=m.sse(m.unasked(three[:10])) + cut,
                 books=m.books([count, 2, 2], ["error"] * 3, problem="stream_cut"))  # fmt: skip
    gone = '{"error":{"message":"the engine failed before it answered","type":"router_error","code":"engine_failed","param":null}}'
    yield m.case("all-fail", "every attempt fails", send=SEND, answers=[m.answer("", ends="reset", bodiless=True, head=False)],
                 get=gone, client={"status": 502}, books=m.books([0], ["error"], None, "*"))  # fmt: skip
    yield m.case("all-503", "the engine's last answer", send=SEND, answers=[m.answer('{"error":{"message":"no"}}', 503)],
                 books=m.books([0], ["error"], None))  # fmt: skip
