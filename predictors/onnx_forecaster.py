"""The forecaster of a bundle: features, one run of its graph a batch, curves; and the state that completions feed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from endcast.errors import BundleError, InputError, UnknownNameError
from endcast.forecaster import ForecastStream
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.gathered import Gathered, joined
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import load_graph
from endcast.predictors.known import known_inputs
from endcast.predictors.onnx_stream import AtAdmission, OnnxStream
from endcast.predictors.recalibration import Recalibration
from endcast.predictors.streams import remaining_cap
from endcast.predictors.text.output_reader import OutputReader
from endcast.survival import NO_CAP, CurveTable, FloatArray, Forecast, IntArray, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request

if TYPE_CHECKING:
    from endcast.predictors.output_model import OutputModel

_Item = Landmark | OnnxStream


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
        self._output = _output_model(bundle) if reads else None
        self._recalibration = Recalibration(bundle.admission.grid)
        self._recalibrate = recalibrate
        self._stays = float(np.log1p(-bundle.manifest.abort_hazard)) if aborts else 0.0
        self._stay_until = self._stays * bundle.admission.grid.fine

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
    def grid(self) -> IntervalGrid:
        """The grid of admission hazards."""
        return self._bundle.admission.grid

    @property
    def aborts(self) -> bool:
        """Whether forecasts carry the chance that the client leaves."""
        return self._stays < 0.0

    @property
    def kaplan_meier(self) -> FloatArray:
        """(T+1,), log survival of the training part: the baseline to evaluate against."""
        return self._bundle.kaplan_meier

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, from the state as it is now."""
        curves, admitted = self._curves(landmarks)
        return Forecast.from_batch(
            self._batch(landmarks, curves, 0),
            bundle=self.bundle,
            generated=[landmark.generated_tokens for landmark in landmarks],
            known=known_inputs(
                [landmark.request for landmark in landmarks],
                [self._can_read(landmark) for landmark in landmarks],
                self._pipeline,
            ),
            state_version=self.state_version,
            hazards=[] if admitted is None else [admitted.hazards[:, row] for row in admitted.row],
        )

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays. A stream keeps what was known at its admission, and has read its text so far."""
        items = [item if isinstance(item, Landmark) else self._own(item) for item in landmarks]
        return self._batch(items, self._curves(items)[0], horizon)

    def _batch(self, items: Sequence[_Item], curves: Gathered, horizon: int) -> SurvivalBatch:
        row, position = curves.places()
        generated = np.array([item.generated_tokens for item in items], dtype=np.int64)
        cap = remaining_cap([item.request for item in items], generated)
        table = curves.table(self._bundle.admission.grid.fine)
        return SurvivalBatch(self._with_aborts(table), row, position, cap, horizon)

    def _own(self, stream: ForecastStream) -> OnnxStream:
        if not isinstance(stream, OnnxStream) or stream.bundle != self.bundle:
            raise BundleError("the stream was opened by another forecaster", hint="Open it with this one")
        return stream

    def _curves(self, items: Sequence[_Item]) -> tuple[Gathered, _Admitted | None]:
        """Each item's curve: corrected by its text so far (streams keep it until more comes), else that of its admission;
        and the admissions of those whose curve was not kept, in order."""
        curves, output = Gathered(len(items)), self._output
        kept = {} if output is None else _kept(items)
        if kept:
            curves.add(joined(list(kept.values())), ((i, row, 0) for row, i in enumerate(kept)))
        anew = [i for i in range(len(items)) if i not in kept]
        if not anew:
            return curves, None
        admitted = self._admissions([items[i] for i in anew])
        admission, row = admitted.curve, admitted.row
        readers = {} if output is None else self._readers(output, [items[i] for i in anew])
        if len(readers) < len(anew):
            unread = [k for k in range(len(anew)) if k not in readers]
            curves.add(admission, ((anew[k], row[k], items[anew[k]].generated_tokens) for k in unread))
        if output is not None and readers:
            read = [items[anew[k]] for k in readers]
            at = np.array([row[k] for k in readers])
            generated = np.array([item.generated_tokens for item in read])
            new = output.curves(admission, at, generated, list(readers.values()))
            curves.add(new, ((anew[k], place, 0) for place, k in enumerate(readers)))
            _keep(read, new)
        return curves, admitted

    def _admissions(self, items: Sequence[_Item]) -> _Admitted:
        """Admissions of these items: landmarks of one request share one."""
        row_of: dict[int, int] = {}
        requests: list[Request] = []
        streams: list[AtAdmission] = []
        rows: list[int] = []
        for item in items:
            if isinstance(item, Landmark):
                row = row_of.setdefault(id(item.request), len(requests))
                if row == len(requests):
                    requests.append(item.request)
            else:
                row = -1 - len(streams)  # those of streams come after all others
                streams.append(item.admission)
            rows.append(row)
        if streams:
            rows = [row if row >= 0 else len(requests) - 1 - row for row in rows]
        tables = [stream.curve for stream in streams]
        hazards = [stream.hazards[:, None] for stream in streams]
        if requests:
            curve, own = self._admit(requests, self._first(items, rows, len(requests)))
            tables.insert(0, curve)
            hazards.insert(0, own)
        return _Admitted(joined(tables), hazards[0] if len(hazards) == 1 else np.concatenate(hazards, axis=1), rows)

    def _first(self, items: Sequence[_Item], rows: Sequence[int], count: int) -> IntArray | None:
        """(count,), the interval in which each request's least landmark lies: its hazards are asked for from there on. All
        of them, where an output model wants whole curves. ``rows`` (n,): which request each item is of; streams' lie
        beyond."""
        if self._output is not None:
            return None
        least = [NO_CAP] * count
        for item, row in zip(items, rows, strict=True):
            if row < count:
                least[row] = min(least[row], item.generated_tokens)
        return self._bundle.admission.grid.interval_of(np.array(least))

    def _readers(self, output: OutputModel, items: Sequence[_Item]) -> dict[int, OutputReader]:
        """Who has read the text so far, by item; those that have none are left out."""
        readers: dict[int, OutputReader] = {}
        for k, item in enumerate(items):
            if isinstance(item, OnnxStream):
                if (reader := item.reader) is not None:
                    readers[k] = reader
            elif self._can_read(item):
                readers[k] = output.reader(item.request)
                readers[k].append(item.output or "")
        return readers

    def _can_read(self, landmark: Landmark) -> bool:
        return self._output is not None and bool(landmark.output) and landmark.generated_tokens > 0

    def _admit(self, requests: Sequence[Request], first: IntArray | None = None) -> tuple[CurveTable, FloatArray]:
        """Curves (n, ·) from the first token on; hazards (2, n, K) as the model has them, and as recalibrated. Both mean
        nothing before the intervals ``first`` (n,), if there is one."""
        hazards = self._hazards(self._pipeline.features(requests), first)
        recalibrated = self._recalibration.apply(hazards)
        return self._bundle.admission.grid.curves(recalibrated, first), np.stack([hazards, recalibrated])

    def _hazards(self, features: Float32Array, first: IntArray | None = None) -> FloatArray:
        if not len(features):
            return np.empty((0, len(self._bundle.admission.grid)))
        return self._graph.hazards(features, first).astype(np.float64)

    def _with_aborts(self, table: CurveTable) -> CurveTable:
        if self._stays == 0.0:
            return table
        return CurveTable(table.edges, table.log_survival + self._stay_until, table.log_tail + self._stays)

    def observe(self, completions: Sequence[Completion]) -> None:
        """Take in finished requests, in the order in which they finished."""
        for completion in completions:
            if self._recalibrate and _tells_of_hazards(completion):
                (hazard,) = self._hazards(self._pipeline.features([completion.request]))
                self._take_in(completion, hazard)
            else:
                self._pipeline.observe([completion])

    def observe_served(
        self, completions: Sequence[Completion], hazards: Sequence[FloatArray | None], entered: Sequence[int]
    ) -> None:
        """``observe``, without running the model again: ``hazards`` (n) are those (K,) that the model gave when it was
        first asked about each request, at ``entered`` (n) tokens; ``None`` tells recalibration nothing."""
        for completion, hazard, start in zip(completions, hazards, entered, strict=True):
            if hazard is not None and len(hazard) != len(self.grid):
                raise InputError("hazards", f"must have {len(self.grid)} intervals, not {len(hazard)}")
            self._take_in(completion, hazard, start)

    def _take_in(self, completion: Completion, hazard: FloatArray | None, entered: int = 0) -> None:
        """Take in a finished request that had been given ``hazard`` (K,)."""
        if hazard is not None and self._recalibrate and _tells_of_hazards(completion):
            self._recalibration.observe(
                hazard, completion.output_tokens, completion.end is EndReason.STOP, entered=entered
            )
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
        curve, hazards = self._admit([request])
        (known,) = known_inputs([request], [False], self._pipeline)
        admission = AtAdmission(curve, hazards[:, 0], known, self.state_version)
        reader = None if self._output is None else self._output.reader(request)
        return OnnxStream(self, request, admission, reader, self._take_in)


class _Admitted(NamedTuple):
    curve: CurveTable  #: admission curves, (m, ·), without aborts
    hazards: FloatArray  #: (2, m, K), as the model has them and as recalibrated
    row: list[int]  #: (n,), which of them is whose


class _State(msgspec.Struct):
    bundle: str
    history: bytes
    recalibration: object


def _tells_of_hazards(completion: Completion) -> bool:
    return completion.output_tokens > 0 and completion.end is not EndReason.ERROR


def _kept(items: Sequence[_Item]) -> dict[int, CurveTable]:
    """The curves that streams keep, by item."""
    return {i: item.made for i, item in enumerate(items) if isinstance(item, OnnxStream) and item.made is not None}


def _keep(items: Sequence[_Item], curves: CurveTable) -> None:
    """Let streams keep their new curves (n, ·) until more text comes: copies, so that none keeps all."""
    for i, item in enumerate(items):
        if isinstance(item, OnnxStream):
            one = slice(i, i + 1)
            item.made = CurveTable(curves.edges, curves.log_survival[one].copy(), curves.log_tail[one].copy())


def _pipeline(bundle: Bundle) -> FeaturePipeline:
    try:
        pipeline = FeaturePipeline(bundle.manifest.feature_groups, bundle.admission.grid)
    except UnknownNameError as error:
        raise BundleError(f"the bundle needs an {error.message}", hint="Train it again with this endcast") from None
    listed = (tuple(bundle.manifest.columns), tuple(bundle.manifest.interval_columns))
    if listed != (pipeline.columns, pipeline.interval_columns):
        raise BundleError("the bundle was made with other feature columns than this endcast has", hint="Train it again")
    pipeline.load_learned(bundle.learned)
    if pipeline.encoded_groups:
        from endcast.predictors.text.text_encoder import TextEncoder

        pipeline.set_encoder(TextEncoder(bundle.encoder))
    return pipeline


def _output_model(bundle: Bundle) -> OutputModel | None:
    """The model that reads outputs, if the bundle has one. It comes with a compiler: who does not read does without."""
    if bundle.output is None:
        return None
    from endcast.predictors.output_model import output_model

    return output_model(bundle)


def load_forecaster(path: Path | str, *, aborts: bool = True, recalibrate: bool = True) -> OnnxForecaster:
    """The forecaster of the bundle in the folder ``path``; ``BundleError`` if it must be refused."""
    return OnnxForecaster(read_bundle(path), aborts=aborts, recalibrate=recalibrate)
