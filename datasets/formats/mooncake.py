"""Mooncake's public traces: JSON Lines with timestamp (milliseconds since the start), input_length, output_length and
``hash_ids``, ids of the prompt's 512-token prefix blocks. There is no session id: turns are found by their blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from endcast.datasets.clean import LogRows
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.tables import need_json, record_batches
from endcast.datasets.report import Tally
from endcast.datasets.times import Unit

_KEYS = {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length"}


@dataclass(frozen=True)
class _Mooncake:
    name: str = "mooncake"
    summary: str = "Mooncake trace (JSON Lines)"

    def detect(self, sample: Sample) -> bool:
        return sample.kind == "json" and sample.has(*_KEYS.values())

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        need_json(log, self.name)
        for lines, records in record_batches(log, tally):
            found: dict[str, list[object]] = {
                ours: [record.get(theirs) for record in records] for ours, theirs in _KEYS.items()
            }
            blocks = [block_ids(record.get("hash_ids")) for record in records]
            wrong = [line for line, ids, record in zip(lines, blocks, records, strict=True) if _lost(ids, record)]
            tally.repair("hash_ids is no list of whole numbers: taken as not told", wrong)
            yield LogRows(lines, found | {"prefix_blocks": blocks}, units={"arrival": Unit.MS})


def block_ids(value: object) -> list[int] | None:
    """``value`` if it is a list of whole numbers of 64 bits."""
    if not isinstance(value, list) or any(type(v) is not int or not -(1 << 63) <= v < 1 << 63 for v in value):
        return None
    return value


def _lost(ids: list[int] | None, record: Mapping[str, object]) -> bool:
    return ids is None and record.get("hash_ids") is not None


MOONCAKE = _Mooncake()
