"""The loop closes: what is served and told comes back as state, measures, and a log that trains the next bundle."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from endcast import Completion, Landmark, Request
from endcast.cli import main
from endcast.datasets.read import read
from endcast.datasets.synth import SynthLog
from endcast.errors import InputError
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.predictors.recalibration import Recalibration
from endcast.serving.app import create_app
from endcast.serving.bundles.holder import Loaded
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.figures import BookFigures
from endcast.training.train import Trained

#: Later than any synthetic log.
LATER = 1_900_000_000.0


@asynccontextmanager
async def serving(forecaster: OnnxForecaster, settings: Settings) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    app = create_app(settings, forecaster, forecaster.manifest)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), client:
        yield app, client


def told_request(completion: Completion, i: int) -> dict[str, Any]:
    request = completion.request
    return {
        "request_id": f"q{i}",
        "arrival": LATER + i,
        "model": request.model,
        "tenant": request.tenant,
        "session": request.session,
        "prompt_tokens": request.prompt_tokens,
        "parameters": {**request.parameters, "max_tokens": request.max_tokens},
        "attributes": dict(request.attributes),
        "prefix_blocks": list(request.prefix_blocks),
        "prompt": request.prompt,
        "messages": request.messages,
    }


async def lived(
    client: httpx.AsyncClient, completions: Sequence[Completion], *, factor: float = 1.0, first: int = 0
) -> None:
    """Forecast each at admission and half-way, then tell its end; lengths times ``factor``."""
    for start in range(0, len(completions), 50):
        part = list(enumerate(completions))[start : start + 50]
        requests = [told_request(c, first + i) for i, c in part]
        lengths = [max(round(c.output_tokens * factor), 1) for _, c in part]
        for elapsed in ([0] * len(part), [n // 2 for n in lengths]):
            body = {"requests": [{**r, "generated_tokens": e} for r, e in zip(requests, elapsed, strict=True)]}
            answer = await client.post("/v1/forecasts", json=body)
            assert answer.status_code == 200, answer.text
        outcomes = [
            {"request_id": r["request_id"], "output_tokens": n, "end": c.end.value, "finished": r["arrival"] + 30.0}
            for r, n, (_, c) in zip(requests, lengths, part, strict=True)
        ]
        told = await client.post("/v1/outcomes", json={"outcomes": outcomes})
        assert told.json()["accepted"] == len(part), told.text


async def figures_of(app: Any) -> BookFigures:
    found: BookFigures = await app.state.context.outcomes.fresh_figures()
    return found


@pytest.fixture
def completions(small_log: SynthLog) -> list[Completion]:
    """The last part of the log, which the bundle did not train on; no errors."""
    return [c for c in small_log.trace.completions() if c.output_tokens > 0 and c.end.value != "error"][-350:]


def test_learning_from_what_was_served_is_learning(boosted: Trained, completions: list[Completion]) -> None:
    """The hazards that a forecast carries are those that ``observe`` would compute: the same state, without the model."""
    slow, fast = load_forecaster(boosted.path), load_forecaster(boosted.path)
    for completion in completions[:150]:
        (forecast,) = fast.forecast([Landmark(request=completion.request)])
        assert forecast.hazards is not None and forecast.hazards.shape == (2, len(fast.grid))
        fast.observe_served([completion], [forecast.hazards[0]], [0])
        slow.observe([completion])
    assert fast.state_version == slow.state_version
    assert fast.snapshot() == slow.snapshot()
    (forecast,) = fast.forecast([Landmark(request=completions[200].request)])
    assert forecast.hazards is not None
    assert not np.array_equal(forecast.hazards[0], forecast.hazards[1])  # recalibrated by now


def test_hazards_of_another_grid_are_refused_and_none_is_history_alone(
    boosted: Trained, completions: list[Completion]
) -> None:
    forecaster = load_forecaster(boosted.path)
    with pytest.raises(InputError, match="intervals"):
        forecaster.observe_served(completions[:1], [np.full(3, 0.1)], [0])
    before = forecaster.state_version
    forecaster.observe_served(completions[:200], [None] * 200, [0] * 200)
    assert forecaster.state_version == before + 200 and not forecaster._recalibration.active


def test_landmarks_of_one_call_carry_the_hazards_of_their_own_request(boosted: Trained) -> None:
    forecaster = load_forecaster(boosted.path)
    requests = [Request(request_id=str(n), prompt_tokens=n, model="m", max_tokens=10 * n) for n in (3, 300, 3_000)]
    landmarks = [Landmark(request=requests[i], generated_tokens=e) for i, e in ((2, 0), (0, 5), (2, 9), (1, 0))]
    together = forecaster.forecast(landmarks)
    for landmark, forecast in zip(landmarks, together, strict=True):
        (alone,) = forecaster.forecast([landmark])
        assert forecast.hazards is not None and alone.hazards is not None
        later = slice(int(forecaster.grid.interval_of(np.array([landmark.generated_tokens]))[0]), None)
        np.testing.assert_array_equal(forecast.hazards[:, later], alone.hazards[:, later])


def test_the_state_is_the_same_after_a_restart(boosted: Trained, completions: list[Completion], tmp_path: Path) -> None:
    settings = Settings(outcome_log=tmp_path / "log", outcome_segment_bytes=100_000)
    first, second = load_forecaster(boosted.path), load_forecaster(boosted.path)
    measured: list[BookFigures] = []

    async def work() -> None:
        async with serving(first, settings) as (app, client):
            await lived(client, completions[:150])
            measured.append(await figures_of(app))
        async with serving(second, settings) as (app, _):
            measured.append(await figures_of(app))

    asyncio.run(work())
    assert len(list((tmp_path / "log").glob("outcomes-*"))) > 1
    assert first.state_version == second.state_version and first.snapshot() == second.snapshot()
    assert measured[0].live == measured[1].live
    assert measured[0].live.outcomes == 150 and measured[0].live.calibration.forecasts == 300
    assert measured[0].live.contradicted == 0


def test_recalibration_can_be_switched_off_alone(boosted: Trained, completions: list[Completion]) -> None:
    forecaster = load_forecaster(boosted.path)
    before = forecaster.state_version

    async def work() -> None:
        async with serving(forecaster, Settings(recalibrate=False)) as (_, client):
            await lived(client, completions[:120])

    asyncio.run(work())
    assert forecaster.state_version == before + 120 and not forecaster._recalibration.active


def test_lengths_that_change_raise_the_drift_alarm(
    boosted: Trained, completions: list[Completion], caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(load_forecaster(boosted.path), Settings(recalibrate=False)) as (app, client):
            await lived(client, completions[:160])
            calm = (await figures_of(app)).live.drift
            assert calm is not None and calm.outcomes == 160 and not calm.alarm
            await lived(client, completions[160:350], factor=3.0, first=160)
            drift = (await figures_of(app)).live.drift
            assert drift is not None and drift.alarm and drift.model_alarm and "drifted" in drift.explanation

    asyncio.run(work())
    assert [one.message for one in caplog.records if one.name == "endcast.outcomes"] == ["drift alarm"]


def test_the_log_trains_the_next_bundle_which_is_served_without_counting_twice(
    boosted: Trained, completions: list[Completion], tmp_path: Path
) -> None:
    settings = Settings(outcome_log=tmp_path / "log")

    async def work() -> None:
        async with serving(load_forecaster(boosted.path), settings) as (_, client):
            await lived(client, completions)

    asyncio.run(work())
    reading = read(tmp_path / "log")
    assert reading.report.format == "outcomes" and len(reading.trace) == len(completions)
    rows = list(reading.trace.completions())
    assert [c.output_tokens for c in rows] == [c.output_tokens for c in completions]
    assert [c.request.max_tokens for c in rows] == [c.request.max_tokens for c in completions]
    assert rows[7].request.arrival_s == LATER + 7 and rows[7].finished_s == LATER + 37
    out = tmp_path / "bundle"
    with pytest.raises(SystemExit) as ended:
        main(["train", str(tmp_path / "log"), "--model", "kaplan_meier", "--out", str(out)])
    assert ended.value.code == 0
    fresh = load_forecaster(out)
    remembered = fresh.state_version

    async def again() -> None:
        async with serving(fresh, settings) as (_, client):
            assert (await client.get("/readyz")).json()["state_version"] == fresh.state_version

    asyncio.run(again())
    trained = int(fresh.manifest["training"]["requests"])
    assert 0 < trained < len(completions)
    assert fresh.state_version - remembered == len(completions) - trained  # those that it was not trained on


def test_a_bundle_that_comes_later_has_learned_what_the_served_one_has(
    boosted: Trained, completions: list[Completion], tmp_path: Path
) -> None:
    first, second = load_forecaster(boosted.path), load_forecaster(boosted.path)

    async def work() -> None:
        async with serving(first, Settings(outcome_log=tmp_path)) as (app, client):
            await lived(client, completions[:120])
            bundles = app.state.context.bundles
            await asyncio.to_thread(bundles.swap, Loaded(second, second.manifest))
            assert second.snapshot() == first.snapshot()
            await lived(client, completions[120:140], first=120)
            assert second.state_version == first.state_version + 20

    asyncio.run(work())


def test_a_bundle_that_was_prepared_and_never_served_is_forgotten(boosted: Trained) -> None:
    async def work() -> None:
        async with serving(load_forecaster(boosted.path), Settings()) as (app, _):
            prepared = Loaded(load_forecaster(boosted.path))
            await asyncio.to_thread(app.state.context.bundles.prepare, prepared)
            lessons, gone = app.state.context.outcomes.lessons, weakref.ref(prepared)
            assert lessons.knows(prepared)
            del prepared
            gc.collect()
            assert gone() is None

    asyncio.run(work())


def test_late_first_forecasts_tell_of_what_comes_after_only(boosted: Trained) -> None:
    forecaster = load_forecaster(boosted.path)
    hazard = np.full(len(forecaster.grid), 0.2)
    edge = int(forecaster.grid.edges[5])
    whole, late = forecaster._recalibration, load_forecaster(boosted.path)._recalibration
    whole.observe(hazard, edge + 1, True)
    late.observe(hazard, edge + 1, True, entered=edge)

    def told(online: Recalibration) -> float:
        return float(online._curvature[2].sum())

    assert 0.0 < told(late) < told(whole)
    nothing = load_forecaster(boosted.path)._recalibration
    nothing.observe(hazard, edge + 1, True, entered=edge + 1)  # inside the interval in which it ended
    assert told(nothing) == 0.0
