"""Matplotlib figures as files and as SVG that takes its ink from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

#: Series colours that read on white and on near-black, and for most who see colours differently (after Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#999999")
#: Stands for the page's ink in a figure until it becomes ``currentColor``.
_INK = "#123457"

_STYLE: Any = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "endcast",
    "axes.prop_cycle": cycler(color=COLOURS),
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in endcast's style, and close what was drawn."""
    with matplotlib.rc_context(_STYLE):
        try:
            yield
        finally:
            plt.close("all")


def as_svg(figure: Figure, label: str) -> str:
    """The figure as inline SVG that scales with its column; ``label`` is read to those who do not see it."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def write_png(figure: Figure, path: Path) -> None:
    """The figure as a PNG on white."""
    figure.savefig(path, format="png", dpi=144, bbox_inches="tight", facecolor="white", metadata={"Software": None})
