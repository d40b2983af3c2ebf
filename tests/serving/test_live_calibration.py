"""Live calibration against numbers made by hand, by brute force and by the metrics of ``endcast evaluate``; the ledger."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Landmark, Request
from endcast.curves import CurveTable, log_survival_from_hazard
from endcast.forecaster import Forecaster
from endcast.serving.outcomes.calibration import MOST_NAMES, NAMED_WINDOW, NAMELESS, OTHER, WINDOW, LiveCalibration
from endcast.serving.outcomes.joining import joined, outcome_part
from endcast.serving.outcomes.ledger import Ledger, LedgerLimits
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import (
    OutcomePart,
    Record,
    RequestPart,
    ServedPart,
    decode_line,
    encode_line,
    pack,
    slim,
    unpack,
)
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.serving.outcomes.scoring import UNKNOWN, calibration_error, happened, is_end
from endcast.survival import NO_CAP, SurvivalBatch
from endcast.testing import ConstantHazardForecaster
from endcast.training.metrics import ece
from endcast.types import EndReason


def record(
    tokens: int,
    end: EndReason = EndReason.STOP,
    *,
    landmarks: Sequence[int] = (0,),
    p: Sequence[float] = (0.25, 0.5),
    request: RequestPart | None = None,
    aborts: bool = False,
) -> Record:
    served = ServedPart(
        bundle="b",
        entered=landmarks[0],
        aborts=aborts,
        landmarks=tuple(landmarks),
        horizons=(10, 20),
        p_end=(tuple(p),) * len(landmarks),
        quantiles=(0.5,),
        reached=((15.0,),) * len(landmarks),
        stated=((0.55,),) * len(landmarks),
    )
    return Record(
        key="r:k",
        at=0.0,
        outcome=OutcomePart(output_tokens=tokens, end=end, finished=1.0),
        request=request,
        served=served,
    )


def test_figures_are_those_made_by_hand() -> None:
    live = LiveCalibration((10, 20), (0.5,))
    live.take(record(10))  # R = 10: ends within 10
    live.take(record(30, landmarks=(0, 15, 29, 30, 40)))  # R = 30, 15, 1; two forecasts came after the end
    found = live.figures()
    assert (found.generations, found.forecasts, live.contradicted) == (2, 4, 2)
    ten, twenty = found.horizons[10], found.horizons[20]
    assert (ten.happened, twenty.happened) == (0.5, 0.75) and (ten.forecast, twenty.forecast) == (0.25, 0.5)
    assert ten.brier == pytest.approx((2 * 0.75**2 + 2 * 0.25**2) / 4) and twenty.brier == pytest.approx(0.25)
    assert ten.log_loss == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)
    assert ten.ece == pytest.approx(0.5) and twenty.ece == pytest.approx(0.5)  # fewer than bins: one a bin
    assert found.quantiles[0.5].coverage == 0.75 and found.quantiles[0.5].stated == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("end", "aborts", "request_part", "ends"),
    [
        (EndReason.STOP, False, None, True),
        (EndReason.ABORT, False, None, False),
        (EndReason.ABORT, True, None, True),
        (EndReason.ERROR, True, None, False),
        (EndReason.UNFINISHED, True, None, False),
        (EndReason.LENGTH, True, RequestPart(), False),  # a cap that nobody told of
        (EndReason.LENGTH, False, RequestPart(max_tokens=30), True),
        (EndReason.LENGTH, False, RequestPart(max_tokens=31), False),  # cut, but not by the cap that was told
        (EndReason.LENGTH, False, RequestPart(context_limit=40, prompt_tokens=10), True),
    ],
)
def test_which_ends_had_been_forecast(
    end: EndReason, aborts: bool, request_part: RequestPart | None, ends: bool
) -> None:
    assert is_end(record(30, end, request=request_part), aborts=aborts) is ends


def test_what_a_lost_generation_does_not_tell_is_left_out() -> None:
    live = LiveCalibration((10, 20), (0.5,))
    live.take(record(15, EndReason.ERROR))  # R > 15: not within 10; within 20, or the quantile at 15? not within 15
    found = live.figures()
    assert (found.horizons[10].forecasts, found.horizons[10].happened) == (1, 0.0)
    assert found.horizons[20].forecasts == 0 and math.isnan(found.horizons[20].brier)
    assert (found.quantiles[0.5].forecasts, found.quantiles[0.5].coverage) == (1, 0.0)


@given(remaining=st.lists(st.integers(0, 9), min_size=1, max_size=9), reach=st.integers(0, 9), ended=st.booleans())
def test_happened_agrees_with_every_true_length_that_is_possible(remaining: list[int], reach: int, ended: bool) -> None:
    found = happened(np.array(remaining), reach, ended)
    for seen, answer in zip(remaining, found.tolist(), strict=True):
        possible = {seen <= reach} if ended else {longer <= reach for longer in range(seen + 1, 30)}
        assert answer == (UNKNOWN if len(possible) == 2 else int(possible.pop()))


@pytest.mark.parametrize("count", [15, 600, 3_000])
def test_calibration_error_is_that_of_evaluate(count: int) -> None:
    rng = np.random.default_rng(count)
    p = rng.random(count)
    y = (rng.random(count) < p**1.5).astype(np.float64)
    assert calibration_error(p, y) == pytest.approx(ece(p, y), abs=1e-9)
    assert math.isnan(calibration_error(p[:0], y[:0]))


def test_names_are_bounded_and_the_rest_share_one() -> None:
    live = LiveCalibration((10, 20), (0.5,), most_names=2)
    for model in ("a", "b", "c", "d", "a"):
        live.take(record(10, request=RequestPart(model=model)))
    live.take(record(10))
    assert {name: one.forecasts for name, one in live.by("model").items()} == {"a": 2, "b": 1, OTHER: 2, NAMELESS: 1}
    assert set(live.by("tenant")) == {NAMELESS}
    assert MOST_NAMES == 32


def test_the_window_slides_in_constant_memory() -> None:
    live = LiveCalibration((10, 20), (0.5,))
    early, late = record(10, landmarks=tuple(range(10))), record(30, landmarks=tuple(range(10)))
    for _ in range(WINDOW // 10):
        live.take(early)
    tracemalloc.start()
    live.take(late)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(NAMED_WINDOW // 10):
        live.take(late)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000
    found = live.figures()
    assert found.forecasts == WINDOW and 0.8 < found.horizons[10].happened < 0.9
    assert live.by("tenant")[NAMELESS].horizons[10].happened == 0.0  # the shorter window has forgotten the early ones


def test_figures_of_another_kind_are_passed_over() -> None:
    live = LiveCalibration((16,), (0.5,))
    live.take(record(10))
    assert live.figures().forecasts == 0


def test_lines_come_back_as_they_were() -> None:
    full = record(30, landmarks=(0, 3), request=RequestPart(request_id="k", prefix_blocks=(1, 2), parameters={"n": 1}))
    assert decode_line(encode_line(full)) == full
    assert encode_line(full).startswith(b'{"outcome_log":1,')
    numbers = np.array([0.1, -2.5, 3e-7], dtype=np.float32)
    assert unpack(pack(numbers)).tolist() == numbers.tolist()
    with pytest.raises(Exception, match="version"):
        decode_line(encode_line(full).replace(b'"outcome_log":1', b'"outcome_log":9'))
    for damaged in (b"", b"{}", b"\xff", b'{"outcome_log":1}', encode_line(full)[:40]):
        with pytest.raises(Exception, match="damaged"):
            decode_line(damaged)


def test_parameters_lose_their_texts_and_keep_what_features_read() -> None:
    told = {
        "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "f", "description": "long " * 99}}] * 3,
        "response_format": {"type": "json_schema", "json_schema": {"a": 1}},
        "stop": ["\n\n", "x" * 99],
        "chat_template_kwargs": {"enable_thinking": True},
        "system": "a prompt " * 20,
        "user": "short",
    }
    assert slim(told) == {
        "temperature": 0.5,
        "tools": [{}, {}, {}],
        "response_format": {"type": "json_schema"},
        "stop": ["\n\n", ""],
        "chat_template_kwargs": {"enable_thinking": True},
        "user": "short",
    }


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ledger(clock: Clock | None = None, **limits: Any) -> Ledger:
    return Ledger(LedgerLimits(**limits), time.time, clock or Clock())


def serve(book: Ledger, names: Sequence[str], generated: int = 0, forecaster: Forecaster | None = None) -> list[str]:
    landmarks = [
        Landmark(request=Request(request_id=name, prompt_tokens=1, prompt="text"), generated_tokens=generated)
        for name in names
    ]
    forecasts = (forecaster or ConstantHazardForecaster(0.01)).forecast(landmarks)
    book.served(forecasts, landmarks)
    return [forecast.forecast_id for forecast in forecasts]


def test_the_ledger_keeps_what_was_served() -> None:
    book = ledger()
    (first, *_) = serve(book, ["a", "b", ""])
    (second,) = serve(book, ["a"], generated=40)
    found = book.find(second, None)
    assert found is not None and found is book.find(first, None) is book.find(None, "a") and len(book) == 4
    assert found.entered == 0 and [one.generated for one in found.scored] == [0, 40]
    assert found.request.prompt is None
    p_end, reached, stated = found.scored[1].figures.row(found.scored[1].row, 3, 2)
    assert p_end == pytest.approx([1 - 0.99**h for h in (16, 64, 128)], abs=1e-6)
    assert reached == (69.0, 230.0) and stated == pytest.approx([1 - 0.99**69, 1 - 0.99**230], abs=1e-6)


@given(
    hazards=st.lists(st.floats(0.001, 0.9), min_size=2, max_size=6),
    at=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    caps=st.lists(st.none() | st.integers(0, 120), min_size=6, max_size=6),
)
def test_the_figures_of_the_ledger_are_those_of_the_batch(
    hazards: list[float], at: list[int], caps: list[int | None]
) -> None:
    edges = np.cumsum([0, *(1 + 7 * i for i in range(len(hazards)))])
    table = CurveTable.from_log_survival(edges, log_survival_from_hazard([hazards, hazards[::-1]]))
    cap = np.array([NO_CAP if one is None else one for one in caps[: len(at)]])
    batch = SurvivalBatch(table, np.arange(len(at)) % 2, np.array(at), cap, 0)
    found = ledger(quantiles=(0.1, 0.5, 0.95))._numbers_of(batch)
    reached = [batch.quantile(q) for q in (0.1, 0.5, 0.95)]
    expected = [
        *(1.0 - batch.survival_at(h) for h in (16, 64, 128)),
        *reached,
        *(1.0 - batch.survival_at(r.astype(np.int64)) for r in reached),
    ]
    np.testing.assert_allclose(found, np.stack(expected).T, rtol=1e-5, atol=1e-6)


def test_the_ledger_is_bounded_in_number_and_age() -> None:
    clock = Clock()
    book = ledger(clock, forecasts=100, age_s=60.0)
    ids = [serve(book, [f"r{i}"])[0] for i in range(150)]
    assert len(book) == 100 and book.find(ids[49], None) is None and book.was_here(ids[49], None)
    assert book.find(ids[50], None) is not None and book.was_here(None, "r20")
    clock.now += 50.0
    serve(book, ["r149"], generated=5)  # seen again: it stays
    clock.now += 50.0
    serve(book, ["new"])
    assert len(book) == 3 and book.find(None, "r149") is not None and book.find(None, "r148") is None
    assert not book.was_here("f-deadbeef-1", "other") and book.was_here(ids[0], None)


def test_forecasts_of_a_long_generation_are_kept_evenly_spread() -> None:
    book = ledger(scored=8, scored_per_s=1e9)
    for step in range(400):
        serve(book, ["long"], generated=step)
    found = book.find(None, "long")
    assert found is not None
    kept = [one.generated for one in found.scored]
    gaps = set(np.diff(kept).tolist())
    assert 4 <= len(kept) <= 8 and len(gaps) == 1 and kept[0] == 0 and kept[-1] > 250


def test_figures_are_made_for_so_many_a_second_only() -> None:
    clock = Clock()
    book = ledger(clock, scored_per_s=10.0)
    for i in range(30):
        serve(book, [f"r{i}"])
    scored = [book.find(None, f"r{i}") for i in range(30)]
    assert sum(len(one.scored) for one in scored if one is not None) == 10
    clock.now += 0.5
    for i in range(30, 60):
        serve(book, [f"r{i}"])
    assert sum(len(one.scored) for i in range(60) if (one := book.find(None, f"r{i}")) is not None) == 15


def test_after_a_reload_what_counts_is_the_new_bundles() -> None:
    book = ledger()
    serve(book, ["a"])
    serve(book, ["a"], 30, ConstantHazardForecaster(0.1, bundle="other"))
    found = book.find(None, "a")
    assert found is not None and (found.bundle, found.entered, len(found.scored)) == ("other", 30, 1)


def test_a_ledger_that_is_switched_off_keeps_nothing() -> None:
    book = ledger(forecasts=0)
    serve(book, ["a"])
    assert len(book) == 0 and book.find(None, "a") is None


@pytest.mark.parametrize("hazard", [0.005, 0.02])
def test_a_calibrated_forecaster_is_measured_as_calibrated_and_another_is_not(
    hazard: float,
) -> None:
    rng, limits = np.random.default_rng(2), LedgerLimits(scored_per_s=1e9)
    book, live = Ledger(limits, time.time, time.monotonic), Live(limits.horizons, limits.quantiles)
    live.serve("constant-hazard", None)
    for i in range(400):
        length = int(rng.geometric(0.02))
        for at in range(0, length, 40):
            serve(book, [f"r{i}"], at, ConstantHazardForecaster(hazard))
        found = book.find(None, f"r{i}")
        assert found is not None
        told = outcome_part(OutcomeTold(request_id=f"r{i}", output_tokens=length), 0.0, texts=False)
        live.take(joined(told, found, live, limits, 0.0, aborts=False))
    figures = live.figures().calibration
    gaps = [abs(one.happened - one.forecast) for one in figures.horizons.values()]
    covered = figures.quantiles[0.9]
    off = [max(gaps), abs(covered.coverage - covered.stated)]
    assert max(off) < 0.06 if hazard == 0.02 else min(off) > 0.08


def test_what_waits_takes_no_more_memory_than_documented() -> None:
    book = ledger(scored_per_s=1e9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(100):
        serve(book, [f"r{i}-{j}" for j in range(64)])
    each = (tracemalloc.get_traced_memory()[0] - before) / 6_400
    tracemalloc.stop()
    assert each < 2_000
