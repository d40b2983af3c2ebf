"""The forecaster of a bundle: features, one run of its graph a batch, curves; and the state that completions feed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

from endcast.errors import BundleError, UnknownNameError
from endcast.forecaster import ForecastStream
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.known import known_inputs
from endcast.predictors.recalibration import Recalibration
from endcast.predictors.streams import CountedStream, remaining_cap
from endcast.survival import CurveTable, FloatArray, Forecast, IntArray, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request

#: onnxruntime raises a class of its own for each kind of damage.
GRAPH_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
#: How far a graph's answer may lie from its golden one.
GOLDEN_TOLERANCE = 1e-5


class HazardGraph:
    """A bundle's graph in onnxruntime, on one thread; features (n, F) in, hazards (n, K) out."""

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except GRAPH_ERRORS as error:
            raise BundleError(f"the bundle's graph cannot be loaded: {error!s:.200}") from None

    def hazards(self, features: Float32Array) -> Float32Array:
        """(n, K), in [0, 1]."""
        (hazards,) = self._session.run(["hazards"], {"features": features})
        out: Float32Array = hazards
        return out


class OnnxForecaster:
    """A ``Forecaster`` for one bundle. One thread at a time.

    ``aborts``: whether curves carry the chance that the client leaves (a slot frees on any end: routers want it;
    evaluation of natural ends does not). ``recalibrate``: whether ``observe`` also corrects hazards. ``remembers``:
    whether it starts with what training remembered, or with an empty memory.
    """

    def __init__(
        self, bundle: Bundle, *, aborts: bool = True, recalibrate: bool = True, remembers: bool = True
    ) -> None:
        self._bundle = bundle
        self._graph = HazardGraph(bundle.model)
        _check_golden(self._graph, bundle)
        self._pipeline = _pipeline(bundle)
        if remembers:
            self._pipeline.load(bundle.history)
        _check_columns(self._pipeline, bundle)
        self._recalibration = Recalibration(bundle.grid)
        self._recalibrate = recalibrate
        self._abort_hazard = bundle.manifest.abort_hazard if aborts else 0.0

    @property
    def bundle(self) -> str:
        """The bundle's id, ``sha256:…``."""
        return self._bundle.id

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The bundle's manifest, as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self._bundle.manifest)
        return plain

    @property
    def state_version(self) -> int:
        """Completions taken in, those of training included."""
        return self._pipeline.observed

    @property
    def kaplan_meier(self) -> FloatArray:
        """(T+1,), log survival of the training part: the baseline to evaluate against."""
        return self._bundle.kaplan_meier

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, from the state as it is now."""
        return Forecast.from_batch(
            self.forecast_batch(landmarks, 0),
            bundle=self.bundle,
            generated=[landmark.generated_tokens for landmark in landmarks],
            known=[known_inputs(landmark.request, self._pipeline) for landmark in landmarks],
            state_version=self.state_version,
        )

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays. A stream's curve is the one made when it was opened."""
        table, row = self._tabled(landmarks)
        generated = np.array([item.generated_tokens for item in landmarks], dtype=np.int64)
        cap = remaining_cap([item.request for item in landmarks], generated)
        return SurvivalBatch(table, row, generated, cap, horizon)

    def _tabled(self, items: Sequence[Landmark | ForecastStream]) -> tuple[CurveTable, IntArray]:
        """The curves of these items, and which row is whose: landmarks of one request share one."""
        requests = {id(item.request): item.request for item in items if isinstance(item, Landmark)}
        fresh = self._curves(list(requests.values()))
        row_of = {key: row for row, key in enumerate(requests)}
        streams = [item for item in items if not isinstance(item, Landmark)]
        curves = [fresh, *(self._curve_of(stream) for stream in streams)]
        table = CurveTable(
            fresh.edges,
            np.concatenate([curve.log_survival for curve in curves]),
            np.concatenate([curve.log_tail for curve in curves]),
        )
        stream_rows = iter(range(len(requests), len(requests) + len(streams)))
        rows = [row_of[id(item.request)] if isinstance(item, Landmark) else next(stream_rows) for item in items]
        return table, np.array(rows, dtype=np.int64)

    def _curve_of(self, stream: ForecastStream) -> CurveTable:
        if not isinstance(stream, OnnxStream) or stream.bundle != self.bundle:
            raise BundleError("the stream was opened by another forecaster", hint="Open it with this one")
        return stream.curve

    def _curves(self, requests: Sequence[Request]) -> CurveTable:
        """(n, ·), one curve a request from its first token on."""
        hazards = self._recalibration.apply(self._hazards(requests))
        table = self._bundle.grid.curves(hazards)
        if self._abort_hazard == 0.0:
            return table
        stays = np.log1p(-self._abort_hazard)
        return CurveTable(table.edges, table.log_survival + stays * table.edges, table.log_tail + stays)

    def _hazards(self, requests: Sequence[Request]) -> FloatArray:
        if not requests:
            return np.empty((0, len(self._bundle.grid)))
        return self._graph.hazards(self._pipeline.features(requests)).astype(np.float64)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Take in finished requests, in the order in which they finished."""
        for completion in completions:
            if self._recalibrate and completion.output_tokens > 0 and completion.end is not EndReason.ERROR:
                (hazard,) = self._hazards([completion.request])
                ended = completion.end is EndReason.STOP
                self._recalibration.observe(hazard, completion.output_tokens, ended)
            self._pipeline.observe([completion])

    def snapshot(self) -> bytes:
        """Memory and recalibration as MessagePack, their digest in front."""
        state = msgspec.msgpack.encode(_State(self.bundle, self._pipeline.dump(), self._recalibration.dump()))
        return hashlib.sha256(state).digest() + state

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot of this bundle; on error nothing changes."""
        size = hashlib.sha256().digest_size
        if hashlib.sha256(state[size:]).digest() != state[:size]:
            raise BundleError("the snapshot is damaged: its digest differs")
        try:
            decoded = msgspec.msgpack.decode(state[size:], type=_State)
        except msgspec.DecodeError as error:
            raise BundleError(f"the snapshot is damaged: {error}") from None
        if decoded.bundle != self.bundle:
            raise BundleError(f"the snapshot is of bundle {decoded.bundle:.80}, not of {self.bundle}")
        recalibration = Recalibration(self._bundle.grid)
        recalibration.load(decoded.recalibration)
        pipeline = _pipeline(self._bundle)
        pipeline.load(decoded.history)
        self._recalibration, self._pipeline = recalibration, pipeline

    def open(self, request: Request) -> OnnxStream:
        """Begin a stream with the history that the request sees now."""
        return OnnxStream(self, request, self._curves([request]), known_inputs(request, self._pipeline))


class OnnxStream(CountedStream):
    """A running generation whose curve was made at its admission, read further on as tokens come."""

    def __init__(
        self, forecaster: OnnxForecaster, request: Request, curve: CurveTable, known: Mapping[str, bool]
    ) -> None:
        super().__init__(forecaster, request)
        self.bundle = forecaster.bundle
        self.curve = curve
        self._known = known
        self._state_version = forecaster.state_version

    def forecast(self) -> Forecast:
        """The forecast from where it stands now, on the curve of its admission."""
        (forecast,) = Forecast.from_batch(
            self._forecaster.forecast_batch([self], 0),
            bundle=self.bundle,
            generated=[self.generated_tokens],
            known=[self._known],
            state_version=self._state_version,
        )
        return forecast


class _State(msgspec.Struct):
    bundle: str
    history: bytes
    recalibration: object


def _check_golden(graph: HazardGraph, bundle: Bundle) -> None:
    try:
        hazards = graph.hazards(bundle.golden_features)
    except GRAPH_ERRORS as error:
        raise BundleError(f"the bundle's graph does not run: {error!s:.200}") from None
    if hazards.shape != bundle.golden_hazards.shape or hazards.shape[1] != len(bundle.grid):
        raise BundleError("the bundle's graph gives hazards of another shape than its golden output")
    off = float(np.abs(hazards - bundle.golden_hazards).max(initial=0.0))
    if not off <= GOLDEN_TOLERANCE:
        raise BundleError(
            f"the bundle's graph is {off:.2g} off its golden output here", hint="Train it on this machine's versions"
        )


def _pipeline(bundle: Bundle) -> FeaturePipeline:
    try:
        return FeaturePipeline(bundle.manifest.feature_groups, bundle.grid)
    except UnknownNameError as error:
        raise BundleError(f"the bundle needs an {error.message}", hint="Train it again with this endcast") from None


def _check_columns(pipeline: FeaturePipeline, bundle: Bundle) -> None:
    listed = (tuple(bundle.manifest.columns), tuple(bundle.manifest.interval_columns))
    if listed != (pipeline.columns, pipeline.interval_columns) or bundle.golden_features.shape[1] != pipeline.width:
        raise BundleError("the bundle was made with other feature columns than this endcast has", hint="Train it again")


def load_forecaster(path: Path | str, *, aborts: bool = True, recalibrate: bool = True) -> OnnxForecaster:
    """The forecaster of the bundle in the folder ``path``; ``BundleError`` if it must be refused."""
    return OnnxForecaster(read_bundle(path), aborts=aborts, recalibrate=recalibrate)
