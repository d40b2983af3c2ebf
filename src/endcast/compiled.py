"""Kernels: ``numba.njit`` whose versions on disk are never mixed up, nor outlive what they were made of.

*Processes that compile at the same moment*: numba names the files of a function's compiled versions by counting those in
its index. Two processes that compile it for different types at once count alike, take one name for both versions, and a
third process is then given code for other types than it has: it reads and writes memory that is not its own. Here a
version's file is named by what it is a version of, and is written before the index tells of it. What the race can still
do is lose an entry of the index: compiled once more.

*Changed sources*: numba makes a version anew where the function's own file has changed, and keeps it where only a kernel
that it calls, and was compiled into it, has. Here a version is of all the files it was made from, and of the constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher


class VersionFiles(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """One function's compiled versions on disk, each in the file that its own key names."""

    def __init__(self, files: IndexDataCacheFile, of: Dispatcher) -> None:
        """In the place of ``files``, which are ``of`` this function."""
        self.__dict__.update(files.__dict__)
        self._source_stamp: object = files._source_stamp
        self._of, self._complete = of, False

    def save(self, key: object, data: object) -> None:
        """Add a version; ``key`` tells types, machine and code."""
        self._complete_stamp()
        number = int.from_bytes(hashlib.sha256(repr((key, self._source_stamp)).encode()).digest()[:8])
        name = self._data_name(number)
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})

    def load(self, key: object) -> object:
        """The version of ``key``, if there is one of the sources as they are."""
        self._complete_stamp()
        return super().load(key)

    def _complete_stamp(self) -> None:
        """Now that all is defined which the function calls."""
        if not self._complete:
            self._source_stamp, self._complete = (self._source_stamp, source_stamp(self._of)), True


def source_stamp(kernel: Dispatcher) -> str:
    """Digest of what compiled code of the kernel is made of: files of the kernels it calls, and global constants."""
    digest = hashlib.sha256()
    for part in _made_of(kernel, set()):
        digest.update(part)
    return digest.hexdigest()


def _made_of(kernel: Dispatcher, seen: set[int]) -> Iterator[bytes]:
    seen.add(id(kernel))
    function = kernel.py_func
    file = Path(function.__code__.co_filename).stat()
    yield repr((function.__qualname__, file.st_mtime_ns, file.st_size)).encode()
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            if id(value) not in seen:
                yield from _made_of(value, seen)
        elif isinstance(value, np.ndarray):
            yield repr((name, value.dtype.str, value.shape)).encode() + value.tobytes()
        elif isinstance(value, int | float | str | tuple | np.generic):
            yield repr((name, value)).encode()


def _names(code: CodeType) -> set[str]:
    """Of everything global that code may refer to, the code inside it too."""
    inside = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_names(part) for part in inside))


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with these options; with ``cache=True`` as the head of this file says."""
    compiling = numba.njit(**options)

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = compiling(function)
        if options.get("cache"):
            cache = dispatcher._cache
            cache._cache_file = VersionFiles(cache._cache_file, dispatcher)
        return dispatcher

    return compiled
