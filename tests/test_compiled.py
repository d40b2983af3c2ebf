"""Compiled kernels on disk: processes that compile at the same moment do not spoil each other's versions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from endcast.compiled import VersionFiles, njit


@njit(cache=True)
def nothing(x: int) -> int:
    return x


def numbas(folder: Path) -> IndexDataCacheFile:
    return IndexDataCacheFile(str(folder), "kernel", "stamp")


def ours(folder: Path) -> VersionFiles:
    return VersionFiles(numbas(folder), nothing)


def saved_together(files: Callable[[Path], Any], folder: Path) -> tuple[object, object]:
    """What is loaded of two versions whose savers both found an empty index, the second in the midst of the first."""
    one, other = files(folder), files(folder)
    write = one._save_data
    other._load_index = dict

    def meanwhile(name: str, data: object) -> None:
        other.save(("float64",), "for float64")
        write(name, data)

    one._save_data = meanwhile
    one.save(("int64",), "for int64")
    reader = files(folder)
    return reader.load(("int64",)), reader.load(("float64",))


def test_no_version_is_taken_for_another(tmp_path: Path) -> None:
    integers, reals = saved_together(ours, tmp_path)
    assert integers in ("for int64", None) and reals in ("for float64", None)
    assert (integers, reals) != (None, None)


def test_numbas_own_files_are_mixed_up(tmp_path: Path) -> None:
    """The reason for ``endcast.compiled``; where this fails, numba has mended it and the module can go."""
    _, reals = saved_together(numbas, tmp_path)
    assert reals == "for int64"


KERNEL = """
from endcast.compiled import njit
from other import TIMES, also

@njit(cache=True)
def twice(x):
    return also(x) + x * (TIMES - 1)
"""
OTHER = """
from endcast.compiled import njit

TIMES = 2

@njit(cache=True)
def also(x):
    return x
"""
CALLS = "from kernel import twice; print(twice(2), twice(2.5), sum(twice.stats.cache_hits.values()))"


def said(folder: Path) -> list[str]:
    """By another process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", CALLS], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.slow
def test_versions_are_found_again_by_another_process_until_what_they_call_changes(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "other.py").write_text(OTHER)
    assert [said(tmp_path) for _ in range(2)] == [["4", "5.0", "0"], ["4", "5.0", "2"]]
    (tmp_path / "other.py").write_text(OTHER.replace("return x", "return 10 * x"))
    assert [said(tmp_path) for _ in range(2)] == [["22", "27.5", "0"], ["22", "27.5", "2"]]
    (tmp_path / "other.py").write_text(OTHER.replace("TIMES = 2", "TIMES = 3"))
    assert [said(tmp_path) for _ in range(2)] == [["6", "7.5", "0"], ["6", "7.5", "2"]]
