"""Runs in processes of their own and runs kept: the same results, no process left behind, nothing played twice."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from endcast.cli.simulation_resume import RunFolder
from endcast.errors import InputError, SimulationError
from endcast.router.forecasts import Oracle
from endcast.router.parallel import played
from endcast.router.results import SimulationReport
from endcast.router.simulator import Kept, PlayedRun, Progress, SimulationSettings, simulate
from endcast.router.workload import Workload


def workload(count: int = 80) -> Workload:
    rng = np.random.default_rng(0)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=rng.integers(0, 900, count),
        output=rng.geometric(0.05, count),
    )


FLEET = SimulationSettings(workers=2, slots=4, utilization=1.1, seeds=2)


def without_times(report: SimulationReport) -> object:
    told = report.to_json()
    for one in told["policies"]:
        del one["decision_ms"], one["spread"]["decision_ms"]
    return told


def test_processes_give_what_one_after_the_other_gives() -> None:
    load, heard, seen = workload(), list[Progress](), list[tuple[str, int]]()
    arguments = {"policies": ["random", "br_h"], "forecasts": [Oracle(load.output)]}
    serial = simulate(load, FLEET, **arguments)  # type: ignore[arg-type]

    def watch(run: PlayedRun) -> None:
        seen.append((run.policy, run.seed))

    parallel = simulate(load, FLEET, **arguments, jobs=2, progress=heard.append, watch=watch)  # type: ignore[arg-type]
    assert without_times(parallel) == without_times(serial)
    assert seen == [("random", 0), ("random", 1), ("br_h", 0), ("br_h", 1)]
    assert [one.done for one in heard] == sorted(one.done for one in heard)
    assert heard[-1].done == heard[-1].total == 4 * 80
    assert multiprocessing.active_children() == []


FAILING = """
import os
from endcast.errors import SimulationError
def failing(task, tell):
    if task == 2:
        raise SimulationError("two is too many", hint="Take one")
    if task == 5:
        os._exit(3)
    tell(10 * task)
    return task * task
"""


def test_results_come_in_order_and_failures_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_runs.py").write_text(FAILING)  # a module that other processes can import
    monkeypatch.syspath_prepend(tmp_path)
    play = importlib.import_module("failing_runs").failing
    heard: list[tuple[int, int]] = []
    assert list(played(play, [4, 3, 1], 2, lambda i, served: heard.append((i, served)))) == [16, 9, 1]
    assert sorted(heard) == [(0, 40), (1, 30), (2, 10)]
    with pytest.raises(SimulationError, match=r"two is too many\. Take one"):
        list(played(play, [1, 2], 2, lambda i, served: None))
    with pytest.raises(SimulationError, match="a process that played a run has vanished"):
        list(played(play, [5], 1, lambda i, served: None))
    assert multiprocessing.active_children() == []


ENDLESS = """
import sys, time
sys.path.insert(0, {folder!r})
from endless import forever
from endcast.router.parallel import played
if __name__ == "__main__":
    print("started", flush=True)
    list(played(forever, [0, 1], 2, lambda i, served: print("pid", served, flush=True)))
"""
FOREVER = """
import os, time
def forever(task, tell):
    while True:
        tell(os.getpid())
        time.sleep(0.05)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes() if Path("/proc").exists() else True


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_no_orphan_is_left(sign: signal.Signals, tmp_path: Path) -> None:
    """Whether the parent is interrupted or killed outright, its processes end."""
    (tmp_path / "endless.py").write_text(FOREVER)
    script = tmp_path / "script.py"
    script.write_text(ENDLESS.format(folder=str(tmp_path)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert parent.stdout is not None
    pids: set[int] = set()
    while len(pids) < 2:
        line = parent.stdout.readline().decode()
        assert line, "the parent has ended"
        if line.startswith("pid"):
            pids.add(int(line.split()[1]))
    parent.send_signal(sign)
    parent.wait(60)
    parent.stdout.close()
    until = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_kept_runs_are_not_played_again(tmp_path: Path) -> None:
    load = workload()
    arguments = {"policies": ["random", "br_h"], "forecasts": [Oracle(load.output)]}
    plain = simulate(load, FLEET, **arguments)  # type: ignore[arg-type]

    class Interrupt(Exception):
        pass

    count = 0

    def watch(run: PlayedRun) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise Interrupt

    with pytest.raises(Interrupt):
        simulate(load, FLEET, **arguments, watch=watch, kept=Kept(RunFolder(tmp_path)))  # type: ignore[arg-type]
    folder = RunFolder(tmp_path)
    resumed = simulate(load, FLEET, **arguments, kept=Kept(folder))  # type: ignore[arg-type]
    assert folder.taken == 3 and len(list(tmp_path.iterdir())) == 4
    assert without_times(resumed) == without_times(plain)
    again = RunFolder(tmp_path)
    complete = simulate(load, FLEET, **arguments, kept=Kept(again))  # type: ignore[arg-type]
    assert again.taken == 4 and complete.to_json() == resumed.to_json()  # times included: nothing was played


@pytest.mark.parametrize(
    ("fleet", "log", "told", "taken"),
    [
        (FLEET, workload(), "", 2),
        (SimulationSettings(workers=2, slots=4, utilization=1.1, seeds=3), workload(), "", 2),
        (SimulationSettings(workers=2, slots=4, utilization=1.2, seeds=2), workload(), "", 0),
        (SimulationSettings(workers=2, slots=4, utilization=1.1, seeds=2, horizon=5), workload(), "", 0),
        (FLEET, workload(79), "", 0),
        (FLEET, workload(), "another model", 0),
    ],
)
def test_a_kept_run_is_taken_for_the_same_run_only(
    fleet: SimulationSettings, log: Workload, told: str, taken: int, tmp_path: Path
) -> None:
    simulate(workload(), FLEET, policies=["random"], kept=Kept(RunFolder(tmp_path)))
    folder = RunFolder(tmp_path)
    simulate(log, fleet, policies=["random"], kept=Kept(folder, told))
    assert folder.taken == taken


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    simulate(workload(), FLEET, policies=["random"], kept=Kept(RunFolder(tmp_path)))
    path = min(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=rf"{path.name} is damaged .* Delete it"):
        simulate(workload(), FLEET, policies=["random"], kept=Kept(RunFolder(tmp_path)))
