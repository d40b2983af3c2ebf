"""The forecaster of a bundle: features, one run of its graph a batch, curves; and the state that completions feed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from endcast.errors import BundleError, UnknownNameError
from endcast.forecaster import ForecastStream
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.hazard_graph import load_graph
from endcast.predictors.known import known_inputs
from endcast.predictors.onnx_stream import AtAdmission, OnnxStream
from endcast.predictors.output_model import output_model, output_reader
from endcast.predictors.recalibration import Recalibration
from endcast.predictors.streams import remaining_cap
from endcast.predictors.text.output_reader import OutputReader
from endcast.survival import CurveTable, FloatArray, Forecast, IntArray, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request


class OnnxForecaster:
    """A ``Forecaster`` for one bundle. One thread at a time.

    ``aborts``: whether curves carry the chance that the client leaves (a slot frees on any end: routers want it;
    evaluation of natural ends does not). ``recalibrate``: whether ``observe`` also corrects hazards. ``remembers``:
    whether it starts with what training remembered, or with an empty memory. ``reads``: whether it reads outputs, where
    the bundle can.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        aborts: bool = True,
        recalibrate: bool = True,
        remembers: bool = True,
        reads: bool = True,
    ) -> None:
        self._bundle = bundle
        self._pipeline = _pipeline(bundle)
        if remembers:
            self._pipeline.load(bundle.history)
        self._graph = load_graph(bundle.admission, self._pipeline.width)
        self._output = output_model(bundle) if reads else None
        self._recalibration = Recalibration(bundle.admission.grid)
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
    def refresh_every(self) -> int | None:
        """Tokens after which a running request deserves a new forecast; ``None`` if the output is not read."""
        return None if self._output is None else self._output.every

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
            known=[
                {**known_inputs(landmark.request, self._pipeline), "output": self._can_read(landmark)}
                for landmark in landmarks
            ],
            state_version=self.state_version,
        )

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays. A stream keeps what was known at its admission, and has read its text so far."""
        admission, columns, row = self._admissions(landmarks)
        generated = np.array([item.generated_tokens for item in landmarks], dtype=np.int64)
        cap = remaining_cap([item.request for item in landmarks], generated)
        table, row, position = self._corrected(landmarks, admission, columns, row, generated)
        return SurvivalBatch(self._with_aborts(table), row, position, cap, horizon)

    def _admissions(self, items: Sequence[Landmark | ForecastStream]) -> tuple[CurveTable, Float32Array, IntArray]:
        """Admission curves and request columns of these items, and which row is whose: landmarks of one request share one."""
        requests = {id(item.request): item.request for item in items if isinstance(item, Landmark)}
        fresh, columns, _ = self._admit(list(requests.values()))
        row_of = {key: row for row, key in enumerate(requests)}
        streams = [self._own(item) for item in items if not isinstance(item, Landmark)]
        if not streams:
            return fresh, columns, np.array([row_of[id(item.request)] for item in items], dtype=np.int64)
        table = _joined([fresh, *(stream.admission.curve for stream in streams)])
        columns = np.concatenate([columns, np.stack([stream.admission.columns for stream in streams])])
        stream_rows = iter(range(len(requests), len(requests) + len(streams)))
        rows = [row_of[id(item.request)] if isinstance(item, Landmark) else next(stream_rows) for item in items]
        return table, columns, np.array(rows, dtype=np.int64)

    def _own(self, stream: ForecastStream) -> OnnxStream:
        if not isinstance(stream, OnnxStream) or stream.bundle != self.bundle:
            raise BundleError("the stream was opened by another forecaster", hint="Open it with this one")
        return stream

    def _corrected(
        self,
        items: Sequence[Landmark | ForecastStream],
        admission: CurveTable,
        columns: Float32Array,
        row: IntArray,
        generated: IntArray,
    ) -> tuple[CurveTable, IntArray, IntArray]:
        """The table of admission curves, then of those corrected by the text so far; each item's row and position."""
        if self._output is None:
            return admission, row, generated
        made = {i: item.made for i, item in enumerate(items) if isinstance(item, OnnxStream) and item.made}
        readers = self._readers([None if i in made else item for i, item in enumerate(items)])
        if not made and not readers:
            return admission, row, generated
        row, position = row.copy(), generated.copy()
        tables, size = [admission], len(admission.log_tail)
        if readers:
            index = np.array(list(readers), dtype=np.int64)
            at = row[index]
            new = self._output.curves(admission, at, generated[index], list(readers.values()), columns[at])
            row[index], position[index] = size + np.arange(len(index)), 0
            tables.append(new)
            size += len(index)
            _remember(items, readers, new)
        for i, curve in made.items():
            row[i], position[i] = size, 0
            tables.append(curve)
            size += 1
        return _joined(tables), row, position

    def _readers(self, items: Sequence[Landmark | ForecastStream | None]) -> dict[int, OutputReader]:
        """Who has read the text so far, by item; those that have none are left out."""
        readers: dict[int, OutputReader] = {}
        for i, item in enumerate(items):
            if isinstance(item, OnnxStream) and item.reader is not None:
                readers[i] = item.reader
            elif isinstance(item, Landmark) and self._can_read(item):
                readers[i] = output_reader(item.request)
                readers[i].append(item.output or "")
        return readers

    def _can_read(self, landmark: Landmark) -> bool:
        return self._output is not None and bool(landmark.output) and landmark.generated_tokens > 0

    def _admit(self, requests: Sequence[Request]) -> tuple[CurveTable, Float32Array, FloatArray]:
        """Curves (n, ·) from the first token on, request columns (n, f), hazards (n, K) before recalibration."""
        features = self._pipeline.features(requests)
        hazards = self._hazards(features)
        curves = self._bundle.admission.grid.curves(self._recalibration.apply(hazards))
        return curves, features[:, : len(self._pipeline.columns)], hazards

    def _hazards(self, features: Float32Array) -> FloatArray:
        if not len(features):
            return np.empty((0, len(self._bundle.admission.grid)))
        return self._graph.hazards(features).astype(np.float64)

    def _with_aborts(self, table: CurveTable) -> CurveTable:
        if self._abort_hazard == 0.0:
            return table
        stays = np.log1p(-self._abort_hazard)
        return CurveTable(table.edges, table.log_survival + stays * table.edges, table.log_tail + stays)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Take in finished requests, in the order in which they finished."""
        for completion in completions:
            if self._recalibrate and _tells_of_hazards(completion):
                (hazard,) = self._hazards(self._pipeline.features([completion.request]))
                self._take_in(completion, hazard)
            else:
                self._pipeline.observe([completion])

    def _take_in(self, completion: Completion, hazard: FloatArray) -> None:
        """Take in a finished request that had been given ``hazard`` (K,)."""
        if self._recalibrate and _tells_of_hazards(completion):
            self._recalibration.observe(hazard, completion.output_tokens, completion.end is EndReason.STOP)
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
        recalibration = Recalibration(self._bundle.admission.grid)
        recalibration.load(decoded.recalibration)
        pipeline = _pipeline(self._bundle)
        pipeline.load(decoded.history)
        self._recalibration, self._pipeline = recalibration, pipeline

    def open(self, request: Request) -> OnnxStream:
        """Begin a stream with the history that the request sees now."""
        curve, columns, hazards = self._admit([request])
        known = known_inputs(request, self._pipeline)
        admission = AtAdmission(curve, hazards[0], columns[0], known, self.state_version)
        reader = None if self._output is None else output_reader(request)
        return OnnxStream(self, request, admission, reader, self._take_in)


class _State(msgspec.Struct):
    bundle: str
    history: bytes
    recalibration: object


def _tells_of_hazards(completion: Completion) -> bool:
    return completion.output_tokens > 0 and completion.end is not EndReason.ERROR


def _joined(tables: Sequence[CurveTable]) -> CurveTable:
    """One table of tables on the same edges."""
    if len(tables) == 1:
        return tables[0]
    return CurveTable(
        tables[0].edges,
        np.concatenate([table.log_survival for table in tables]),
        np.concatenate([table.log_tail for table in tables]),
    )


def _remember(
    items: Sequence[Landmark | ForecastStream],
    readers: Mapping[int, OutputReader],
    curves: CurveTable,
) -> None:
    """Keep streams' new curves until more text comes."""
    for place, i in enumerate(readers):
        stream = items[i]
        if isinstance(stream, OnnxStream):
            one = slice(place, place + 1)
            stream.made = CurveTable(curves.edges, curves.log_survival[one], curves.log_tail[one])


def _pipeline(bundle: Bundle) -> FeaturePipeline:
    try:
        pipeline = FeaturePipeline(bundle.manifest.feature_groups, bundle.admission.grid)
    except UnknownNameError as error:
        raise BundleError(f"the bundle needs an {error.message}", hint="Train it again with this endcast") from None
    listed = (tuple(bundle.manifest.columns), tuple(bundle.manifest.interval_columns))
    if listed != (pipeline.columns, pipeline.interval_columns):
        raise BundleError("the bundle was made with other feature columns than this endcast has", hint="Train it again")
    pipeline.load_learned(bundle.learned)
    return pipeline


def load_forecaster(path: Path | str, *, aborts: bool = True, recalibrate: bool = True) -> OnnxForecaster:
    """The forecaster of the bundle in the folder ``path``; ``BundleError`` if it must be refused."""
    return OnnxForecaster(read_bundle(path), aborts=aborts, recalibrate=recalibrate)
