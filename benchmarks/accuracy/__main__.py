"""Measures the accuracy page from raw logs, and writes it.

    python -m benchmarks.accuracy DATA [--only accuracy,value] [--out docs/accuracy.md]

Figures are kept beside the page as JSON; with ``--only`` the other sections keep theirs. All of it takes an hour or two of
one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.accuracy.families import families
from benchmarks.accuracy.measure import Section, ablation, accuracy, ceiling, over_time, text_ablation
from benchmarks.accuracy.page import page
from benchmarks.accuracy.routing import value

import endcast

SECTIONS: dict[str, Section] = {
    "accuracy": accuracy,
    "ceiling": ceiling,
    "over_time": over_time,
    "ablation": ablation,
    "text_ablation": text_ablation,
    "families": families,
    "value": value,
}


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Measure the accuracy page.")
    parser.add_argument("data", type=Path, help="folder with the public logs")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections to measure anew, with commas; none: ''")
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    given = parser.parse_args()
    kept = given.out.with_suffix(".json")
    figures = json.loads(kept.read_text()) if kept.exists() else {}
    began = time.monotonic()
    for name in filter(None, given.only.split(",")):
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {', '.join(SECTIONS)}")
        figures[name] = SECTIONS[name](
            given.data, lambda text: print(f"{time.monotonic() - began:7.0f} s  {text}", file=sys.stderr, flush=True)
        )
        figures[name]["endcast"] = endcast.__version__
        kept.write_text(json.dumps(figures, indent=1) + "\n")
    given.out.write_text(page(figures))


main()
