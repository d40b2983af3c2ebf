"""Runs of a simulation in processes of their own: the same records as one after the other, in the same order.

Each process gets the workload and the forecasts once and then plays one run after another. It ignores Ctrl-C, which
belongs to the parent: the parent ends its processes whatever ends it, and a process whose parent has vanished ends at
its next word, because nobody listens.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from endcast.errors import EndcastError, SimulationError

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Kinds of word that a process says: requests served so far, a run's result, why it failed.
_SERVED, _DONE, _FAILED = range(3)
_JOIN_S = 5.0


#: Plays one run and tells how far it is.
Play = Callable[[Task, Callable[[int], None]], Result]


def played(
    play: Play[Task, Result], tasks: Sequence[Task], jobs: int, tell: Callable[[int, int], None]
) -> Generator[Result, None, None]:
    """Results of all tasks, in order, up to ``jobs`` of them at the same time, each process being sent ``play`` once.
    ``tell`` hears of a task's index and progress.

    ``SimulationError`` if a run fails or its process vanishes; no process is left behind, however this ends.
    """
    with _processes(play, min(jobs, len(tasks))) as lines:
        upcoming, found, given = deque(range(len(tasks))), dict[int, Result](), 0
        at_work: dict[Connection, int] = {}
        for line in lines:
            _assign(line, tasks, upcoming, at_work)
        while given < len(tasks):
            heard = wait(list(at_work))
            for line in [line for line in at_work if line in heard]:
                index = at_work[line]
                kind, word = _heard(line)
                if kind == _SERVED:
                    tell(index, word)
                elif kind == _FAILED:
                    raise SimulationError(word[0], hint=word[1])
                else:
                    found[index] = word
                    del at_work[line]
                    _assign(line, tasks, upcoming, at_work)
            while given in found:
                yield found.pop(given)
                given += 1


def _assign(line: Connection, tasks: Sequence[Task], upcoming: deque[int], at_work: dict[Connection, int]) -> None:
    if upcoming:
        at_work[line] = upcoming.popleft()
        line.send(tasks[at_work[line]])


def _heard(line: Connection) -> tuple[int, Any]:
    try:
        word: tuple[int, Any] = line.recv()
        return word
    except EOFError:
        raise SimulationError(
            "a process that played a run has vanished",
            hint="What it said is above; if nothing, it may have run out of memory: try fewer --jobs",
        ) from None


@contextmanager
def _processes(play: Play[Task, Result], count: int) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    members: list[tuple[SpawnProcess, Connection]] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, play), daemon=True)
            process.start()
            theirs.close()
            members.append((process, ours))
        yield [line for _, line in members]
    finally:
        for process, line in members:
            line.close()
            process.terminate()
        for process, _ in members:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


class _Teller:
    def __init__(self, line: Connection) -> None:
        self._line = line

    def __call__(self, served: int) -> None:
        self._line.send((_SERVED, served))


def _work(line: Connection, play: Play[Task, Result]) -> None:
    """The life of a process: tasks come in, words go out, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tell = _Teller(line)
    try:
        while True:
            task = line.recv()
            try:
                word: tuple[int, Any] = (_DONE, play(task, tell))
            except EndcastError as error:
                word = (_FAILED, (error.message, error.hint))
            line.send(word)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent has gone
        return
