"""The conformance corpus (``corpus/README.md``): every case through a running gateway, and every stream cut at every byte."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from endcast.router.gateway.config import Config, Health, Limits, Listen, Log, Pool, WorkerConfig
from endcast.router.gateway.gateway import Gateway
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.serve import Server
from endcast.router.gateway.streams.account import Account

HERE = Path(__file__).parent / "corpus"
FOLDERS = ("streams", "requests", "http", "faults")
Case = dict[str, Any]
TARGETS = ("/v1/chat/completions", "/v1/completions")


def cases(folder: str) -> list[Case]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / folder).glob("*.json"))]


def data_of(body: Any) -> bytes:
    """The bytes that a case's ``body`` stands for."""
    if isinstance(body, str):
        return body.encode()
    if "base64" in body:
        return base64.b64decode(body["base64"])
    return b"".join(b"x" * part if isinstance(part, int) else part.encode() for part in body["parts"])


# ---- a little HTTP, so that every byte is the case's own


async def read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape").split("\r\n")
    named = (line.partition(":") for line in lines[1:] if line)
    return lines[0], [(name.strip().lower(), value.strip()) for name, _, value in named]


async def read_body_of(reader: asyncio.StreamReader, headers: list[tuple[str, str]], *, to_end: bool) -> bytes:
    told = dict(headers)
    if told.get("transfer-encoding", "").lower() == "chunked":
        found = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            found += (await reader.readexactly(size + 2))[:-2]
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        return found
    if "content-length" in told:
        return await reader.readexactly(int(told["content-length"]))
    return await reader.read() if to_end else b""


def chunked(data: bytes, size: int) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(data[i : i + size]), data[i : i + size]) for i in range(0, len(data), size)]


def head_lines(first: str, headers: list[list[str]]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers), "", ""]
    return b"\r\n".join(line.encode("latin-1" if "caf\xe9" in line else "utf-8") for line in lines)


class ScriptedEngine:
    """Says what the case named by ``X-Case`` says; answers in pieces of ``piece`` bytes."""

    def __init__(self, told: list[Case], piece: int) -> None:
        self.told = {case["name"]: case for case in told}
        self.piece = piece
        self.got: dict[str, list[tuple[str, list[tuple[str, str]], bytes]]] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, headers = await read_head(reader)
        body = await read_body_of(reader, headers, to_end=False)
        method, target, _ = first.split(" ")
        if target == "/health":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return True
        name = dict(headers)["x-case"]
        calls = self.got.setdefault(name, [])
        calls.append((target, headers, body))
        answers = self.told[name]["engine"]["answers"]
        return await self._say(writer, answers[min(len(calls), len(answers)) - 1], method)

    async def _say(self, writer: asyncio.StreamWriter, told: Case, method: str) -> bool:
        data, framing, head = data_of(told["body"]), told["framing"], told.get("head", True)
        headers = list(told["headers"])
        if framing == "chunked":
            headers.append(["Transfer-Encoding", "chunked"])
        elif framing == "length" and told["status"] not in (204, 304):
            headers.append(["Content-Length", str(told.get("length", len(data)))])
        first = f"{told.get('version', 'HTTP/1.1')} {told['status']} {told.get('reason', 'Said')}"
        writer.write(told.get("before", "").encode())
        writer.write(head_lines(first, headers) if head is True else (head or "").encode())
        pieces = [data[i : i + self.piece] for i in range(0, len(data), self.piece)]
        if framing == "chunked":
            pieces = chunked(data, self.piece)
        for piece in [] if told.get("bodiless") or method == "HEAD" else pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if told["ends"] == "open":
            while not writer.is_closing():  # until the router has had enough of it
                await asyncio.sleep(0.02)
        if told["ends"] == "reset":
            await asyncio.sleep(0.02)  # what was said before arrives
            writer.transport.abort()
        elif told["ends"] == "whole" and framing == "chunked":
            writer.write(b"0\r\n" + told.get("trailers", "").encode() + b"\r\n")
        await asyncio.sleep(0)
        return bool(told["ends"] == "whole" and framing != "close")


async def called(port: int, told: Case) -> tuple[int, str, list[tuple[str, str]], bytes]:
    """What a client gets: status, reason, headers, body."""
    asked, data = told["request"], data_of(told["request"]["body"])
    headers = [["Host", "router"], ["X-Case", told["name"]], ["X-Request-Id", told["name"]], *asked["headers"]]
    framing = asked.get("framing", "length")
    headers.append(["Transfer-Encoding", "chunked"] if framing == "chunked" else ["Content-Length", str(len(data))])
    if framing == "expect":
        headers.append(["Expect", "100-continue"])
    version = asked.get("version", "HTTP/1.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(head_lines(f"{asked['method']} {asked['target']} {version}", headers))
        if framing == "expect":
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"".join([*chunked(data, 5_000), b"0\r\n\r\n"]) if framing == "chunked" else data)
        first, answered = await read_head(reader)
        _, status, reason = first.split(" ", 2)
        bodiless = asked["method"] == "HEAD" or int(status) in (204, 304)
        return int(status), reason, answered, b"" if bodiless else await read_body_of(reader, answered, to_end=True)
    finally:
        writer.close()


def differences(told: Case, got: tuple[int, str, list[tuple[str, str]], bytes]) -> list[str]:
    """Where the client's answer is not the one of the case."""
    status, reason, headers, body = got
    wanted = told["client"]
    found = []
    if status != wanted["status"] or reason != wanted.get("reason", reason):
        found.append(f"status {status} {reason}")
    if body != data_of(wanted["body"]):
        found.append(f"body {body!r}\n      not {data_of(wanted['body'])!r}")
    for name, value in wanted.get("headers", {}).items():
        values = (
            ", ".join(v for n, v in headers if n == name.lower())
            if any(n == name.lower() for n, _ in headers)
            else None
        )
        if values != value:
            found.append(f"header {name}: {values!r:.80}")
    return found


def unlike_engine(told: Case, calls: list[tuple[str, list[tuple[str, str]], bytes]]) -> list[str]:
    """Where the engine did not get what the case says."""
    wanted, found = told["engine"]["receives"], []
    for target, headers, body in calls:
        if target != wanted["target"]:
            found.append(f"target {target}")
        if body != data_of(wanted["body"]):
            found.append(f"engine got {body!r:.300}")
        for name, values in wanted.get("headers", {}).items():
            if [v for n, v in headers if n == name.lower()] != values:
                found.append(f"engine's header {name}")
    return found or ([] if calls else ["the engine was not called"])


def unlike_books(told: Case, lines: list[Case]) -> list[str]:
    """Where the router's log does not say what the case does."""
    wanted = told["books"]
    if wanted is None:
        return ["in the log"] if lines else []
    lines = sorted(lines, key=lambda line: str(line["request_id"]))
    problem = lines[0]["attributes"].get("problem") if lines else "no line"
    got = {
        "prompt_tokens": lines[0]["prompt_tokens"] if lines else None,
        "output_tokens": [line["output_tokens"] for line in lines],
        "ends": [line["end"] for line in lines],
        "problem": "*" if problem and wanted["problem"] == "*" else problem,
    }
    return [] if got == wanted else [f"books {got}\n      not {wanted}"]


@pytest.mark.parametrize("piece", [1 << 20, 7], ids=["whole", "pieces"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_case_through_the_gateway(folder: str, piece: int, tmp_path: Path) -> None:
    told = [case for case in cases(folder) if piece > 7 or folder != "requests"]
    failed: dict[str, list[str]] = {}
    log = tmp_path / "access.jsonl"
    engine = ScriptedEngine(told, piece)

    async def run() -> None:
        async with engine.listening() as url:
            config = Config(
                pools=(Pool(workers=(WorkerConfig(url=url),)),),
                listen=Listen(port=0),
                limits=Limits(retries=1, no_worker_wait_s=20.0, inter_chunk_timeout_s=20.0),
                health=Health(reconcile_s=0, interval_s=0.02, pause_s=0.01, longest_pause_s=0.02),
                log=Log(path=str(log), outputs=True),
            )
            gateway = Gateway(config, rng=np.random.default_rng(0))
            async with Server(gateway, config.listen) as server:
                port = int(server.url.rsplit(":", 1)[1])
                for case in told:
                    try:
                        async with asyncio.timeout(10):
                            failed[case["name"]] = differences(case, await called(port, case))
                    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                        failed[case["name"]] = [f"{type(error).__name__}: {error}"]
                core = gateway.pools[0].core
                assert (core.running, core.waiting, gateway.open_calls) == (0, 0, 0)
                core.decide(0.0)
                assert not core.load().any()

    asyncio.run(run())
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    for case in told:
        own = [line for line in lines if line["attributes"].get("client_request_id") == case["name"]]
        failed[case["name"]] += unlike_engine(case, engine.got.get(case["name"], [])) + unlike_books(case, own)
    shown = [f"{name}: " + "\n    ".join(what) for name, what in failed.items() if what]
    assert not shown, f"{len(shown)} of {len(told)}\n" + "\n".join(shown)


class Books:
    """Stands for dispatcher and core: keeps what it is told."""

    reads = False

    def __init__(self) -> None:
        self.core, self.tokens, self.prompt, self.over = self, dict[int, int](), 0, set[int]()

    def on_prompt(self, ticket: object, tokens: int) -> None:
        self.prompt = tokens

    def on_tokens(self, ticket: object, generated: int, now_s: float, answer: int, events: int) -> bool:
        assert generated > self.tokens.get(answer, 0) and events >= 1
        self.tokens[answer] = generated
        return True

    def on_answer_end(self, ticket: object, answer: int) -> None:
        self.over.add(answer)

    def stepped(self) -> None:
        pass


def streams_of(folder: str) -> list[Any]:
    found = [
        case
        for case in cases(folder)
        if case["client"]["body"] and "data:" in str(case["engine"]["answers"][-1]["body"])
    ]
    same = ("usage-null", "usage-no-")  # their streams are those of usage-absent
    return [pytest.param(case, id=case["name"]) for case in found if not case["name"].startswith(same)]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*streams_of("streams"), *streams_of("requests")])
def test_streams_cut_at_every_byte(case: Case) -> None:
    told, told_client = data_of(case["engine"]["answers"][-1]["body"]), data_of(case["client"]["body"])
    wanted, sent = case["books"], data_of(case["request"]["body"])
    strips = sent != data_of(case["engine"]["receives"]["body"])

    def relayed(pieces: list[bytes]) -> tuple[bytes, Account, Books]:
        books: Any = Books()
        account = Account(books, books, body, strips=strips, keeps_text=False, clock=lambda: 0.0)
        return b"".join([*map(account.feed, pieces), account.rest()]), account, books

    body = read_body(sent, chat=case["request"]["target"] == TARGETS[0])
    for pieces in [
        *([told[:cut], told[cut:]] for cut in range(len(told) + 1)),
        [told[i : i + 1] for i in range(len(told))],
    ]:
        got, account, books = relayed(pieces)
        assert got == told_client, [len(piece) for piece in pieces]
        tokens = [account.tokens.get(answer, 0) for answer in range(body.choices)]
        assert tokens == wanted["output_tokens"] and tokens == [books.tokens.get(i, 0) for i in range(body.choices)]
        assert account.prompt_tokens == wanted["prompt_tokens"]
        ends = [account.ends[i].value if i in account.ends else "error" for i in range(body.choices)]
        assert account.failed or ends == wanted["ends"]


def test_the_files_are_what_the_script_makes() -> None:
    run = subprocess.run([sys.executable, HERE / "make.py", "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
