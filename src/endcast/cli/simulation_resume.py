"""Finished runs kept in a folder, so that an interrupted simulation goes on where it was."""

from __future__ import annotations

import os
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from endcast.errors import InputError
from endcast.router.record import RunRecord

#: Fields of a record that are single numbers.
_NUMBERS = ("steps", "rejected", "recomputed_tokens", "prefix_hits")


class RunFolder:
    """One file a run, named by everything that the run depends on; written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.taken = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> RunRecord | None:
        """The run of that key, if it was finished; ``InputError`` for a damaged file."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            with path.open("rb") as source, np.load(source, allow_pickle=False) as stored:
                found = {field.name: stored[field.name] for field in fields(RunRecord)}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(
                "--resume", f"{path} is damaged ({error})", hint="Delete it: its run is played again"
            ) from error
        self.taken += 1
        return RunRecord(**found | {name: int(found[name]) for name in _NUMBERS})

    def save(self, key: str, record: RunRecord) -> None:
        """Keep a finished run."""
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.part")
        arrays: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields(record)}
        with partial.open("wb") as sink:
            np.savez(sink, allow_pickle=False, **arrays)
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / f"run-{key}.npz"
