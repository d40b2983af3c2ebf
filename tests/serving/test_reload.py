"""Another bundle while calls go on: never a mixed answer, never a lost one, never half a bundle."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from endcast import Landmark, Request, load_forecaster
from endcast.errors import EndcastError
from endcast.serving.app import build_app
from endcast.serving.bundles.holder import Loaded, load_bundle
from endcast.serving.context import Context
from endcast.serving.launch import folder_context
from endcast.serving.operations.settings import Settings

Client = httpx.AsyncClient
Two = tuple[pathlib.Path, pathlib.Path]
TOKENS = (3, 40, 400, 3_000)


def with_folder(
    folder: pathlib.Path, work: Callable[[Client, Context], Awaitable[Any]], settings: Settings | None = None
) -> Any:
    """What ``work`` gives for a service of this folder, whose life has begun."""

    async def run() -> Any:
        context = folder_context(folder, settings or Settings())
        app = build_app(context)
        async with (
            app.router.lifespan_context(app),
            Client(transport=httpx.ASGITransport(app), base_url="http://service") as client,
        ):
            return await work(client, context)

    return asyncio.run(run())


def put(folder: pathlib.Path, bundle: pathlib.Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundle, folder)


def call_of(tokens: tuple[int, ...] = TOKENS) -> dict[str, Any]:
    requests = [{"request_id": str(n), "prompt_tokens": n, "generated_tokens": n // 4} for n in tokens]
    return {"requests": requests, "horizons": [16, 64], "curve": True}


def offline(bundle: pathlib.Path) -> dict[str, float]:
    """p_end(64) by request id, as the bundle's own forecaster gives it."""
    forecaster = load_forecaster(bundle)
    landmarks = [Landmark(request=Request(request_id=str(n), prompt_tokens=n), generated_tokens=n // 4) for n in TOKENS]
    return {str(n): forecast.p_end(64) for n, forecast in zip(TOKENS, forecaster.forecast(landmarks), strict=True)}


def test_a_reload_serves_what_the_folder_has(two_bundles: Two, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "bundle"
    put(folder, two_bundles[0])

    async def work(client: Client, _context: Context) -> list[dict[str, Any]]:
        same = await client.post("/v1/bundle/reload")
        put(folder, two_bundles[1])
        other = await client.post("/v1/bundle/reload")
        return [
            same.json(),
            other.json(),
            (await client.get("/v1/bundle")).json(),
            (await client.get("/readyz")).json(),
        ]

    same, other, told, ready = with_folder(folder, work)
    assert same == {"bundle": same["before"], "before": same["before"], "changed": False}
    assert other["changed"] and other["before"] == same["bundle"]
    assert told["bundle"] == other["bundle"] == ready["bundle"] and told["refused"] is None
    assert told["manifest"]["intervals"] == json.loads((two_bundles[1] / "manifest.json").read_text())["intervals"]


@pytest.mark.parametrize("missing", ["model.onnx", "manifest.json", "manifest.sha256", None])
def test_half_a_bundle_is_refused_and_the_old_one_stays(
    two_bundles: Two, tmp_path: pathlib.Path, missing: str | None
) -> None:
    folder = tmp_path / "bundle"
    put(folder, two_bundles[0])

    async def work(client: Client, _context: Context) -> tuple[httpx.Response, ...]:
        before = await client.get("/v1/bundle")
        put(folder, two_bundles[1])
        if missing is None:
            whole = (folder / "base.npy").read_bytes()
            (folder / "base.npy").write_bytes(whole[: len(whole) // 2])
        else:
            (folder / missing).unlink()
        refused = await client.post("/v1/bundle/reload")
        after, answer = await client.get("/v1/bundle"), await client.post("/v1/forecasts", json=call_of())
        put(folder, two_bundles[1])
        return before, refused, after, answer, await client.post("/v1/bundle/reload")

    before, refused, after, answer, complete = with_folder(folder, work)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "bundle_refused"
    assert (missing or "base.npy") in refused.json()["error"]["message"]
    assert before.json()["bundle"] == after.json()["bundle"] == answer.json()["bundle"]
    assert after.json()["refused"] == refused.json()["error"]["message"]
    assert complete.status_code == 200 and complete.json()["changed"]


def test_a_bundle_that_fails_when_it_is_tried_is_refused(two_bundles: Two, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "bundle"
    put(folder, two_bundles[0])

    async def work(client: Client, context: Context) -> httpx.Response:
        put(folder, two_bundles[1])
        assert context.reloader is not None

        def broken(_folder: pathlib.Path) -> Loaded:
            raise ZeroDivisionError("inner detail")

        context.reloader._load = broken
        return await client.post("/v1/bundle/reload")

    refused = with_folder(folder, work)
    assert refused.status_code == 409 and "ZeroDivisionError" in refused.text and "inner" not in refused.text


def test_the_folder_is_watched(two_bundles: Two, tmp_path: pathlib.Path) -> None:
    """A bundle that is copied file by file is refused until it is whole, and then served."""
    folder = tmp_path / "bundle"
    put(folder, two_bundles[0])

    async def until(client: Client, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(1_000):
            told: dict[str, Any] = (await client.get("/v1/bundle")).json()
            if holds(told):
                return told
            await asyncio.sleep(0.02)
        raise AssertionError(told)

    async def work(client: Client, _context: Context) -> list[dict[str, Any]]:
        before = (await client.get("/v1/bundle")).json()
        for name in ("manifest.json", "model.onnx"):
            shutil.copy(two_bundles[1] / name, folder / name)
        half = await until(client, lambda told: told["refused"] is not None)
        shutil.copytree(two_bundles[1], folder, dirs_exist_ok=True)
        return [before, half, await until(client, lambda told: bool(told["bundle"] != before["bundle"]))]

    before, half, after = with_folder(folder, work, Settings(watch_s=0.05))
    assert half["bundle"] == before["bundle"] and "digest" in half["refused"]
    assert after["refused"] is None


def test_without_a_folder_there_is_nothing_to_reload(service: Callable[..., httpx.Response]) -> None:
    refused = service("POST", "/v1/bundle/reload")
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "bundle_refused"


def test_a_process_that_disagrees_is_not_ready(two_bundles: Two) -> None:
    async def work(client: Client, context: Context) -> list[int]:
        assert context.reloader is not None
        codes = []
        for agreed in (None, context.bundles.current.id, "sha256:other"):
            context.reloader.agreed = agreed
            codes.append((await client.get("/readyz")).status_code)
        return codes

    assert with_folder(two_bundles[0], work) == [200, 200, 503]


def test_only_what_was_prepared_is_served(two_bundles: Two) -> None:
    async def work(_client: Client, context: Context) -> str:
        assert context.reloader is not None
        prepared = await context.reloader.prepare(two_bundles[1])
        with pytest.raises(EndcastError, match="not prepared"):
            context.reloader.commit("sha256:other")
        assert context.bundles.current.id != prepared
        return prepared

    assert with_folder(two_bundles[0], work).startswith("sha256:")


@pytest.mark.slow
def test_many_callers_during_many_reloads(two_bundles: Two, tmp_path: pathlib.Path) -> None:
    """200 callers, 30 reloads: every answer is whole, names one bundle, and is what that bundle says offline."""
    folder = tmp_path / "bundle"
    put(folder, two_bundles[0])
    expected = {load_bundle(path, Settings()).id: offline(path) for path in two_bundles}
    seen: set[str] = set()
    wrong: list[Any] = []

    async def caller(client: Client, ended: threading.Event, wide: bool) -> int:
        count = 0
        while not ended.is_set() or count == 0:
            body = call_of(TOKENS * 40 if wide else TOKENS)
            answer = await client.post("/v1/forecasts", json=body)
            if answer.status_code != 200:
                wrong.append(answer.text)
                return count
            told = answer.json()
            seen.add(told["bundle"])
            truth = expected[told["bundle"]]
            for forecast in told["forecasts"]:
                if abs(forecast["p_end"]["64"] - truth[forecast["request_id"]]) > 1e-9:
                    wrong.append((told["bundle"], forecast))
            count += 1
            await asyncio.sleep(0)
        return count

    async def work(client: Client, _context: Context) -> list[int]:
        ended = threading.Event()
        callers = [asyncio.create_task(caller(client, ended, i % 30 == 0)) for i in range(200)]
        for i in range(30):
            await asyncio.to_thread(put, folder, two_bundles[(i + 1) % 2])
            answer = await client.post("/v1/bundle/reload")
            if answer.status_code != 200 or not answer.json()["changed"]:
                wrong.append(answer.text)
        ended.set()
        return await asyncio.gather(*callers)

    counts = with_folder(folder, work, Settings(max_waiting_calls=4_096))
    assert not wrong, wrong[:3]
    assert min(counts) >= 1 and seen == set(expected)
