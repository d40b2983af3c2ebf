"""Several pools behind one address, TLS, and compressed bodies."""

from __future__ import annotations

import asyncio
import gzip
import pathlib
import shutil
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import numpy as np
import pytest

from endcast.router.gateway.config import Config, Listen, Pool, WorkerConfig
from endcast.router.gateway.gateway import Gateway
from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet
from endcast.router.gateway.serve import Server

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


def test_each_model_goes_to_its_pool() -> None:
    async def run() -> None:
        small, large = MockSettings(workers=1, model="small"), MockSettings(workers=1, model="large", output_tokens=3)
        async with MockFleet(small) as one, MockFleet(large) as two:
            pools = (
                Pool(models=("small", "alias"), workers=(WorkerConfig(url=one.urls[0]),)),
                Pool(models=("large",), workers=(WorkerConfig(url=two.urls[0]),), policy="least_kv"),
            )
            config = Config(pools=pools, listen=Listen(port=0))
            gateway = Gateway(config, rng=np.random.default_rng(0))
            async with Server(gateway, config.listen) as server, aiohttp.ClientSession() as client:

                async def ask(model: str | None) -> tuple[int, Any]:
                    body = {"prompt": "x", "model": model}
                    async with client.post(f"{server.url}/v1/completions", json=body) as response:
                        return response.status, await response.json()

                assert (await ask("small"))[0] == (await ask("alias"))[0] == (await ask("large"))[0] == 200
                assert (one.ranks[0].seen, two.ranks[0].seen) == (2, 1)
                for unknown in ("other", None, ""):
                    status, told = await ask(unknown)
                    assert status == 404 and told["error"]["code"] == "model_not_found"
                async with client.get(f"{server.url}/v1/models") as response:
                    listed = (await response.json())["data"]
                assert [model["id"] for model in listed] == ["small", "alias", "large"]
                assert listed[0]["max_model_len"] == 4096
                await two.kill(0)
                async with asyncio.timeout(10):
                    while gateway.pools[1].dispatcher.up:
                        await ask("large")
                assert (await ask("small"))[0] == 200, "one pool's trouble is not the other's"
                async with client.get(f"{server.url}/ready") as response:
                    assert response.status == 503

    asyncio.run(run())


def test_compressed_requests(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            body = gzip.compress(b'{"prompt": [1, 2, 3], "stream": true, "mock_output_tokens": 2}')
            got = await r.call("/v1/completions", body, headers={"Content-Encoding": "gzip"})
            assert got.status == 200 and got.frames[-1] == "[DONE]" and got.text == "the fox"
            await r.settled()

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_tls(tmp_path: pathlib.Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)

    async def run() -> None:
        async with MockFleet(MockSettings(workers=1)) as fleet:
            listen = Listen(port=0, tls_certificate=str(certificate), tls_key=str(key))
            config = Config(pools=(Pool(workers=(WorkerConfig(url=fleet.urls[0]),)),), listen=listen)
            async with Server(Gateway(config), listen) as server, aiohttp.ClientSession() as client:
                assert server.url.startswith("https://")
                context = ssl.create_default_context(cafile=str(certificate))
                body = {"prompt": "x", "stream": True}
                async with client.post(f"{server.url}/v1/completions", json=body, ssl=context) as response:
                    assert response.status == 200 and (await response.read()).endswith(b"data: [DONE]\n\n")

    asyncio.run(run())
