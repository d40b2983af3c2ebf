"""Forecasts that read the output so far: streams, whole texts and the graphs alone say the same, whatever the output is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import thread_time

import msgspec
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import BundleError, Completion, EndReason, Forecast, ForecastStream, InputError, Landmark, Request
from endcast.datasets.synth import SynthLog
from endcast.predictors import landmark_kernels, tree_block_kernel, tree_kernel
from endcast.predictors.bundle import Bundle, Graph, read_bundle
from endcast.predictors.features.pipeline import FeaturePipeline, join
from endcast.predictors.grid import Q_MAX, Q_MIN
from endcast.predictors.hazard_graph import HazardGraph
from endcast.predictors.landmarks import EVERY
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.predictors.onnx_stream import OnnxStream
from endcast.predictors.output_columns import OWNER, SCORE_HORIZONS, output_columns, tail_grams, text_row
from endcast.predictors.output_model import OutputModel, output_reader
from endcast.predictors.text import tail_kernel
from endcast.predictors.text.ngrams import hashed_tail, hashed_tail_of_any
from endcast.predictors.text.output_reader import OutputReader
from endcast.survival import HAZARD_MAX, HAZARD_MIN, Float32Array, IntArray, SurvivalBatch
from endcast.training.alignment import written
from endcast.training.train import Trained

HORIZONS = (1, 16, 64, 80, 128, 700)
QUANTILES = (0.1, 0.5, 0.9)
REQUEST = Request(
    request_id="r",
    prompt="List 7 rivers, please.",
    prompt_tokens=30,
    tenant="chat-1",
    model="atlas-70b",
    max_tokens=2_000,
)
TEXT = "Sure! Here are some rivers:\n\n1. **Nile**: long.\n2. **Rhine**: wide.\n\nI hope this helps. Let me know"
#: Outputs that no log is made of.
ODD_OUTPUTS = (
    "x" * 200_000,
    "\ufffd\ufffd valid \ufffd" * 40,
    "\U0001f469\u200d\U0001f680\U0001f3fd e\u0301\u0323\u0301\u0301\u0301 \u200f\u05e9\u05dc\u05d5\u05dd \U0001f1e9\U0001f1ea\ufe0f" * 30,
    "\ud800 alone \udfff\udfff" * 20,
    "and again, and again, " * 18_000,
    "\n" * 5_000,
    "\x00\x1b[0m\r\n\t" * 500,
    "<think>" * 900 + "```" * 900 + "{[(" * 900,
    "第一，" * 3_000 + "总之",
    "a",
    " ",
)  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """A running request, and in which chunks its text came: each with the tokens so far."""

    request: Request
    chunks: tuple[tuple[str, int], ...]

    @property
    def landmark(self) -> Landmark:
        return Landmark(
            request=self.request,
            generated_tokens=max((tokens for _, tokens in self.chunks), default=0),
            output="".join(text for text, _ in self.chunks),
        )

    def stream(self, forecaster: OnnxForecaster) -> OnnxStream:
        stream = forecaster.open(self.request)
        for text, tokens in self.chunks:
            stream.append(text, tokens)
        return stream


def chunked(text: str, tokens: int, rng: random.Random) -> tuple[tuple[str, int], ...]:
    """``text`` cut at some places, tokens told as it goes."""
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.choice([0, 1, 3, 12])))
    ends = [*cuts, len(text)]
    starts = [0, *cuts]
    return tuple(
        (text[a:b], tokens if b == len(text) else tokens * b // len(text)) for a, b in zip(starts, ends, strict=True)
    )


@pytest.fixture(scope="module")
def draws(small_log: SynthLog, odd_requests: Sequence[Request]) -> list[Draw]:
    """Some of the log's requests and odd ones, at some place of their own output, of another's or of an odd one."""
    rng = random.Random(5)
    trace = small_log.trace
    requests, outputs = list(trace.requests()), trace.table.column("output").to_pylist()
    out = []
    for i in range(140):
        row = rng.randrange(len(requests))
        request = requests[row] if i % 3 else rng.choice(odd_requests)
        text, length = outputs[row], int(trace.output_tokens[row])
        tokens = rng.randrange(0, max(length, 1))
        upto = written(len(text), tokens, max(length, 1))
        drawn = text[:upto] if i % 5 else rng.choice([*ODD_OUTPUTS, "", TEXT])[:3_000]
        out.append(Draw(request, chunked(drawn, tokens, rng)))
    return out


@pytest.fixture(scope="module")
def reader_of_outputs(reading: Trained) -> OnnxForecaster:
    """The forecaster of the bundle that reads outputs; nobody lets it observe anything."""
    return load_forecaster(reading.path)


@pytest.fixture
def observing(reading: Trained) -> OnnxForecaster:
    """The same, loaded anew for each test."""
    return load_forecaster(reading.path)


class ByHand:
    """Forecasts with nothing but a bundle's numbers, onnxruntime and loops over single tokens."""

    def __init__(self, bundle: Bundle) -> None:
        assert bundle.output is not None and bundle.manifest.output is not None
        self.bundle, self.output = bundle, bundle.output
        self.pipeline = FeaturePipeline(bundle.manifest.feature_groups, bundle.admission.grid)
        self.pipeline.load(bundle.history)
        self.pipeline.load_learned(bundle.learned)
        self.sessions = {
            id(graph): onnxruntime.InferenceSession(graph.model) for graph in (bundle.admission, self.output)
        }

    def hazards(self, graph: Graph, vector: Sequence[float]) -> list[float]:
        (hazards,) = self.sessions[id(graph)].run(None, {"features": np.array([vector], dtype=np.float32)})
        return [min(max(float(q), Q_MIN), Q_MAX) for q in hazards[0]]

    def admission(self, vector: Sequence[float]) -> Callable[[int], float]:
        """log P(o > t given o ≥ t) of token t ≥ 1: hazards of intervals, inside them proportional to the pooled ones."""
        grid = self.bundle.admission.grid
        edges, fine, base = grid.edges.tolist(), grid.fine.tolist(), grid.base.tolist()
        lost = [math.log1p(-q) for q in self.hazards(self.bundle.admission, vector)]
        stays = [0.0]
        for start, stop in pairwise(fine):
            k = max(k for k in range(len(lost)) if edges[k] <= start)
            whole = base[edges[k]] - base[edges[k + 1]]
            share = (base[start] - base[stop]) / whole if whole > 1e-12 else (stop - start) / (edges[k + 1] - edges[k])
            stays += [lost[k] * share / (stop - start)] * (stop - start)
        tail = min(max(lost[-1] / (edges[-1] - edges[-2]), math.log1p(-HAZARD_MAX)), math.log1p(-HAZARD_MIN))
        return lambda token: stays[token] if token < len(stays) else tail

    def scores(self, text: str, request: Request) -> list[float]:
        """The two scores of the last words."""
        reader = output_reader(request)
        reader.append(text)
        grams = hashed_tail_of_any(reader.tail(), reader.line_head())
        table, bias = (self.bundle.learned[OWNER][name].tolist() for name in ("table", "bias"))
        return [
            bias[i] + sum(table[i][gram] for gram in grams.tolist()) / math.sqrt(len(grams))
            for i in range(len(SCORE_HORIZONS))
        ]

    def stays(self, landmark: Landmark) -> Iterator[float]:
        """log P(R > f given R ≥ f), f = 1, 2, …, endless: a client may leave at each token as well."""
        vector = [float(value) for value in self.pipeline.features([landmark.request])[0]]
        before, e = self.admission(vector), landmark.generated_tokens
        leaves = math.log1p(-self.bundle.manifest.abort_hazard)
        if not landmark.output or not e:
            token = e
            while True:
                token += 1
                yield before(token) + leaves
        least = math.log1p(-HAZARD_MIN)
        edges, fine = self.output.grid.edges.tolist(), self.bundle.admission.grid.fine.tolist()
        given = [sum(before(e + f) + least for f in range(a + 1, b + 1)) for a, b in pairwise(edges)]
        odds = []
        for lost in given:
            q = min(max(-math.expm1(lost), Q_MIN), Q_MAX)
            odds.append(math.log(q) - math.log1p(-q))
        reader = output_reader(landmark.request)
        reader.append(landmark.output)
        text = [*reader.features(), *self.scores(landmark.output, landmark.request), math.log1p(e)]
        hazards = self.hazards(self.output, [*text, *odds])
        scales = [math.log1p(-q) / lost for q, lost in zip(hazards, given, strict=True)]
        for start, stop in pairwise(fine):
            scale = scales[max(k for k in range(len(scales)) if edges[k] <= start)]
            whole = sum(before(e + f) + least for f in range(start + 1, stop + 1))
            yield from [scale * whole / (stop - start) + leaves] * (stop - start)
        tail = min(max(scales[-1] * before(e + fine[-1] + 10**9), math.log1p(-HAZARD_MAX)), least)
        while True:
            yield tail + leaves


def check_by_hand(told: Forecast, stays: Iterator[float], cap: int | None, tail_from: int) -> None:
    """A forecast against single tokens: to 1e-6, of tokens relatively."""
    survival, log = [1.0], 0.0
    for _ in range(tail_from):
        log += next(stays)
        survival.append(math.exp(log))
    if cap is not None:
        survival = [value if h < cap else 0.0 for h, value in enumerate(survival)]
    for h in HORIZONS:
        assert told.p_end(h) == pytest.approx(1.0 - survival[h], abs=1e-6)
        assert told.expected_within(h) == pytest.approx(math.fsum(survival[:h]), rel=1e-6, abs=1e-6)
    tail = math.exp(next(stays))
    if cap is None or cap > tail_from:  # S(T), then ever the same share of it
        more = 1.0 / (1.0 - tail) if cap is None else (1.0 - tail ** (cap - tail_from)) / (1.0 - tail)
        assert told.expected_remaining == pytest.approx(math.fsum(survival[:-1]) + survival[-1] * more, rel=1e-6)
    else:
        assert told.expected_remaining == pytest.approx(math.fsum(survival), rel=1e-6, abs=1e-6)
    for q in QUANTILES:
        r = int(told.quantile(q))
        if r < len(survival) and (cap is None or r < cap):
            assert 1.0 - survival[r] >= q - 1e-6 and (r <= 1 or 1.0 - survival[r - 1] < q + 1e-6)


def figures(forecast: Forecast) -> list[float]:
    """What a forecast says, probabilities first."""
    return [
        *(forecast.p_end(h) for h in HORIZONS),
        *(forecast.survival(h) for h in (0, 5, 2_000)),
        *(forecast.expected_within(h) for h in HORIZONS),
        forecast.expected_remaining,
        *(forecast.quantile(q) for q in QUANTILES),
    ]


def test_streams_landmarks_and_graphs_alone_agree(
    reading: Trained, reader_of_outputs: OnnxForecaster, draws: Sequence[Draw]
) -> None:
    by_hand = ByHand(read_bundle(reading.path))
    top = int(by_hand.bundle.admission.grid.fine[-1])
    told = reader_of_outputs.forecast([draw.landmark for draw in draws])
    read = 0
    for draw, whole in zip(draws, told, strict=True):
        streamed = draw.stream(reader_of_outputs).forecast()
        assert figures(streamed) == pytest.approx(figures(whole), rel=1e-6, abs=1e-6)
        assert streamed.known == whole.known and streamed.generated_tokens == whole.generated_tokens
        read += whole.known["output"]
        cap = draw.request.cap
        left = None if cap is None else max(cap - whole.generated_tokens, 0)
        check_by_hand(whole, by_hand.stays(draw.landmark), left, max(top, HORIZONS[-1]))
    assert len(draws) - 40 < read < len(draws)


def test_what_is_read_matters(reader_of_outputs: OnnxForecaster, draws: Sequence[Draw]) -> None:
    """The agreement above is not that of forecasters that read nothing."""
    told = reader_of_outputs.forecast([draw.landmark for draw in draws])
    without = reader_of_outputs.forecast(
        [Landmark(request=draw.request, generated_tokens=draw.landmark.generated_tokens) for draw in draws]
    )
    moved = [abs(a.p_end(64) - b.p_end(64)) for a, b in zip(told, without, strict=True) if a.known["output"]]
    assert np.median(moved) > 0.005 and max(moved) > 0.1


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=8), tokens=st.integers(1, 60))
def test_chunks_do_not_matter(reader_of_outputs: OnnxForecaster, cuts: list[int], tokens: int) -> None:
    ends = [*sorted(cuts), len(TEXT)]
    stream = reader_of_outputs.open(REQUEST)
    for start, stop in zip([0, *ends], ends, strict=False):
        stream.append(TEXT[start:stop], tokens)
    (whole,) = reader_of_outputs.forecast([Landmark(request=REQUEST, generated_tokens=tokens, output=TEXT)])
    assert figures(stream.forecast()) == figures(whole)


def test_columns_are_those_of_training(reading: Trained, draws: Sequence[Draw]) -> None:
    """The vector that the graph is given is the one that training assembles, column by column."""
    bundle = read_bundle(reading.path)
    given: list[np.ndarray] = []

    class Recording(HazardGraph):
        def hazards(self, features: Float32Array, first: IntArray | None = None) -> Float32Array:
            given.append(features.copy())
            return super().hazards(features, first)

    forecaster = load_forecaster(reading.path)
    assert forecaster._output is not None and bundle.output is not None
    forecaster._output._graph = Recording(bundle.output.model)
    for draw in draws[:20]:
        landmark = draw.landmark
        if not landmark.output or not landmark.generated_tokens:
            continue
        forecaster.forecast([landmark])
        reader = output_reader(draw.request)
        reader.append(landmark.output)
        text = text_row(reader, forecaster._output._scores)[None, :]
        logits = given[-1][:, -len(bundle.output.grid) :].astype(np.float64)
        columns = output_columns(text, np.array([landmark.generated_tokens]), logits)
        np.testing.assert_allclose(given[-1], join(columns), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "landmark",
    [
        Landmark(request=REQUEST, generated_tokens=50),
        Landmark(request=REQUEST, generated_tokens=50, output=""),
        Landmark(request=REQUEST, generated_tokens=0, output=TEXT),
        Landmark(request=REQUEST),
    ],
    ids=["no text at hand", "empty", "no token", "at admission"],
)
def test_without_text_it_is_the_forecast_at_admission(reading: Trained, landmark: Landmark) -> None:
    forecaster = load_forecaster(reading.path)
    blind = OnnxForecaster(read_bundle(reading.path), reads=False)
    (told,) = forecaster.forecast([landmark])
    admitted = forecaster.forecast_batch([Landmark(request=REQUEST)], 0).advance(landmark.generated_tokens)
    (expected,) = blind.forecast([landmark])
    assert figures(told) == pytest.approx(figures(expected), rel=1e-12) and not told.known["output"]
    np.testing.assert_array_equal(told.batch.with_horizon(500).survival, admitted.with_horizon(500).survival)
    stream = forecaster.open(REQUEST)
    stream.append(landmark.output or "", landmark.generated_tokens)
    assert figures(stream.forecast()) == figures(told) and stream.forecast().known == told.known


def test_text_that_comes_late_is_read(reader_of_outputs: OnnxForecaster) -> None:
    """Engines hold text back, or count after they send."""
    stream = reader_of_outputs.open(REQUEST)
    stream.append(TEXT, 0)
    assert not stream.forecast().known["output"]
    stream.append("", 25)
    (expected,) = reader_of_outputs.forecast([Landmark(request=REQUEST, generated_tokens=25, output=TEXT)])
    assert figures(stream.forecast()) == figures(expected) and stream.forecast().known == expected.known


def test_who_does_not_read_ignores_text(reading: Trained, boosted: Trained) -> None:
    for forecaster in (load_forecaster(boosted.path), OnnxForecaster(read_bundle(reading.path), reads=False)):
        assert forecaster.refresh_every is None
        stream = forecaster.open(REQUEST)
        stream.append(TEXT, 30)
        (told,) = forecaster.forecast([Landmark(request=REQUEST, generated_tokens=30, output=TEXT)])
        (expected,) = forecaster.forecast([Landmark(request=REQUEST, generated_tokens=30)])
        assert figures(told) == figures(expected) == pytest.approx(figures(stream.forecast()), rel=1e-12)
        assert not told.known["output"] and not stream.forecast().known["output"]
    assert load_forecaster(reading.path).refresh_every == EVERY


def test_a_blind_sibling_ignores_what_a_stream_has_read(reading: Trained, reader_of_outputs: OnnxForecaster) -> None:
    stream = reader_of_outputs.open(REQUEST)
    stream.append(TEXT, 30)
    stream.forecast()
    blind = OnnxForecaster(read_bundle(reading.path), reads=False)
    expected = blind.forecast_batch([Landmark(request=REQUEST, generated_tokens=30)], 80)
    np.testing.assert_array_equal(blind.forecast_batch([stream], 80).survival, expected.survival)


class Counting(HazardGraph):
    """A graph that counts the rows it is asked for, call by call."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self.calls: list[int] = []

    def hazards(self, features: Float32Array, first: IntArray | None = None) -> Float32Array:
        self.calls.append(len(features))
        return super().hazards(features, first)


@pytest.fixture
def counted(reading: Trained) -> tuple[OnnxForecaster, Counting]:
    """A forecaster, and its counted graph of the output."""
    bundle = read_bundle(reading.path)
    assert bundle.output is not None
    forecaster, graph = OnnxForecaster(bundle), Counting(bundle.output.model)
    assert forecaster._output is not None
    forecaster._output._graph = graph
    return forecaster, graph


def test_without_news_nothing_is_computed_again(counted: tuple[OnnxForecaster, Counting]) -> None:
    forecaster, graph = counted
    streams = [forecaster.open(REQUEST) for _ in range(3)]
    assert forecaster.forecast_batch(streams, 80).survival.shape == (3, 81) and graph.calls == []
    for stream in streams:
        stream.append(TEXT, 30)
    first = forecaster.forecast_batch(streams, 80).survival
    assert graph.calls == [3]
    np.testing.assert_array_equal(forecaster.forecast_batch(streams, 80).survival, first)
    assert figures(streams[1].forecast()) == figures(streams[0].forecast()) and graph.calls == [3]
    streams[1].append(" if", 31)
    mixed = forecaster.forecast_batch(streams, 80).survival
    assert graph.calls == [3, 1]
    np.testing.assert_array_equal(mixed[[0, 2]], first[[0, 2]])
    assert (mixed[1] != first[1]).any()
    streams[2].append("", 32)  # a token without text is news as well
    forecaster.forecast_batch(streams, 80)
    assert graph.calls == [3, 1, 1]


def test_nothing_is_compiled_while_somebody_waits(reading: Trained, draws: Sequence[Draw]) -> None:
    """Whatever forecasts need is compiled when the bundle is loaded."""
    forecaster = load_forecaster(reading.path)
    kernels = [
        kernel
        for module in (landmark_kernels, tree_kernel, tree_block_kernel, tail_kernel)
        for kernel in vars(module).values()
        if hasattr(kernel, "signatures")
    ]
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert sum(compiled) >= 6
    for i in range(0, len(draws), 7):
        items = [draw.landmark if k % 2 else draw.stream(forecaster) for k, draw in enumerate(draws[i : i + 7])]
        forecaster.forecast_batch(items, 80).expected_within  # noqa: B018
        forecaster.forecast_batch(items[:1], 80).p_end  # noqa: B018
    assert [len(kernel.signatures) for kernel in kernels] == compiled


def test_one_run_of_the_graph_a_batch(counted: tuple[OnnxForecaster, Counting], draws: Sequence[Draw]) -> None:
    forecaster, graph = counted
    items = [draw.landmark if i % 2 else draw.stream(forecaster) for i, draw in enumerate(draws)]
    forecaster.forecast_batch(items, 80)
    assert graph.calls == [sum(bool(draw.landmark.output and draw.landmark.generated_tokens) for draw in draws)]


def test_any_mixture_is_answered_as_one_by_one(reader_of_outputs: OnnxForecaster, draws: Sequence[Draw]) -> None:
    """Landmarks and streams, with text and without, of shared and of own requests, some asked before, in any order."""
    rng = random.Random(1)
    items: list[Landmark | ForecastStream] = []
    for i, draw in enumerate(draws[:60]):
        stream = draw.stream(reader_of_outputs)
        silent = Landmark(request=draw.request, generated_tokens=draw.landmark.generated_tokens)
        items += [draw.landmark, stream] if i % 2 else [silent, reader_of_outputs.open(draw.request), draw.landmark]
        if i % 4 == 1:
            stream.forecast()
    alone = [reader_of_outputs.forecast_batch([item], 80) for item in items]
    for _ in range(3):
        order = rng.sample(range(len(items)), len(items))
        batch = reader_of_outputs.forecast_batch([items[i] for i in order], 80)
        for place, i in enumerate(order):
            np.testing.assert_allclose(batch.survival[place], alone[i].survival[0], atol=1e-6)
            assert batch.expected_remaining[place] == pytest.approx(alone[i].expected_remaining[0], rel=1e-6)
            assert batch.cap[place] == alone[i].cap[0]
    assert len(reader_of_outputs.forecast_batch([], 80)) == 0 and reader_of_outputs.forecast([]) == []


def test_a_curve_kept_holds_no_others(reader_of_outputs: OnnxForecaster) -> None:
    streams = [reader_of_outputs.open(REQUEST) for _ in range(50)]
    for stream in streams:
        stream.append(TEXT, 30)
    reader_of_outputs.forecast_batch(streams, 80)
    made = streams[7].made
    assert made is not None and made.log_survival.base is None and len(made.log_survival) == 1


def test_caps_and_aborts_apply(reading: Trained) -> None:
    near = Request(request_id="r", prompt="List 7 rivers", prompt_tokens=90, max_tokens=500, context_limit=125)
    bundle = read_bundle(reading.path)
    staying = OnnxForecaster(bundle, aborts=False)
    leaving = OnnxForecaster(replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, abort_hazard=0.01)))
    for request, e in ((near, 30), (REQUEST, 30)):
        stay, leave = (
            f.forecast_batch([Landmark(request=request, generated_tokens=e, output=TEXT)], 80)
            for f in (staying, leaving)
        )
        assert stay.cap[0] == leave.cap[0] == (5 if request is near else 1_970)
        expected = stay.survival[0] * 0.99 ** np.arange(81)
        np.testing.assert_allclose(leave.survival[0], expected, atol=1e-6)
    (told,) = staying.forecast([Landmark(request=near, generated_tokens=30, output=TEXT)])
    assert told.p_end(4) < 1.0 == told.p_end(5) and told.expected_remaining <= 5.0
    (over,) = staying.forecast([Landmark(request=near, generated_tokens=40, output=TEXT)])
    assert over.p_end(0) == 1.0 and over.expected_remaining == 0.0


def test_a_snapshot_goes_with_streams_that_run(observing: OnnxForecaster, small_log: SynthLog) -> None:
    stream = observing.open(REQUEST)
    stream.append(TEXT, 30)
    before, state = figures(stream.forecast()), observing.snapshot()
    observing.observe(list(small_log.trace.take(np.arange(1_000, 1_080)).completions()))
    landmark = Landmark(request=REQUEST, generated_tokens=30, output=TEXT)
    (moved,) = observing.forecast([landmark])
    stream.append("", 30)  # its curve is made again, of what was known at admission
    assert figures(stream.forecast()) == before != figures(moved)
    observing.restore(state)
    (back,) = observing.forecast([landmark])
    assert figures(back) == before == figures(stream.forecast())


def test_a_stream_is_read_by_its_own_bundle_only(reader_of_outputs: OnnxForecaster, boosted: Trained) -> None:
    stream = reader_of_outputs.open(REQUEST)
    stream.append(TEXT, 30)
    with pytest.raises(BundleError, match="another forecaster"):
        load_forecaster(boosted.path).forecast_batch([stream], 80)
    with pytest.raises(BundleError, match="another forecaster"):
        reader_of_outputs.forecast_batch([load_forecaster(boosted.path).open(REQUEST)], 80)


def test_closing_feeds_what_was_served_at_admission_once(
    observing: OnnxForecaster, small_log: SynthLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[tuple[np.ndarray, int, bool, int]] = []
    monkeypatch.setattr(observing._recalibration, "observe", lambda *told, entered: fed.append((*told, entered)))
    remembered: list[Completion] = []
    monkeypatch.setattr(observing._pipeline, "observe", remembered.extend)
    stream = observing.open(REQUEST)
    served = stream.admission.hazards[0]
    (at_admission,) = observing._hazards(observing._pipeline.features([REQUEST]))
    np.testing.assert_array_equal(served, at_admission)
    stream.append(TEXT, 30)
    stream.forecast()
    for _ in range(2):
        stream.close(end="stop", output_tokens=44)
    assert len(fed) == 1 and fed[0][1:] == (44, True, 0)
    np.testing.assert_array_equal(fed[0][0], served)
    assert [(c.request, c.output_tokens, c.end) for c in remembered] == [(REQUEST, 44, EndReason.STOP)]
    assert stream.forecast().known["output"]  # a late question is still answered


@pytest.mark.parametrize("output", ODD_OUTPUTS, ids=lambda text: ascii(text[:12]))
def test_odd_outputs_are_forecast(reader_of_outputs: OnnxForecaster, output: str) -> None:
    began = thread_time()
    for tokens in (1, 40, len(output) // 4 + 1, 1_000_000):
        check_valid(reader_of_outputs, Request(request_id="nothing known"), output, tokens)
    check_valid(reader_of_outputs, REQUEST, output, 40)
    assert thread_time() - began < 30.0  # half a second; nothing backtracks


def test_counts_that_do_not_fit_the_text(reader_of_outputs: OnnxForecaster) -> None:
    for output, tokens in (("five!", 1_000_000), ("words " * 33_333, 1), ("x" * 200_000, 1), ("a", 100_000_000)):
        check_valid(reader_of_outputs, REQUEST, output, tokens)


def test_odd_requests_with_text(reader_of_outputs: OnnxForecaster, odd_requests: Sequence[Request]) -> None:
    prompts = [Request(request_id="one", prompt="x"), Request(request_id="half a million", prompt="Name 3 " * 71_428)]
    for request in (*odd_requests, *prompts):
        check_valid(reader_of_outputs, request, TEXT, 30)


def check_valid(forecaster: OnnxForecaster, request: Request, output: str, tokens: int) -> None:
    """A finite, proper forecast, from a stream as from a landmark."""
    stream = forecaster.open(request)
    for start in range(0, len(output), 997):
        stream.append(output[start : start + 997], tokens)
    landmark = Landmark(request=request, generated_tokens=tokens, output=output)
    batch = forecaster.forecast_batch([landmark, stream], 200)
    assert_proper(batch)
    (whole,), streamed = forecaster.forecast([landmark]), stream.forecast()
    assert figures(streamed) == pytest.approx(figures(whole), rel=1e-6, abs=1e-6)
    assert np.isfinite(figures(whole)).all() and whole.known["output"] and streamed.known["output"]


def assert_proper(batch: SurvivalBatch) -> None:
    survival = batch.survival
    assert np.isfinite(survival).all() and (np.diff(survival, axis=1) <= 0.0).all()
    assert (survival >= 0.0).all() and (survival <= 1.0).all()
    for figure in (batch.p_end, batch.expected_within, batch.expected_remaining, batch.quantile(0.999)):
        assert np.isfinite(figure).all() and (figure >= 0.0).all()


def test_an_output_that_loops_for_ever(reader_of_outputs: OnnxForecaster) -> None:
    """100,000 tokens of the same sentence, one by one: what is kept of it stays small, each forecast stays proper."""
    stream, sizes = reader_of_outputs.open(Request(request_id="loop", prompt="Go on")), []
    loop = "This goes on and on. "
    for token in range(1, 100_001):
        at = token * 4 % len(loop)
        stream.append((loop + loop)[at : at + 4], token)
        if token % 20_000 == 0:
            assert_proper(reader_of_outputs.forecast_batch([stream], 200))
            reader = stream.reader
            assert reader is not None
            sizes.append(len(reader._window) + len(reader._pending) + len(reader._lines.hashes) + len(stream._unread))
    assert max(sizes) < 3_000


def test_reading_goes_with_what_is_new(reader_of_outputs: OnnxForecaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream shows its reader each character once, however often it is asked for forecasts."""
    seen: list[str] = []
    append = OutputReader.append

    def watched(reader: OutputReader, text: str) -> None:
        seen.append(text)
        append(reader, text)

    monkeypatch.setattr(OutputReader, "append", watched)
    stream, text = reader_of_outputs.open(REQUEST), TEXT * 20
    for token, start in enumerate(range(0, len(text), 3), 1):
        stream.append(text[start : start + 3], token)
        if token % 7 == 0:
            stream.forecast()
    assert stream.reader is not None
    assert "".join(seen) == text


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "3", 10**12, None])
def test_a_wrong_count_changes_nothing(reader_of_outputs: OnnxForecaster, tokens: object) -> None:
    stream = reader_of_outputs.open(REQUEST)
    stream.append(TEXT, 30)
    before = figures(stream.forecast())
    with pytest.raises(InputError, match="generated_tokens"):
        stream.append(" and more", tokens)  # type: ignore[arg-type]
    assert stream.generated_tokens == 30 and figures(stream.forecast()) == before
    stream.append("", 30)
    assert figures(stream.forecast()) == before


@given(st.text(st.characters(max_codepoint=127), max_size=150), st.text(st.characters(max_codepoint=127), max_size=80))
def test_last_words_are_hashed_alike_in_any_script(tail: str, head: str) -> None:
    np.testing.assert_array_equal(hashed_tail(tail, head), hashed_tail_of_any(tail, head[:64]))
    np.testing.assert_array_equal(hashed_tail(tail, head, 31), hashed_tail_of_any(tail, head[:64], 31))


def test_tail_scores_know_the_last_words_only(reader_of_outputs: OnnxForecaster) -> None:
    output = reader_of_outputs._output
    assert isinstance(output, OutputModel)
    long, short = output.reader(REQUEST), output.reader(REQUEST)
    long.append("Some words that came before.\n\n" * 30 + TEXT * 2)
    short.append(TEXT * 2)
    np.testing.assert_array_equal(tail_grams(long), tail_grams(short))


def test_what_prompts_ask_for_is_remembered(reader_of_outputs: OnnxForecaster, draws: Sequence[Draw]) -> None:
    output = reader_of_outputs._output
    assert output is not None
    for request in {id(draw.request): draw.request for draw in draws}.values():
        for reader in (output.reader(request), output.reader(request), output_reader(request)):
            reader.append(TEXT)
            np.testing.assert_array_equal(reader.features()[:6], _first_six(request))


def _first_six(request: Request) -> list[float]:
    reader = output_reader(request)
    reader.append(TEXT)
    return reader.features()[:6]
