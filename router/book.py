"""The book of forecasts: one row for each request that waits or runs, recycled when it has gone.

A row points to a survival curve, says where on it the request was when the forecast was made and how many tokens may
follow. Curves of a table that all forecasts share (Kaplan-Meier, true lengths) are kept once; those that came with
their own batch are copied in and overwritten later. So memory follows the requests in the system, not those served.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from endcast.errors import InputError
from endcast.router.admission.peak import Curves
from endcast.router.entries import NOTHING, ROW, read_only
from endcast.router.outlook import expected_tokens, running_occupancy
from endcast.router.policy import ForecastView
from endcast.router.slots import Slots
from endcast.router.windows import CAP, CURVE, POSITION, STAGGER, enter, fill_steps, running_loads
from endcast.survival import CurveTable, Float32Array, FloatArray, IntArray, SurvivalBatch

#: Tokens that a load curve reaches beyond the horizon: so many steps pass at most until it is made anew.
_LOOKAHEAD = 32 + STAGGER
#: A chance to survive a token that is smaller reads as this.
_LEAST_STEP = 1e-300
#: Rows to begin with.
_FEWEST_ROWS = 256


class ForecastBook:
    """Forecasts of what waits and runs, read as loads over the next ``horizon`` steps.

    ``shared`` is the table into which every batch points, if there is one; else all batches lie on one grid. ``levels``:
    whether survival is kept as well as hazards, for whoever asks for ``curves``.
    """

    def __init__(self, slots: Slots, horizon: int, shared: CurveTable | None = None, *, levels: bool = False) -> None:
        self._slots, self._shared, self._levels = slots, shared, levels and shared is None
        self._load: FloatArray = np.zeros((len(slots.sizes), horizon + 1))
        self._ahead: Float32Array = np.zeros((len(slots), horizon + 1 + _LOOKAHEAD), dtype=np.float32)
        self._made_at = np.full(len(slots), NOTHING, dtype=np.int64)
        self._load_shown: FloatArray = read_only(self._load)
        self._waiting_load: Float32Array = np.zeros((0, horizon + 1), dtype=np.float32)
        self._waiting_load_shown: Float32Array = read_only(self._waiting_load)
        self._where = np.zeros((3, 0), dtype=np.int64)
        self._spare = np.zeros(0, dtype=np.int64)  # unused rows: a stack at its beginning
        self._held = 0
        self._expected: FloatArray = np.zeros(0)  # output tokens, worked out when asked for: until then −1
        self._edges, self._step = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        self._beyond: FloatArray | None = None  # of the shared table: tokens that remain at each edge
        self._log_survival, self._log_tail = np.zeros((0, 0)), np.zeros(0)
        if shared is not None:
            self._edges, self._step = shared.edges, np.empty((len(shared.log_tail), len(shared.edges)))
            self._copy(np.arange(len(self._step)), shared, np.arange(len(self._step)))

    def __len__(self) -> int:
        return self._held

    @property
    def rows(self) -> int:
        """Rows allocated: follows the most requests that were ever in the system at once."""
        return len(self._spare)

    def add(self, batch: SurvivalBatch, prompt: IntArray) -> IntArray:
        """Take in forecasts of newly arrived requests (k,) with prompts (k,) in tokens: their rows (k,)."""
        self._make_room(len(batch))
        top = len(self._spare) - self._held
        rows: IntArray = self._spare[top - len(batch) : top].copy()
        self._held += len(batch)
        self._expected[rows] = NOTHING
        curve = self._curves_of(batch, rows)
        enter(self._waiting_load, self._where, rows, prompt, self._edges, self._step, curve, batch.position, batch.cap)
        return rows

    def batch(self, rows: IntArray, generated: IntArray) -> SurvivalBatch:
        """The forecasts in these rows (k,), as they stand once ``generated`` (k,) tokens are there."""
        step = np.maximum(self._step[self._where[CURVE, rows]], _LEAST_STEP)
        log = np.log(step[:, :-1]) * np.diff(self._edges)
        log_survival = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(log, axis=1)], axis=1)
        return SurvivalBatch(
            table=CurveTable.from_log_survival(self._edges, log_survival, np.log(step[:, -1])),
            row=np.arange(len(rows)),
            position=self._where[POSITION, rows] + generated,
            cap=np.maximum(self._where[CAP, rows] - generated, 1),
            horizon=self._load.shape[1] - 1,
        )

    def drop(self, rows: IntArray) -> None:
        """Forget requests that have gone."""
        top = len(self._spare) - self._held
        self._spare[top : top + len(rows)] = rows
        self._held -= len(rows)

    def started(self, slots: IntArray) -> None:
        """These slots have new occupants."""
        self._made_at[slots] = NOTHING

    def refresh(self, slots: IntArray, batch: SurvivalBatch) -> None:
        """There is news of what runs in ``slots`` (k,): forecasts made at the tokens that each has generated by now."""
        rows, generated = self._slots.entries[ROW, slots], self._slots.generated[slots]
        self._where[CURVE, rows] = self._curves_of(batch, rows)
        self._where[POSITION, rows] = batch.position - generated
        self._where[CAP, rows] = batch.cap + generated
        self._made_at[slots] = NOTHING

    def view(self, waiting_row: IntArray) -> ForecastView:
        """Loads as they are now; ``waiting_row`` (n,) rows of what waits."""
        slots = self._slots
        running_loads(
            self._load,
            self._ahead,
            self._made_at,
            slots.start,
            slots.entries,
            slots.generated,
            self._edges,
            self._step,
            self._where,
        )
        return ForecastView(self._load_shown, self._waiting_load_shown, waiting_row, self)

    def expected_output(self, row: IntArray) -> FloatArray:
        """(k,) expected output tokens, capped, of requests that wait in these rows (k,)."""
        beyond = self._remaining_at_edges()
        expected: FloatArray = expected_tokens(self._expected, row, self._edges, self._step, beyond, self._where)
        return expected

    def curves(self) -> Curves:
        """The curves themselves, by row; for books that keep ``levels`` or share a table."""
        shared = self._shared
        log_survival = self._log_survival if shared is None else shared.log_survival
        log_tail = self._log_tail if shared is None else shared.log_tail
        return Curves(self._edges, log_survival, log_tail, self._step, self._remaining_at_edges(), self._where)

    def _remaining_at_edges(self) -> FloatArray:
        if self._beyond is None:
            self._beyond = np.zeros((0, 0)) if self._shared is None else self._shared.remaining_at_edges
        return self._beyond

    def occupancy(self, worker: IntArray, steps: int) -> tuple[FloatArray, FloatArray]:
        """Expected requests and KV tokens of what runs on these workers (k,) over the next steps (k, ``steps``)."""
        slots = self._slots
        requests, tokens = np.zeros((len(worker), steps)), np.zeros((len(worker), steps))
        running_occupancy(
            requests, tokens, worker, slots.start, slots.entries, slots.generated, self._edges, self._step, self._where
        )
        return requests, tokens

    def _curves_of(self, batch: SurvivalBatch, rows: IntArray) -> IntArray:
        """Which curves (k,) the forecasts read: those of the shared table, or copies in the requests' own rows."""
        table = batch.table
        if self._shared is not None:
            if table is not self._shared:
                raise InputError("forecasts", "a batch points into another table than the one declared as shared")
            return batch.row
        if len(self._edges) == 0:
            self._edges, self._step = table.edges, np.zeros((self.rows, len(table.edges)))
            if self._levels:
                self._log_survival, self._log_tail = np.zeros_like(self._step), np.zeros(self.rows)
        elif table.edges is not self._edges and not np.array_equal(table.edges, self._edges):
            raise InputError("forecasts", "a batch lies on another grid than those before it")
        self._copy(rows, table, batch.row)
        if self._levels:
            self._log_survival[rows], self._log_tail[rows] = table.log_survival[batch.row], table.log_tail[batch.row]
        return rows

    def _copy(self, rows: IntArray, table: CurveTable, source: IntArray) -> None:
        fill_steps(self._step, rows, table.edges, table.log_survival, table.log_tail, source)

    def _make_room(self, more: int) -> None:
        size = self.rows
        if self._held + more <= size:
            return
        larger = max(2 * (self._held + more), _FEWEST_ROWS)
        self._spare = np.concatenate([np.arange(larger - 1, size - 1, -1), self._spare])
        self._waiting_load = _grown(self._waiting_load, larger, 0)
        self._waiting_load_shown = read_only(self._waiting_load)
        self._where = _grown(self._where, larger, 1)
        self._expected = _grown(self._expected, larger, 0)
        if self._shared is None and len(self._edges) > 0:
            self._step = _grown(self._step, larger, 0)
            if self._levels:
                self._log_survival, self._log_tail = (
                    _grown(self._log_survival, larger, 0),
                    _grown(self._log_tail, larger, 0),
                )


def _grown(array: Any, size: int, axis: int) -> Any:
    """The array with ``size`` entries along ``axis``, the new ones zero."""
    widths = [(0, size - array.shape[i] if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths)
