"""Public clients drive the router in front of two vLLM engines: the ``openai`` package, and vLLM's own load client."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import random
import subprocess
from typing import Any

import openai
import pytest

Fixture = Any
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "class Thread"}],
    "max_tokens": 24,
    "temperature": 0,
}


def test_the_openai_package_sync(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        said = []
        for url in (engines[0].url, r.url):
            with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
                whole = client.chat.completions.create(**ASKED)
                stream = client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
                chunks = list(stream)
                text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
                assert text == whole.choices[0].message.content
                assert whole.usage and chunks[-1].usage and chunks[-1].usage.completion_tokens == 24
                several = client.completions.create(
                    model="tiny", prompt="def f", n=3, seed=5, temperature=0.7, stop=["("], max_tokens=30
                )
                said.append(
                    (text, [(c.text, c.finish_reason) for c in several.choices], client.models.list().data[0].id)
                )
        assert said[0] == said[1]
        r.settled()


def test_the_openai_package_async(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:

        async def one(client: openai.AsyncOpenAI) -> str:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def run() -> None:
            async with openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="any", max_retries=0) as client:
                texts = await asyncio.gather(*(one(client) for _ in range(20)))
                assert len(set(texts)) == 1 and texts[0]
                with pytest.raises(openai.NotFoundError, match="huge"):
                    await client.chat.completions.create(**{**ASKED, "model": "huge"})
                with pytest.raises(openai.BadRequestError):
                    await client.chat.completions.create(**{**ASKED, "max_tokens": 1_000_000})

        asyncio.run(run())
        r.settled()


def test_vllm_bench_replays_a_trace(stage: Fixture, router: Fixture, tmp_path: pathlib.Path) -> None:
    """60 requests of a timed trace: all succeed, with the lengths that the trace says, and the router's log has the same."""
    engines = stage.show("two")
    rng, at = random.Random(1), 0
    rows: list[dict[str, Any]] = []
    for _ in range(60):
        at += rng.randint(0, 400)
        length = rng.randint(8, 300)
        chunks = [rng.randint(0, 40) for _ in range(-(-length // 16))]  # prompts are made of these: 16 tokens each
        row = {"timestamp": at, "input_length": length, "output_length": rng.randint(2, 120), "hash_ids": chunks}
        rows.append(row)
    trace, result = tmp_path / "trace.jsonl", tmp_path / "result.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with router([engine.url for engine in engines]) as r:
        command = [
            *(str(stage.home / "bin" / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", r.url),
            *("--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", str(stage.home / "models" / "dense")),
            *("--dataset-name", "timed_trace", "--dataset-path", str(trace), "--timed-trace-sec-multiplier", "0.001"),
            *("--num-prompts", str(len(rows)), "--ignore-eos"),
            *("--save-result", "--result-dir", str(tmp_path), "--result-filename", result.name),
        ]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(result.read_text())
        assert (told["completed"], told["failed"]) == (60, 0)
        assert told["total_output_tokens"] == sum(row["output_length"] for row in rows)
        r.settled()
    lines = [json.loads(line) for line in r.log.read_text().splitlines()]
    lengths = sorted((line["prompt_tokens"], line["output_tokens"]) for line in lines if line["end"] == "length")
    assert lengths == sorted((row["input_length"], row["output_length"]) for row in rows)
