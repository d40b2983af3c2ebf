"""BurstGPT: CSV with Timestamp (seconds since the first day), Model, Request tokens, Response tokens, Total tokens and
Log Type; its second release also has Session ID and Elapsed time (seconds from request to the end of the response).

Its authors document responses of 0 tokens as failures, so those requests end in an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from endcast.datasets.clean import Column, LogRows
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.tables import CsvColumns, attributes
from endcast.datasets.report import Tally
from endcast.datasets.times import Unit
from endcast.types import EndReason

_COLUMNS = {
    "arrival": "Timestamp",
    "model": "Model",
    "prompt_tokens": "Request tokens",
    "output_tokens": "Response tokens",
}
_OPTIONAL = {"session": "Session ID", "duration": "Elapsed time"}
_SUM = "Total tokens"
_UNITS = {"arrival": Unit.S, "duration": Unit.S}


@dataclass(frozen=True)
class _BurstGpt:
    name: str = "burstgpt"
    summary: str = "BurstGPT (CSV)"

    def detect(self, sample: Sample) -> bool:
        return sample.kind == "csv" and sample.has(*_COLUMNS.values())

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        table = CsvColumns(log, tally)
        table.need(_COLUMNS.values())
        names = _COLUMNS | {ours: theirs for ours, theirs in _OPTIONAL.items() if theirs in table.header}
        others = [name for name in table.header if name not in {*names.values(), _SUM}]
        for lines, texts in table.batches():
            found: dict[str, Column] = {ours: texts[theirs] for ours, theirs in names.items()}
            found |= attributes({name.lower().replace(" ", "_"): texts[name] for name in others})
            yield LogRows(lines, found, units=_UNITS, zero_end=EndReason.ERROR)


BURSTGPT = _BurstGpt()
