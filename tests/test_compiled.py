"""Compiled kernels on disk: processes that compile at the same moment do not spoil each other's versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from endcast.compiled import VersionFiles


def files(kind: Any, folder: Path) -> Any:
    return kind(str(folder), "kernel", "stamp")


def saved_together(kind: Any, folder: Path) -> tuple[object, object]:
    """What is loaded of two versions whose savers both found an empty index, the second in the midst of the first."""
    one, other = files(kind, folder), files(kind, folder)
    write = one._save_data
    other._load_index = dict

    def meanwhile(name: str, data: object) -> None:
        other.save(("float64",), "for float64")
        write(name, data)

    one._save_data = meanwhile
    one.save(("int64",), "for int64")
    reader = files(kind, folder)
    return reader.load(("int64",)), reader.load(("float64",))


def test_no_version_is_taken_for_another(tmp_path: Path) -> None:
    integers, reals = saved_together(VersionFiles, tmp_path)
    assert integers in ("for int64", None) and reals in ("for float64", None)
    assert (integers, reals) != (None, None)


def test_numbas_own_files_are_mixed_up(tmp_path: Path) -> None:
    """The reason for ``endcast.compiled``; where this fails, numba has mended it and the module can go."""
    _, reals = saved_together(IndexDataCacheFile, tmp_path)
    assert reals == "for int64"


KERNEL = """
from endcast.compiled import njit

@njit(cache=True)
def twice(x):
    return x + x
"""
CALLS = "from kernel import twice; print(twice(2), twice(2.5), sum(twice.stats.cache_hits.values()))"


@pytest.mark.slow
def test_versions_are_found_again_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, "-c", CALLS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["4", "5.0", "0"], ["4", "5.0", "2"]]
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 2
