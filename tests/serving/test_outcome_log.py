"""The outcome log on disk: one order for all processes, nothing half-written, bounded size, and every fault of the disk."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast.datasets.files import open_log
from endcast.datasets.segments import segment_path, segments
from endcast.errors import TraceError
from endcast.serving.outcomes.disk import Calls, DiskLog, Limits, LogRefused

Open = Callable[..., DiskLog]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """A function that opens the log as one more process would."""
    made: list[DiskLog] = []

    def new(limits: Limits | None = None, calls: Calls | None = None, lines: int = 1_000_000) -> DiskLog:
        log = DiskLog(tmp_path / "log", limits or Limits(), calls or Calls())
        log.begin(lines)
        made.append(log)
        return log

    yield new
    for log in made:
        log.close()


def append(log: DiskLog, *lines: bytes) -> list[bytes]:
    """Append lines; what was read before."""
    seen: list[bytes] = []
    log.append(seen.extend, lambda: [line + b"\n" for line in lines])
    return seen


def everything(log: DiskLog) -> list[bytes]:
    out: list[bytes] = []
    while lines := log.follow():
        out += lines
    return out


def test_what_one_appends_the_other_follows_once(opened: Open) -> None:
    one, other = opened(), opened()
    assert append(one, b"a", b"b") == []
    assert everything(other) == [b"a", b"b"] and everything(other) == []
    assert everything(one) == []  # its own lines it knows
    assert append(other, b"c") == [] and append(one, b"d") == [b"c"]
    assert everything(opened()) == [b"a", b"b", b"c", b"d"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 30)), max_size=25))
def test_all_see_one_order_whoever_writes_when(tmp_path: Path, steps: list[tuple[int, bool, int]]) -> None:
    folder = tmp_path / os.urandom(6).hex()
    logs = [DiskLog(folder, Limits(segment_bytes=60), Calls()) for _ in range(3)]
    seen: list[list[bytes]] = [[], [], []]
    for number, (who, writes, size) in enumerate(steps):
        line = f"{number}:".encode() + b"x" * size
        if writes:
            seen[who] += [*append(logs[who], line), line]
            logs[who].tidy()
        else:
            seen[who] += everything(logs[who])
    for who, log in enumerate(logs):
        seen[who] += everything(log)
        log.close()
    written = [i for i, (_, writes, _) in enumerate(steps) if writes]
    assert seen[0] == seen[1] == seen[2] and [int(line.split(b":")[0]) for line in seen[0]] == written


def test_segments_are_closed_packed_and_read_as_one_log(opened: Open, tmp_path: Path) -> None:
    log = opened(Limits(segment_bytes=10))
    lines = [f"line {i}".encode() for i in range(8)]
    for line in lines:
        append(log, line)
        log.tidy()
    found = segments(log.folder)
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert [one.packed for one in found] == [True, True, False, False]  # the last closed one may still be followed
    assert everything(opened()) == lines
    with open_log(log.folder) as whole:
        assert whole.stream().read().splitlines() == lines and whole.size == sum(map(len, lines)) + len(lines)
        assert whole.stream().read().splitlines() == lines  # from the beginning again


def test_a_segment_is_closed_for_its_age_by_a_steady_clock(opened: Open) -> None:
    now = [0.0]
    log = opened(Limits(segment_age_s=60.0), Calls(monotonic=lambda: now[0]))
    append(log, b"a")
    now[0] = 59.0
    append(log, b"b")
    now[0] = 61.0
    append(log, b"c")
    assert [one.number for one in segments(log.folder)] == [1, 2]


def test_size_is_bounded_and_the_oldest_go_first(opened: Open) -> None:
    log = opened(Limits(segment_bytes=1, keep_bytes=20))
    for i in range(9):
        append(log, f"line {i}".encode())
        log.tidy()
    numbers = [one.number for one in segments(log.folder)]
    assert numbers == list(range(numbers[0], 10)) and 1 not in numbers
    assert sum(one.path.stat().st_size for one in segments(log.folder)[:-1]) <= 20
    late = opened()
    assert everything(late)[-1] == b"line 8"


def test_who_was_away_while_segments_were_deleted_goes_on_and_counts_them(opened: Open) -> None:
    log, away = opened(Limits(segment_bytes=1, keep_bytes=0)), opened()
    append(log, b"a")
    assert everything(away) == [b"a"]
    for line in (b"b", b"c", b"d"):
        append(log, line)
        log.tidy()
    assert everything(away) == [b"d"] and away.lost == 2


def test_a_clock_that_jumps_ahead_does_not_empty_the_log(opened: Open) -> None:
    ahead = [0.0]
    log = opened(Limits(segment_bytes=1, keep_age_s=3_600.0), Calls(clock=lambda: time.time() + ahead[0]))
    for i in range(6):
        append(log, str(i).encode())
    ahead[0] = 1e9
    log.tidy()
    assert [one.number for one in segments(log.folder)] == [2, 3, 4, 5, 6]  # one a time, not all
    ahead[0] = -1e9
    log.tidy()
    assert [one.number for one in segments(log.folder)] == [2, 3, 4, 5, 6]


def test_a_torn_line_is_cut_off_and_counted(opened: Open) -> None:
    log = opened()
    append(log, b"whole")
    path = segment_path(log.folder, 1)
    with path.open("ab") as file:
        file.write(b'{"torn')
    assert everything(opened(lines=5)) == [b"whole"] and path.read_bytes() == b"whole\n"
    with path.open("ab") as file:
        file.write(b"again" * 30_000)
    other = opened()
    assert other.torn == 1
    with path.open("ab") as file:
        file.write(b"while both run")
    append(log, b"next")
    assert log.torn == 1 and path.read_bytes() == b"whole\nnext\n"
    assert everything(other) == [b"whole", b"next"]


class Disk:
    """Calls that fail when told: after ``room`` bytes the disk is full."""

    def __init__(self) -> None:
        self.room = 1 << 40
        self.syncs = True
        self.truncates = True

    def write(self, file: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(file, data[: self.room])
        self.room -= written
        return written

    def fsync(self, file: int) -> None:
        if not self.syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(file)

    def truncate(self, file: int, size: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(file, size)

    @property
    def calls(self) -> Calls:
        return Calls(write=self.write, fsync=self.fsync, truncate=self.truncate)


@pytest.mark.parametrize("room", [0, 3, 9, 17])
def test_a_full_disk_takes_nothing_and_recovers(opened: Open, room: int) -> None:
    disk = Disk()
    log = opened(calls=disk.calls)
    append(log, b"before")
    disk.room = room
    with pytest.raises(LogRefused, match="No space left"):
        append(log, b"one line", b"two lines")
    assert segment_path(log.folder, 1).read_bytes() == b"before\n"
    assert everything(opened()) == [b"before"]
    disk.room = 1 << 20
    append(log, b"one line", b"two lines")
    assert everything(opened()) == [b"before", b"one line", b"two lines"] and everything(log) == []


def test_what_is_not_synced_is_taken_back(opened: Open) -> None:
    disk = Disk()
    log = opened(calls=disk.calls)
    disk.syncs = False
    with pytest.raises(LogRefused, match="Input/output"):
        append(log, b"a")
    assert everything(opened()) == []
    disk.syncs = True
    append(log, b"b")
    assert everything(opened()) == [b"b"]


def test_a_disk_that_takes_nothing_back_leaves_whole_lines_only(opened: Open) -> None:
    disk = Disk()
    log = opened(calls=disk.calls)
    disk.room, disk.truncates = 10, False
    with pytest.raises(LogRefused):
        append(log, b"one", b"two lines")
    assert everything(opened()) == [b"one"]  # unacknowledged, and known when it is sent again
    disk.room = 1 << 20
    assert append(log, b"three") == [b"one"]
    assert everything(opened()) == [b"one", b"three"]


def test_a_process_that_holds_the_log_for_too_long_is_no_deadlock(opened: Open) -> None:
    held, go_on = threading.Event(), threading.Event()

    def choose() -> list[bytes]:
        held.set()
        assert go_on.wait(20)
        return [b"late\n"]

    first, second = opened(), opened(Limits(lock_s=0.05))
    holder = threading.Thread(target=lambda: first.append(lambda lines: None, choose))
    holder.start()
    assert held.wait(20)
    with pytest.raises(LogRefused, match="held the outcome log"):
        append(second, b"x")
    go_on.set()
    holder.join()
    assert append(second, b"x") == [b"late"]


def test_packing_that_was_interrupted_loses_nothing(opened: Open) -> None:
    log = opened(Limits(segment_bytes=1))
    for line in (b"a", b"b", b"c"):
        append(log, line)
    first = segment_path(log.folder, 1)
    segment_path(log.folder, 1, packed=True).write_bytes(zstandard.compress(b"half of it"))
    assert everything(opened()) == [b"a", b"b", b"c"]
    log.tidy()
    assert not first.exists() and everything(opened()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("segment_bytes", [1, 10, 33, 10_000])
@pytest.mark.parametrize("packed", [False, True])
def test_a_start_reads_as_many_lines_as_were_asked_for_however_long_the_log(
    opened: Open, segment_bytes: int, packed: bool
) -> None:
    log = opened(Limits(segment_bytes=segment_bytes))
    written = [f"line {i}".encode() for i in range(20)]
    for line in written:
        append(log, line)
    if packed:
        log.tidy()
    for lines in (0, 1, 3, 19, 20, 21):
        one = opened(lines=lines)
        assert everything(one) == written[max(len(written) - lines, 0) :]
        append(log, b"new")  # it goes on from there
        written.append(b"new")
        assert everything(one) == [b"new"]


def test_what_was_followed_can_be_read_again(opened: Open) -> None:
    log = opened(Limits(segment_bytes=10))
    for i in range(5):
        append(log, f"line {i}".encode())
    again = opened()
    assert [line for lines in again.recent(10) for line in lines] == []
    everything(again)
    append(log, b"not followed yet")
    assert [line for lines in again.recent(3) for line in lines] == [b"line 2", b"line 3", b"line 4"]


def test_a_folder_that_cannot_be_used_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot keep the outcome log here"):
        DiskLog(tmp_path / "file" / "log", Limits(), Calls())
    with pytest.raises(TraceError, match="folder without an outcome log"), open_log(tmp_path):
        pass
