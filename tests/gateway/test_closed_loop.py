"""Route with BR-0, train on what was routed, give the bundle to the router that runs, and simulate the same log."""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
import signal
import sys
from asyncio.subprocess import PIPE
from typing import Any

import aiohttp

from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet

POLICY = 'forecaster = "{bundle}"\npolicy = "br_h"\nforecast_timeout_s = 5.0\n'


def write_fleet(folder: pathlib.Path, urls: list[str], more: str = "") -> pathlib.Path:
    workers = ", ".join(f'{{ url = "{url}" }}' for url in urls)
    file = folder / "fleet.toml"
    file.write_text(f'[log]\npath = "{folder}/access.jsonl"\n[[pools]]\nslots = 4\n{more}workers = [{workers}]\n')
    return file


async def endcast(*arguments: str) -> str:
    """What a command prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "endcast", *arguments, stdout=PIPE, stderr=PIPE
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return out.decode()


async def ask(client: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
    tokens = 1 + min(int(rng.expovariate(0.1)), 60)
    message = {"role": "user", "content": "word " * rng.randrange(1, 60)}
    body = {"model": "mock", "messages": [message], "stream": True, "mock_output_tokens": tokens}
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        data = await answer.read()
    assert answer.status == 200 and data.endswith(b"data: [DONE]\n\n") and b'"error"' not in data


def reasons(log: pathlib.Path) -> list[str]:
    return [json.loads(line)["attributes"]["reason"] for line in log.read_text().splitlines()]


def test_from_br_0_to_a_bundle_of_its_own_log_without_stopping(tmp_path: pathlib.Path) -> None:
    log, bundle, rng = tmp_path / "access.jsonl", tmp_path / "bundle", random.Random(1)

    async def traffic(client: aiohttp.ClientSession, url: str, stop: asyncio.Event) -> None:
        """Requests all the time; none of them may fail."""
        while not stop.is_set():
            await asyncio.gather(*(ask(client, url, rng) for _ in range(6)))
            await asyncio.sleep(0.05)

    async def run() -> None:
        async with (
            MockFleet(MockSettings(workers=2, slots=4, t_fixed_s=0.002)) as fleet,
            aiohttp.ClientSession() as client,
        ):
            file = write_fleet(tmp_path, fleet.urls)
            command = [sys.executable, "-m", "endcast", "route", "--config", str(file), "--port", "0"]
            router = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
            assert router.stdout and router.stderr
            url = (await router.stdout.readline()).split()[-1].decode()
            for _ in range(10):
                await asyncio.gather(*(ask(client, url, rng) for _ in range(25)))
            stop = asyncio.Event()
            running = asyncio.create_task(traffic(client, url, stop))
            await asyncio.sleep(0.6)  # lines are written twice a second
            await endcast("train", str(log), "--model", "kaplan_meier", "--out", str(bundle))
            write_fleet(tmp_path, fleet.urls, POLICY.format(bundle=bundle))
            router.send_signal(signal.SIGHUP)
            said = (await router.stderr.readline()).decode()
            assert said.endswith("the configuration was read again: 1 pools, 2 workers\n"), said
            await asyncio.sleep(0.3)
            stop.set()
            await running
            await ask(client, url, rng)
            router.send_signal(signal.SIGTERM)
            assert await router.wait() == 0

    asyncio.run(run())
    told = reasons(log)
    assert told[0] == "br_0" and told[-1] == "br_h" and set(told) == {"br_0", "br_h"}, "nothing else ever decided"
    last = json.loads(log.read_text().splitlines()[-1])["attributes"]
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    assert last["forecast"]["bundle"].startswith("sha256:") and last["forecast"]["expected_output_tokens"] > 0
    assert manifest["model"] == "kaplan_meier"
    simulated = json.loads(
        asyncio.run(
            endcast(
                "simulate",
                str(log),
                "--policies",
                "least_kv,br_0,br_h",
                "--forecast",
                "kaplan_meier",
                "--workers",
                "2",
                "--slots",
                "4",
                "--json",
            )
        )
    )
    assert [one["policy"] for one in simulated["policies"]] == ["least_kv", "br_0", "br_h"]
    assert all(0.5 < one["efficiency"] <= 1.0 and one["throughput"] > 0 for one in simulated["policies"])
