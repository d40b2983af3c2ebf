"""What outcomes say of the bundle that is served: calibration, drift, and a shadow bundle beside it. A fold over the log:
processes that have read the same lines say the same. One thread at a time; ``figures`` may be read by all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from endcast.curves import FloatArray
from endcast.errors import EndcastError
from endcast.predictors.drift import DriftMonitor
from endcast.predictors.grid import IntervalGrid
from endcast.serving.outcomes.calibration import LiveCalibration
from endcast.serving.outcomes.figures import Compared, Evidence, LiveFigures
from endcast.serving.outcomes.record import Record, ServedPart, unpack
from endcast.serving.outcomes.scoring import UNKNOWN, Happened, counted, happened, is_end, log_score, matrix
from endcast.serving.shadow.comparison import Difference


class Live:
    """The fold. Outcomes of forecasts by other bundles are passed over: ``serve`` begins anew."""

    def __init__(self, horizons: Sequence[int], quantiles: Sequence[float]) -> None:
        self._horizons, self._quantiles = tuple(horizons), tuple(quantiles)
        self.damaged = 0  #: records whose numbers did not fit
        self.serve("", None)

    def serve(self, bundle: str, grid: IntervalGrid | None) -> None:
        """Measure this bundle from now on."""
        self.bundle, self.grid = bundle, grid
        self.monitor = None if grid is None else DriftMonitor(grid)
        self._calibration = LiveCalibration(self._horizons, self._quantiles)
        self._outcomes = 0
        self.compare(None)

    def compare(self, shadow: str | None) -> None:
        """Compare this bundle with the served one from now on; ``None`` for no comparison."""
        self.shadow = shadow
        self._difference = Difference(2 * len(self._horizons) + 1)

    def take(self, record: Record) -> None:
        """Take in one outcome."""
        served = record.served
        if served is None or served.bundle != self.bundle or record.outcome.output_tokens < 1:
            return
        self._outcomes += 1
        self._calibration.take(record)
        if served.drift is not None and self.monitor is not None:
            self._take_drift(served.drift)
        if self.shadow is not None and served.shadow is not None and served.shadow.bundle == self.shadow:
            self._compare(record, served, served.shadow.p_end)

    def _take_drift(self, packed: str) -> None:
        assert self.monitor is not None
        try:
            numbers = unpack(packed)
            self.monitor.take(numbers.reshape(2, 3, -1))
        except (EndcastError, ValueError):
            self.damaged += 1

    def _compare(self, record: Record, served: ServedPart, shadow: Sequence[Sequence[float]]) -> None:
        """Brier scores, log scores, and Brier scores of all horizons together, over the landmarks that both have."""
        width = len(self._horizons)
        if served.horizons != self._horizons or len(shadow) != len(served.p_end):
            return
        ours, theirs = matrix(served.p_end, width), matrix(shadow, width)
        both = counted(served, record.outcome.output_tokens) & ~np.isnan(theirs).any(axis=1)
        if not both.any():
            return
        tokens = record.outcome.output_tokens - np.asarray(served.landmarks, dtype=np.int64)[both, None]
        y = happened(tokens, self._horizons, is_end(record, aborts=served.aborts))
        known = y != UNKNOWN
        counts = known.sum(axis=0).astype(np.float64)
        counted_each = np.concatenate([counts, counts, [counts.sum()]])
        self._difference.add(_scores(ours[both], y, known), _scores(theirs[both], y, known), counted_each)

    def figures(self) -> LiveFigures:
        """What has been taken in so far."""
        return LiveFigures(
            bundle=self.bundle,
            outcomes=self._outcomes,
            contradicted=self._calibration.contradicted,
            calibration=self._calibration.figures(),
            by_model=self._calibration.by("model"),
            by_tenant=self._calibration.by("tenant"),
            drift=None if self.monitor is None else self.monitor.report(),
            evidence=self._evidence(),
        )

    def _evidence(self) -> Evidence | None:
        if self.shadow is None:
            return None
        found, width = self._difference, len(self._horizons)
        scores = [
            np.divide(s, found.counts, out=np.full(2 * width + 1, np.nan), where=found.counts > 0)
            for s in (found.served, found.shadow)
        ]
        return Evidence(
            served=self.bundle,
            shadow=self.shadow,
            generations=found.generations,
            forecasts=int(found.counts[:width].max(initial=0)),
            horizons={
                h: Compared(
                    served_brier=float(scores[0][i]),
                    shadow_brier=float(scores[1][i]),
                    brier=found.interval(i),
                    served_log=float(scores[0][width + i]),
                    shadow_log=float(scores[1][width + i]),
                    log=found.interval(width + i),
                )
                for i, h in enumerate(self._horizons)
            },
            overall=found.interval(2 * width),
        )


def _scores(p: FloatArray, y: Happened, known: npt.NDArray[np.bool_]) -> FloatArray:
    """(2·H + 1,), sums over forecasts (n, H) of Brier scores, of log scores, and of all Brier scores."""
    brier, log = np.where(known, (p - y) ** 2, 0.0), np.where(known, log_score(p, y), 0.0)
    return np.concatenate([brier.sum(axis=0), log.sum(axis=0), [brier.sum()]])
