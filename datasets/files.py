"""Opens a log as a stream of plain bytes: gzip and Zstandard are undone, and seen by content, never by name. A folder
of segments is one log."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import zstandard

from endcast.datasets.segments import SegmentedFile
from endcast.errors import TraceError

#: ``progress(done, total)``, bytes of the file as stored.
Progress = Callable[[int, int], None]

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC = b"PAR1"
CHUNK = 1 << 20
#: Longest window that ``zstd --long`` writes.
_ZSTD_WINDOW = 1 << 31


class LogFile:
    """A log on disk, open for reading; may be read from its beginning any number of times."""

    def __init__(self, path: Path, raw: io.BufferedReader, size: int, progress: Progress | None) -> None:
        self.path = path
        self.size = size
        self._raw = raw
        self._progress = progress
        self._unpacked: IO[bytes] | None = None
        self.magic = raw.peek(4)[:4]

    def tell_progress(self) -> None:
        """Report how far the file has been read."""
        if self._progress is not None:
            self._progress(min(self._raw.tell(), self.size), self.size)

    def stream(self) -> io.BufferedIOBase:
        """The plain bytes from the beginning; a damaged or cut compressed file raises ``TraceError`` on the way."""
        self._raw.seek(0)
        if self.magic[:2] == GZIP_MAGIC:
            return io.BufferedReader(_Guarded(gzip.GzipFile(fileobj=self._raw), self.path), CHUNK)
        if self.magic == ZSTD_MAGIC:
            return io.BufferedReader(_Guarded(_ZstdFile(self._raw), self.path), CHUNK)
        return self._raw

    def seekable(self) -> IO[bytes]:
        """The plain bytes with random access, unpacked to a temporary file where the log is compressed."""
        if self.magic[:2] != GZIP_MAGIC and self.magic != ZSTD_MAGIC:
            self._raw.seek(0)
            return self._raw
        if self._unpacked is None:
            self._unpacked = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115  (closed by close)
            shutil.copyfileobj(self.stream(), self._unpacked, CHUNK)
        self._unpacked.seek(0)
        return self._unpacked

    def sha256(self) -> str:
        """Digest of the file as stored, hexadecimal."""
        self._raw.seek(0)
        return hashlib.file_digest(self._raw, "sha256").hexdigest()

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._unpacked is not None:
            self._unpacked.close()


@contextmanager
def open_log(path: Path, progress: Progress | None = None) -> Iterator[LogFile]:
    """The log at ``path``, a file or a folder of segments; ``TraceError`` if there is none, if it cannot be opened, or if
    it is empty."""
    try:
        raw, size = _opened(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}", hint="Check the path to the log") from error
    with raw:
        log = LogFile(path, raw, size, progress)
        try:
            if log.size == 0:
                raise TraceError(f"{path} is empty", hint="Nothing can be read from an empty file")
            yield log
        finally:
            log.close()


def _opened(path: Path) -> tuple[io.BufferedReader, int]:
    """The log's bytes as stored (a folder's as one stream, unpacked), and how many there are."""
    if not path.is_dir():
        return path.open("rb"), path.stat().st_size
    folder = SegmentedFile(path)
    if not folder.segments:
        raise TraceError(
            f"{path} is a folder without an outcome log", hint="Name a log file, or the outcome log's folder"
        )
    return io.BufferedReader(folder, CHUNK), folder.size()


class _ZstdFile(io.RawIOBase):
    """Zstandard frames as one stream; the end of the file inside a frame is an ``EOFError``."""

    def __init__(self, raw: io.BufferedIOBase) -> None:
        self._raw = raw
        self._frame = self._new_frame()
        self._inside = False
        self._ready = b""

    @staticmethod
    def _new_frame() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io's own stub is wider
        while not self._ready:
            packed = (self._frame.unused_data if self._frame.eof else b"") or self._raw.read(CHUNK // 4)
            if not packed:
                if self._inside:
                    raise EOFError("the file ends inside a frame")
                return 0
            if self._frame.eof:
                self._frame = self._new_frame()
            self._ready = self._frame.decompress(packed)
            self._inside = not self._frame.eof
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class _Guarded(io.RawIOBase):
    """Turns what a decompressor raises into a ``TraceError`` that names the file."""

    def __init__(self, raw: io.RawIOBase | gzip.GzipFile, path: Path) -> None:
        self._raw = raw
        self._path = path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            return cast(int, self._raw.readinto(buffer))
        except EOFError as error:
            message = f"{self._path} is cut off: the compressed data ends too early"
            raise TraceError(message, hint="Copy the file again") from error
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            message = f"{self._path} is damaged: its compressed data cannot be read ({error})"
            raise TraceError(message, hint="Copy the file again") from error
