"""The outcome log on disk: a folder of segments that several processes append to, one at a time, and all follow.

Whoever appends holds an exclusive lock on the file ``lock``, and first reads what the others have appended: so all see one
order. Lines are on disk (``fsync``) before the lock is let go; what cannot be written is taken back. The lock dies with its
process; a line that it left unfinished is cut off by the next one.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import zstandard

from endcast.datasets.segments import Segment, segment_path, segments
from endcast.errors import EndcastError

#: Bytes that ``follow`` gives at most at once, but for a longer line.
_PIECE = 4 << 20
_PAUSE_S = 0.002


class LogRefused(EndcastError):
    """Nothing was written: the disk is full or broken, or another process does not let go of the log."""


@dataclass(frozen=True)
class Limits:
    """When a segment is closed, and when closed ones are deleted; ``None`` keeps them."""

    segment_bytes: int = 64 << 20
    segment_age_s: float = 3_600.0
    keep_bytes: int | None = 8 << 30
    keep_age_s: float | None = None
    lock_s: float = 5.0  #: to wait for the other processes at most


@dataclass(frozen=True)
class Calls:
    """What is asked of the operating system; tests let it fail."""

    write: Callable[[int, bytes], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    truncate: Callable[[int, int], None] = os.ftruncate
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class DiskLog:
    """One process's hold of the log. One thread at a time.

    ``torn``: lines cut off that a crash had left unfinished; ``lost``: segments that were deleted before they were read.
    """

    def __init__(self, folder: Path, limits: Limits, calls: Calls) -> None:
        self._limits, self._calls = limits, calls
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise EndcastError(f"{folder}: cannot keep the outcome log here: {error.strerror}") from error
        self.torn = 0
        self.lost = 0
        self._number = 0  #: of the segment that is read
        self._offset = 0
        self._file: io.FileIO | io.BytesIO | None = None
        self._since = calls.monotonic()  #: when this process began to append to the newest segment

    def begin(self, lines: int) -> None:
        """Be followed from the ``lines`` latest lines on, or from the first if there are fewer; call it first. So a start
        takes no longer for a long log."""
        with self._locked(fcntl.LOCK_EX):
            found = segments(self.folder)
            if found:
                self._mend(found[-1])
            start, offset = found[-1].number if found else 1, 0
            for segment in reversed(found):
                start = segment.number
                lines -= _count_lines(segment)
                if lines <= 0:
                    offset = _past_lines(segment, -lines)
                    break
            self._go_to(start, offset)

    def follow(self) -> list[bytes]:
        """Lines that were appended since the last call, by any process; some of them, if there are many."""
        with self._locked(fcntl.LOCK_SH):
            return self._read()

    def recent(self, lines: int) -> Iterator[list[bytes]]:
        """What has been followed already, from the segment on that leaves at least ``lines`` lines of it."""
        past = [segment for segment in segments(self.folder) if segment.number <= self._number]
        start = len(past)
        while start and lines > 0:
            start -= 1
            lines -= _count_lines(past[start])
        for segment in past[start:]:
            with segment.open() as file:
                whole = file.read(self._offset if segment.number == self._number else -1)
            yield whole[: whole.rfind(b"\n") + 1].splitlines()

    def append(self, take: Callable[[list[bytes]], None], choose: Callable[[], list[bytes]]) -> None:
        """Give ``take`` all lines that are new, then append what ``choose`` answers; ``LogRefused`` if that cannot be
        done, and then nothing is appended."""
        with self._locked(fcntl.LOCK_EX):
            found = segments(self.folder)
            if found:
                self._mend(found[-1])
            while lines := self._read():
                take(lines)
            if chosen := choose():
                self._append(b"".join(chosen), self._open_segment(found))

    def tidy(self) -> None:
        """Pack closed segments and delete those beyond the limits; at most one of them for its age alone, so that a clock
        that jumps ahead does not empty the log. A failure is no harm: it is tried again."""
        closed = segments(self.folder)[:-1]
        try:
            for segment in closed[:-1]:  # the others may still be reading the last one
                if not segment.packed:
                    _pack(segment)
        except OSError as error:
            raise LogRefused(f"a closed segment of the outcome log cannot be packed: {error.strerror}") from error
        with self._locked(fcntl.LOCK_EX):
            closed = segments(self.folder)[:-1]
            for path in self._beyond(closed):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of all files."""
        if self._file is not None:
            self._file.close()
        os.close(self._lock)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        deadline = self._calls.monotonic() + self._limits.lock_s
        while True:
            try:
                fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if self._calls.monotonic() > deadline:
                    raise LogRefused(
                        "another process has held the outcome log for too long", hint="Is it stopped?"
                    ) from None
                time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _mend(self, segment: Segment) -> None:
        """Cut off what follows the last whole line: its writer is gone, or could not take it back."""
        if segment.packed:
            return
        size = segment.path.stat().st_size
        keep = _end_of_lines(segment.path, size)
        if keep < size:
            self.torn += 1
            os.truncate(segment.path, keep)

    def _open_segment(self, found: Sequence[Segment]) -> int:
        """The number of the segment to append to: the newest, or one after it."""
        newest = found[-1] if found else None
        old = self._calls.monotonic() - self._since > self._limits.segment_age_s
        if newest is not None and not newest.packed:
            size = newest.path.stat().st_size
            if size < self._limits.segment_bytes and not (old and size):
                return newest.number
        self._since = self._calls.monotonic()
        return 1 if newest is None else newest.number + 1

    def _append(self, data: bytes, number: int) -> None:
        path = segment_path(self.folder, number)
        new = not path.exists()
        start = -1
        file = -1
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            start = os.fstat(file).st_size
            rest = memoryview(data)
            while rest:
                rest = rest[self._calls.write(file, bytes(rest)) :]
            self._calls.fsync(file)
            if new:
                _sync_folder(self.folder)
        except OSError as error:
            if start >= 0:
                self._take_back(file, start)
            raise LogRefused(f"the outcome log cannot be written: {error.strerror}", hint="Free disk space") from error
        finally:
            if file >= 0:
                os.close(file)
        self._go_to(number, start + len(data))

    def _take_back(self, file: int, start: int) -> None:
        """Cut off what was appended; nobody has seen it, since the lock is held. Where the disk refuses even that, whole
        lines stay, and whoever sends them again is told that they are known."""
        with suppress(OSError):
            self._calls.truncate(file, start)

    def _go_to(self, number: int, offset: int = 0) -> None:
        if number != self._number and self._file is not None:
            self._file.close()
            self._file = None
        self._number, self._offset = number, offset

    def _read(self) -> list[bytes]:
        """Whole lines from where this process stands, of one segment; none only where nothing is left."""
        while True:
            if self._file is None and not self._open():
                return []
            assert self._file is not None
            self._file.seek(self._offset)
            piece = self._file.read(_PIECE)
            whole = piece.rfind(b"\n") + 1
            while not whole and len(piece) >= _PIECE and (more := self._file.read(_PIECE)):  # a very long line
                piece += more
                whole = piece.rfind(b"\n") + 1
            if whole:
                self._offset += whole
                return piece[: whole - 1].split(b"\n")
            later = [segment.number for segment in segments(self.folder) if segment.number > self._number]
            if not later:
                return []
            self.lost += later[0] - self._number - 1
            self._go_to(later[0])

    def _open(self) -> bool:
        """Open the segment that is read, or the one after it that is still there."""
        for segment in segments(self.folder):
            if segment.number >= self._number:
                if segment.number > self._number:
                    self.lost += segment.number - max(self._number, 1)
                    self._number, self._offset = segment.number, 0
                if segment.packed:
                    with segment.open() as file:
                        self._file = io.BytesIO(file.read())
                else:
                    self._file = io.FileIO(segment.path)  # no buffer: what it holds may be cut off and written anew
                return True
        return False

    def _beyond(self, closed: list[Segment]) -> Iterator[Path]:
        """Closed segments to delete, oldest first."""
        sizes = [segment.path.stat().st_size for segment in closed]
        excess = 0 if self._limits.keep_bytes is None else sum(sizes) - self._limits.keep_bytes
        aged = False
        for segment, size in zip(closed, sizes, strict=True):
            age = self._calls.clock() - segment.path.stat().st_mtime
            too_old = self._limits.keep_age_s is not None and age > self._limits.keep_age_s and not aged
            if excess <= 0 and not too_old:
                return
            aged = aged or (too_old and excess <= 0)
            excess -= size
            yield segment.path


def _count_lines(segment: Segment) -> int:
    with segment.open() as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_PIECE), b""))


def _past_lines(segment: Segment, lines: int) -> int:
    """Bytes of a segment's first ``lines`` lines, of which there are as many."""
    passed = 0
    with segment.open() as file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            here = piece.count(b"\n")
            if here >= lines:
                at = 0
                for _ in range(lines):
                    at = piece.index(b"\n", at) + 1
                return passed + at
            lines, passed = lines - here, passed + len(piece)
    return passed


def _end_of_lines(path: Path, size: int) -> int:
    """Bytes up to the end of the last whole line."""
    with path.open("rb") as file:
        at = size
        while at > 0:
            begin = max(at - (1 << 16), 0)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
    return 0


def _pack(segment: Segment) -> None:
    """Replace a closed segment by a packed one; where it stops half-way, the plain one stays and counts."""
    packed = segment_path(segment.path.parent, segment.number, packed=True)
    partial = packed.with_name(f".{packed.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(zstandard.ZstdCompressor(level=3).compress(segment.path.read_bytes()))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(packed)
        _sync_folder(packed.parent)
    finally:
        partial.unlink(missing_ok=True)
    segment.path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
