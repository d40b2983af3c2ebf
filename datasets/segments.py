"""A log that is a folder of numbered segments, as the outcome log is: ``outcomes-00000001.jsonl``, closed ones perhaps
packed as ``….jsonl.zst``. Read in order, they are one log."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

_NAME = re.compile(r"outcomes-(\d{8})\.jsonl(\.zst)?")


@dataclass(frozen=True, order=True)
class Segment:
    """One file of the log; ``number`` counts from 1."""

    number: int
    path: Path
    packed: bool

    def open(self) -> io.BufferedIOBase:
        """Its plain bytes, from the beginning."""
        file = self.path.open("rb")
        if not self.packed:
            return file
        reader = zstandard.ZstdDecompressor().stream_reader(file, closefd=True, read_across_frames=True)
        return io.BufferedReader(reader)

    def size(self) -> int:
        """Plain bytes; those of a packed segment as its head tells."""
        if not self.packed:
            return self.path.stat().st_size
        with self.path.open("rb") as file:
            return max(zstandard.get_frame_parameters(file.read(32)).content_size, 0)


def segment_path(folder: Path, number: int, *, packed: bool = False) -> Path:
    """Where a segment lies."""
    return folder / f"outcomes-{number:08d}.jsonl{'.zst' if packed else ''}"


def segments(folder: Path) -> list[Segment]:
    """All segments in order; where one is there twice (packing was interrupted), the plain one."""
    found: dict[int, Segment] = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        number, packed = int(match[1]), match[2] is not None
        if not packed or number not in found:
            found[number] = Segment(number, path, packed)
    return [found[number] for number in sorted(found)]


class SegmentedFile(io.RawIOBase):
    """The segments of a folder as one stream of plain bytes, which can be taken back to its beginning. A segment that
    was cut off inside a line does not run into the next one."""

    def __init__(self, folder: Path) -> None:
        self.segments = segments(folder)
        self._pieces = self._all()
        self._at = 0
        self._rest = b""

    def _all(self) -> Iterator[bytes]:
        for segment in self.segments:
            last = b"\n"
            with segment.open() as file:
                while piece := file.read(1 << 18):
                    last = piece[-1:]
                    yield piece
            if last != b"\n":
                yield b"\n"

    def size(self) -> int:
        """Plain bytes of all segments."""
        return sum(segment.size() for segment in self.segments)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) == (0, io.SEEK_CUR):
            return self._at
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("a segmented log can be read from its beginning only")
        self._pieces, self._at, self._rest = self._all(), 0, b""
        return 0

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io's own stub is wider
        if not self._rest:
            self._rest = next(self._pieces, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        self._at += size
        return size
