"""Recorded step times beside the line fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from endcast.reporting.figures import COLOURS, write_png
from endcast.router.step_fit import StepFit
from endcast.survival import FloatArray

#: Points of a plot: more of them only make it slow.
_POINTS = 5_000
_ON_WHITE: Any = {"axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False}


def calibration_figure(fit: StepFit, step_s: FloatArray, batch: FloatArray, kv_tokens: FloatArray) -> Figure:
    """Steps (n,) against the heaviest worker's KV, and what the fit says of each against what was recorded."""
    shown = np.linspace(0, len(step_s) - 1, min(len(step_s), _POINTS)).astype(np.int64)
    made, batch, kv_tokens = 1e3 * step_s[shown], batch[shown], kv_tokens[shown]
    model = fit.step_time
    fitted = 1e3 * (model.fixed_s + model.batch_s * batch + model.kv_s * kv_tokens)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6))
    order = np.argsort(kv_tokens)
    left.scatter(kv_tokens, made, s=6, alpha=0.3, color=COLOURS[0], linewidths=0, label="recorded")
    left.plot(kv_tokens[order], fitted[order], color=COLOURS[1], lw=1.2, label="fitted")
    left.set_xlabel("KV tokens of the heaviest worker")
    left.set_ylabel("step, ms")
    left.legend()
    right.scatter(made, fitted, s=6, alpha=0.3, color=COLOURS[0], linewidths=0)
    ends = [float(min(made.min(), fitted.min())), float(max(made.max(), fitted.max()))]
    right.plot(ends, ends, color=COLOURS[1], lw=1.2)
    right.set_xlabel("recorded, ms")
    right.set_ylabel("fitted, ms")
    return figure


def write_plot(path: Path, fit: StepFit, step_s: FloatArray, batch: FloatArray, kv_tokens: FloatArray) -> None:
    """The figure as a PNG."""
    with matplotlib.rc_context(_ON_WHITE):
        write_png(calibration_figure(fit, step_s, batch, kv_tokens), path)
        plt.close("all")
