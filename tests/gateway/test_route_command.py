"""``endcast route``: says where, routes there, and drains when told, with exit code 0."""

from __future__ import annotations

import asyncio
import pathlib
import re
import signal
import subprocess
import sys

import aiohttp
import pytest

from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet


def fleet_file(folder: pathlib.Path, urls: list[str], more: str = "") -> pathlib.Path:
    workers = ", ".join(f'{{ url = "{url}" }}' for url in urls)
    file = folder / "fleet.toml"
    file.write_text(f"{more}\n[[pools]]\nslots = 8\nworkers = [{workers}]\n")
    return file


def test_it_routes_until_told_to_stop(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        async with MockFleet(MockSettings(workers=2, slots=8, t_fixed_s=0.02)) as fleet:
            file = fleet_file(tmp_path, fleet.urls)
            command = [sys.executable, "-m", "endcast", "route", "--config", str(file), "--port", "0"]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout and process.stderr
            line = (await process.stdout.readline()).decode()
            match = re.fullmatch(r"routing to 2 workers at (http://127\.0\.0\.1:\d+)\n", line)
            assert match, (line, (await process.stderr.read()).decode())
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "mock_output_tokens": 30}
            url = f"{match[1]}/v1/chat/completions"
            async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
                await response.content.readline()
                process.send_signal(signal.SIGTERM)
                rest = await response.read()
            assert response.status == 200 and rest.endswith(b"data: [DONE]\n\n"), "what runs is finished"
            assert await process.wait() == 0 and await process.stderr.read() == b""

    asyncio.run(run())


def test_check_reads_the_file_and_stops(tmp_path: pathlib.Path) -> None:
    file = fleet_file(tmp_path, ["http://a:1", "http://b:1"])
    done = subprocess.run(
        [sys.executable, "-m", "endcast", "route", "--config", str(file), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("1 pools, 2 workers\n")


@pytest.mark.parametrize(
    ("more", "said"), [("[listen]\nport = 70000", "listen.port"), ("[log]\npath = '/no/such/x'", "access log")]
)
def test_what_cannot_work_is_one_line(tmp_path: pathlib.Path, more: str, said: str) -> None:
    file = fleet_file(tmp_path, ["http://a:1"], more)
    done = subprocess.run(
        [sys.executable, "-m", "endcast", "route", "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_file_is_read_again_when_told(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        async with MockFleet(MockSettings(workers=2, slots=8, t_fixed_s=0.02)) as fleet:
            file = fleet_file(tmp_path, fleet.urls[:1])
            command = [sys.executable, "-m", "endcast", "route", "--config", str(file), "--port", "0"]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout and process.stderr
            url = (await process.stdout.readline()).split()[-1].decode()
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "mock_output_tokens": 60}
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"{url}/v1/chat/completions", json=body) as answer,
            ):
                await answer.content.readline()
                fleet_file(tmp_path, fleet.urls)
                process.send_signal(signal.SIGHUP)
                said = (await process.stderr.readline()).decode()
                assert said.endswith("the configuration was read again: 1 pools, 2 workers\n")
                file.write_text("[[pools]]\nworkers = []\n")
                process.send_signal(signal.SIGHUP)
                said = (await process.stderr.readline()).decode()
                assert "the configuration so far stays" in said and "workers" in said and "Traceback" not in said
                file.unlink()
                process.send_signal(signal.SIGHUP)
                assert "No such file" in (await process.stderr.readline()).decode()
                async with client.get(f"{url}/metrics") as metrics:
                    told = await metrics.text()
                assert 'endcast_router_reloads_total{outcome="applied"} 1.0' in told
                assert 'endcast_router_reloads_total{outcome="refused"} 2.0' in told
                assert all(f'worker="{one}"' in told for one in fleet.urls)
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0 and await process.stderr.read() == b""

    asyncio.run(run())
