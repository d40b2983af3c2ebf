"""Kernels: ``numba.njit`` whose cache on disk can be shared by processes that compile at the same moment.

numba names the files of a function's compiled versions by counting those in its index. Two processes that compile it for
different types at once count alike, take one name for both versions, and a third process is then given code for other types
than it has: it reads and writes memory that is not its own. Here a version's file is named by what it is a version of, and
is written before the index tells of it. What the race can still do is lose an entry of the index: compiled once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile


class VersionFiles(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """One function's compiled versions on disk, each in the file that its own key names."""

    def save(self, key: object, data: object) -> None:
        """Add a version; ``key`` tells types, machine and code."""
        number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8])
        name = self._data_name(number)
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})

    @classmethod
    def like(cls, files: IndexDataCacheFile) -> VersionFiles:
        """In the place of ``files``."""
        made = cls.__new__(cls)
        made.__dict__.update(files.__dict__)
        return made


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options; with ``cache=True`` as the head of this file says."""
    compiling = numba.njit(**options)

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = compiling(function)
        if options.get("cache"):
            cache = dispatcher._cache
            cache._cache_file = VersionFiles.like(cache._cache_file)
        return dispatcher

    return compiled
