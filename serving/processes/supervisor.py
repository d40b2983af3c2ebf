"""Several processes that share one listening socket, and the supervisor that keeps them.

The supervisor keeps a copy of the bundle that is served, so that a process that died comes back with the same one whatever
has become of the folder by then. A new bundle is served in two steps: all processes prepare it, and only if all could, all
serve it. A process that serves another one than it should is not ready, and says so.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from endcast.errors import BundleError, EndcastError
from endcast.predictors.bundle import read_bundle
from endcast.serving.bundles.reload import signature
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.worker import Message, work

LOG = logging.getLogger("endcast.processes")

#: Seconds in which a process has to prepare a bundle, and to serve it.
LONGEST_PREPARE_S, LONGEST_COMMIT_S = 300.0, 30.0
#: A process that dies within ``YOUNG_S`` seconds is started again after a while that doubles up to ``LONGEST_PAUSE_S``.
YOUNG_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 0.5, 10.0


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    link: Connection
    started: float = field(default_factory=time.monotonic)
    served: bool = False  #: whether it ever did


class Supervisor:
    """Starts, watches, reloads and stops the processes."""

    def __init__(self, folder: Path, settings: Settings, listening: socket.socket, copies: Path) -> None:
        self._folder, self._settings, self._listening, self._copies = folder, settings, listening, copies
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._asked: list[_Worker] = []  #: who waits for a reload's result
        self._reload_due, self._stopping = False, False
        self._start_at: list[float] = []
        self._pause = FIRST_PAUSE_S
        self.copy, self.agreed = self._take()

    def _take(self) -> tuple[Path, str]:
        """A checked copy of the bundle that the folder has now, and its id."""
        target = Path(tempfile.mkdtemp(prefix="bundle-", dir=self._copies)) / "bundle"
        try:
            bundle = read_bundle(self._folder)  # refused before it is copied, with the folder's own name in the message
            shutil.copytree(self._folder, target)
            if read_bundle(target).id != bundle.id:
                raise BundleError(f"{self._folder} changed while it was read", hint="Load it again")
        except OSError as error:
            shutil.rmtree(target.parent, ignore_errors=True)
            raise BundleError(f"cannot copy {self._folder}: {error.strerror}") from None
        except BaseException:
            shutil.rmtree(target.parent, ignore_errors=True)
            raise
        return target, bundle.id

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        with _wakeups() as woken:
            for _ in range(self._settings.processes):
                self._start()
            try:
                self._watch(woken)
            finally:
                self._stop()

    def _watch(self, woken: socket.socket) -> None:
        seen, look_at = signature(self._folder), time.monotonic() + self._settings.watch_s
        while not self._stopping:
            self._take_in(wait([*self._waited_for(), woken], timeout=self._idle_s(look_at)), woken)
            now = time.monotonic()
            if self._settings.watch_s and now >= look_at:
                look_at = now + self._settings.watch_s
                found = signature(self._folder)
                self._reload_due, seen = self._reload_due or found != seen, found
            due = [at for at in self._start_at if at <= now]
            self._start_at = [at for at in self._start_at if at > now]
            for _ in due:
                self._start()
            if self._reload_due and not self._stopping:
                self._reload_due = False
                self._reload()

    def _idle_s(self, look_at: float) -> float | None:
        times = [*self._start_at, *([look_at] if self._settings.watch_s else [])]
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _waited_for(self) -> list[Connection | int]:
        return [part for worker in self._workers for part in (worker.link, worker.process.sentinel)]

    def _take_in(self, ready: Sequence[object], woken: socket.socket) -> None:
        if woken in ready:
            for number in woken.recv(64):
                self._stopping |= number in (signal.SIGTERM, signal.SIGINT)
                self._reload_due |= number == signal.SIGHUP
        for worker in [*self._workers]:
            if worker.link in ready or worker.process.sentinel in ready:
                message = self._receive(worker)
                if message is not None and message.kind == "reload":
                    self._asked.append(worker)
                    self._reload_due = True

    def _receive(self, worker: _Worker) -> Message | None:
        """The next message of a process; ``None`` if there is none, or it is dead and has been buried."""
        try:
            if worker.link.poll():
                message = msgspec.json.decode(worker.link.recv_bytes(), type=Message)
                worker.served |= message.kind == "serving"
                return message
        except (EOFError, OSError):
            worker.process.join(1.0)
        if not worker.process.is_alive():
            self._bury(worker)
        return None

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        settings = self._settings
        arguments = (str(self.copy), settings, self._listening, theirs, self.agreed)
        process = self._context.Process(target=work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _bury(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._asked = [other for other in self._asked if other is not worker]
        worker.link.close()
        if self._stopping:
            return
        if not worker.served and self._pause == FIRST_PAUSE_S:
            LOG.error("a process ended while it started", extra={"fields": {"exit": worker.process.exitcode}})
        else:
            LOG.error("a process ended; it is started again", extra={"fields": {"exit": worker.process.exitcode}})
        young = time.monotonic() - worker.started < YOUNG_S
        pause = self._pause if young else 0.0
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S) if young else FIRST_PAUSE_S
        self._start_at.append(time.monotonic() + pause)

    def _reload(self) -> None:
        """Load what the folder has in all processes, or in none; tell those that asked."""
        try:
            copy, bundle = self._take()
            if bundle == self.agreed:
                shutil.rmtree(copy.parent)
            else:
                self._everywhere(copy, bundle)
            told = Message("reloaded", bundle=self.agreed)
        except EndcastError as error:
            LOG.error("bundle refused", extra={"fields": {"why": error.message, "served": self.agreed}})
            told = Message("refused", why=error.message)
        asked, self._asked = self._asked, []
        for worker in asked:
            self._send(worker, told)

    def _everywhere(self, copy: Path, bundle: str) -> None:
        workers = [*self._workers]
        for worker in workers:
            self._send(worker, Message("prepare", path=str(copy)))
        refused = [
            why for worker in workers if (why := self._answer(worker, "prepared", LONGEST_PREPARE_S)) is not None
        ]
        if refused or not workers:
            shutil.rmtree(copy.parent, ignore_errors=True)
            raise BundleError(refused[0] if refused else "no process is running")
        old, self.copy, self.agreed = self.copy, copy, bundle  # whoever starts from here on starts with the new one
        for worker in workers:
            self._send(worker, Message("commit", bundle=bundle))
        for worker in workers:
            self._answer(worker, "committed", LONGEST_COMMIT_S)  # one that cannot is not ready, and says so
        shutil.rmtree(old.parent, ignore_errors=True)
        LOG.info("bundle served", extra={"fields": {"bundle": bundle, "processes": len(workers)}})

    def _answer(self, worker: _Worker, kind: str, seconds: float) -> str | None:
        """Wait for a process's answer; why it is not the one hoped for, if it is not."""
        until = time.monotonic() + seconds
        while worker in self._workers:
            left = until - time.monotonic()
            if left <= 0 or not wait([worker.link, worker.process.sentinel], timeout=left):
                return "a process did not answer in time"
            message = self._receive(worker)
            if message is None:
                continue
            if message.kind == "reload":
                self._asked.append(worker)
            elif message.kind in (kind, "refused"):
                return message.why
        return "a process ended while it prepared the bundle"

    def _send(self, worker: _Worker, message: Message) -> None:
        try:
            worker.link.send_bytes(msgspec.json.encode(message))
        except OSError:  # it is dead: its sentinel says so as well
            LOG.warning("a process could not be told of %s", message.kind)

    def _stop(self) -> None:
        """All finish what is on its way; those that do not are killed."""
        self._stopping = True
        for worker in self._workers:
            worker.process.terminate()
        until = time.monotonic() + self._settings.grace_s + 5.0
        for worker in self._workers:
            worker.process.join(max(until - time.monotonic(), 0.1))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.link.close()


@contextmanager
def _wakeups() -> Iterator[socket.socket]:
    """A socket that tells the numbers of the signals that came."""
    reading, writing = socket.socketpair()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    writing.setblocking(False)
    old = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        reading.close()
        writing.close()


def supervise(folder: Path, settings: Settings, listening: socket.socket) -> None:
    """Serve a folder's bundle with ``settings.processes`` processes until SIGTERM or SIGINT, then return."""
    copies = Path(tempfile.mkdtemp(prefix=f"endcast-{os.getpid()}-"))
    try:
        Supervisor(folder, settings, listening, copies).run()
    finally:
        shutil.rmtree(copies, ignore_errors=True)
