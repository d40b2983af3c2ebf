"""Recorded decode steps, as ``endcast calibrate`` reads them, and the file that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from endcast.errors import InputError
from endcast.router.scale import StepTime
from endcast.router.step_fit import StepFit
from endcast.survival import FloatArray

#: Columns of a file of steps: seconds or milliseconds, requests of the largest batch, KV tokens of the heaviest worker.
STEP_S, STEP_MS, BATCH, KV_TOKENS, STEP = "step_s", "step_ms", "batch", "kv_tokens", "step"
_KNOWN = (STEP_S, STEP_MS, BATCH, KV_TOKENS, STEP)


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """n steps in order of time; ``dropped`` rows were not usable."""

    step_s: FloatArray
    batch: FloatArray
    kv_tokens: FloatArray
    dropped: int


def read_steps(path: Path, columns: Mapping[str, str]) -> RecordedSteps:
    """The steps of a CSV, JSONL or Parquet file (``.gz`` too), its columns renamed by ``columns``.

    Rows with the same ``step``, where that is told, are workers of one step: the longest time, the largest batch and the
    heaviest load count. Rows without a positive time or with a negative load are dropped.
    """
    table = _table(path)
    unknown = next((ours for ours in columns if ours not in _KNOWN), None)
    if unknown is not None:
        raise InputError("--columns", f"{unknown} is no column of steps", hint=f"These are {', '.join(_KNOWN)}")
    unit = STEP_MS if _source(STEP_MS, columns) in table.column_names else STEP_S
    step_s = _numbers(path, table, unit, columns) * (1e-3 if unit == STEP_MS else 1.0)
    batch, kv_tokens = (_numbers(path, table, name, columns) for name in (BATCH, KV_TOKENS))
    used = np.isfinite(step_s) & (step_s > 0.0) & (batch >= 0.0) & (kv_tokens >= 0.0)
    used &= np.isfinite(batch) & np.isfinite(kv_tokens)
    found = (step_s[used], batch[used], kv_tokens[used])
    if _source(STEP, columns) in table.column_names:
        number = _numbers(path, table, STEP, columns)[used]
        found = _heaviest(number, found)
    return RecordedSteps(*found, dropped=int(np.sum(~used)))


def _source(name: str, columns: Mapping[str, str]) -> str:
    return columns.get(name, name)


def _table(path: Path) -> pa.Table:
    if not path.is_file():
        raise InputError("STEPS", f"{path} is no file")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if kind == "parquet":
            return pyarrow.parquet.read_table(path)
        with pa.input_stream(str(path), compression="detect") as stream:
            if kind in ("jsonl", "json", "ndjson"):
                return pyarrow.json.read_json(stream)
            if kind == "csv":
                return pyarrow.csv.read_csv(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError("STEPS", f"{path} cannot be read: {error}") from error
    raise InputError("STEPS", f"{path} is none of .csv, .jsonl and .parquet")


def _numbers(path: Path, table: pa.Table, name: str, columns: Mapping[str, str]) -> FloatArray:
    source = _source(name, columns)
    if source not in table.column_names:
        raise InputError(
            "STEPS", f"{path} has no column {source}",
            hint=f"It has {', '.join(table.column_names)}. Say which is meant with --columns {name}=COLUMN",
        )  # fmt: skip
    column = table.column(source)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
        raise InputError("STEPS", f"column {source} of {path} holds no numbers but {column.type}")
    values: FloatArray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _heaviest(number: FloatArray, found: tuple[FloatArray, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of rows with the same ``number``, in the order in which numbers first occur, the largest of each column."""
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    step_s, batch, kv_tokens = (np.zeros(len(first)) for _ in range(3))
    for largest, values in zip((step_s, batch, kv_tokens), found, strict=True):
        np.maximum.at(largest, place, values)
    return step_s[order], batch[order], kv_tokens[order]


def fit_as_json(fit: StepFit, source: str) -> dict[str, object]:
    """What ``--out`` writes and ``--json`` prints."""
    told = asdict(fit)
    return {"step_time": told.pop("step_time"), "interval_95": told.pop("interval"), "fit": told, "source": source}


class _File(msgspec.Struct):
    step_time: dict[str, float]


def read_step_time(path: Path) -> StepTime:
    """The step time of a file that ``endcast calibrate`` wrote, or one like it."""
    try:
        terms = msgspec.json.decode(path.read_bytes(), type=_File).step_time
        return StepTime(**terms)
    except OSError as error:
        raise InputError("--step-time", f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, TypeError) as error:
        raise InputError(
            "--step-time", f"{path} is no step time: {error}", hint="endcast calibrate writes such files"
        ) from error
