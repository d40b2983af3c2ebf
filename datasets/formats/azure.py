"""Azure's public LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens and GeneratedTokens.

Times have up to seven fractional digits, with or without an offset from UTC. Further columns become attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from endcast.datasets.clean import LogRows, note_zones
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.tables import CsvColumns, attributes
from endcast.datasets.report import Tally

_COLUMNS = {"arrival": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}


@dataclass(frozen=True)
class _Azure:
    name: str = "azure"
    summary: str = "Azure LLM inference trace 2023/2024 (CSV)"

    def detect(self, sample: Sample) -> bool:
        return sample.kind == "csv" and sample.has(*_COLUMNS.values())

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        table = CsvColumns(log, tally)
        table.need(_COLUMNS.values())
        others = [name for name in table.header if name not in _COLUMNS.values()]
        for lines, texts in table.batches():
            note_zones(texts["TIMESTAMP"], tally)
            found = {ours: texts[theirs] for ours, theirs in _COLUMNS.items()}
            yield LogRows(lines, found | attributes({name: texts[name] for name in others}))


AZURE = _Azure()
