"""Measures the accuracy page from raw logs, and writes it.

    python -m benchmarks.accuracy DATA [--only accuracy,value] [--families text,neural] [--out docs/accuracy.md]

Figures are kept beside the page as JSON; with ``--only`` the other sections keep theirs, with ``--families`` the other
families theirs. An interrupted measurement of families goes on where ``--resume`` is given. All of it takes an hour or two
of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.accuracy.families import families
from benchmarks.accuracy.measure import Section, ablation, accuracy, ceiling, over_time, text_ablation
from benchmarks.accuracy.page import page
from benchmarks.accuracy.routing import value

import endcast
from endcast.predictors.models import MODELS

SECTIONS: dict[str, Section] = {
    "accuracy": accuracy,
    "ceiling": ceiling,
    "over_time": over_time,
    "ablation": ablation,
    "text_ablation": text_ablation,
    "value": value,
}
FAMILIES = "families"


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Measure the accuracy page.")
    parser.add_argument("data", type=Path, help="folder with the public logs")
    parser.add_argument(
        "--only", default=",".join([*SECTIONS, FAMILIES]), help="sections to measure anew, with commas; none: ''"
    )
    parser.add_argument("--families", default=",".join(MODELS), help="families to measure anew, with commas")
    parser.add_argument("--resume", action="store_true", help="measure only families that have no figures yet")
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    given = parser.parse_args()
    kept = given.out.with_suffix(".json")
    figures = json.loads(kept.read_text()) if kept.exists() else {}
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {text}", file=sys.stderr, flush=True)

    def keep(name: str, section: dict[str, Any]) -> None:
        figures[name] = {**section, "endcast": endcast.__version__}
        kept.write_text(json.dumps(figures, indent=1) + "\n")

    for name in filter(None, given.only.split(",")):
        if name == FAMILIES:
            wanted = given.families.split(",")
            known = {
                log: {family: one for family, one in found.items() if given.resume or family not in wanted}
                for log, found in figures.get(FAMILIES, {}).items()
                if log != "endcast"
            }
            families(given.data, tell, known=known, wanted=wanted, keep=lambda section: keep(FAMILIES, section))
        elif name in SECTIONS:
            keep(name, SECTIONS[name](given.data, tell))
        else:
            parser.error(f"no section {name!r}; there are {', '.join([*SECTIONS, FAMILIES])}")
    given.out.write_text(page(figures))


main()
