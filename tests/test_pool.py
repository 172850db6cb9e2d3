"""Tasks in worker processes: one may hang or end, and none outlives its parent."""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from warpsmith.proof import mps, pool

#: A task that needs no operator, and no time to import.
SLEEPER = """
import dataclasses, time

@dataclasses.dataclass(frozen=True)
class Sleeper:
    seconds: float
    cost: float
    rank: float = 0.0
    bytes: float = 0.0

    def run(self, emit, crowded):
        emit(self.seconds)
        time.sleep(self.seconds)
"""


def wait_for(condition: Callable[[], bool], seen: Callable[[], object] = str) -> None:
    """As long as workers may take to start: until then they do not look for their parent. `seen` is
    what to tell of a wait in vain.
    """
    ends = time.monotonic() + pool.STARTUP_SECONDS
    while not condition():
        assert time.monotonic() < ends, f"waited in vain {seen()}"
        time.sleep(0.1)


def living(processes: list[str]) -> dict[str, str]:
    """The status of those that are there and no zombies."""
    found = {}
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[process] = Path(f"/proc/{process}/status").read_text()
    return {process: status for process, status in found.items() if "State:\tZ" not in status}


def test_a_hang_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    make = importlib.import_module("sleeper").Sleeper
    tasks = [make(0.0, cost=1.0), make(3600.0, cost=2.0)]
    quick, hung = pool.run(tasks, jobs=1, timeout=4.0)
    assert hung == pool.Outcome([3600.0], "no result for 4 s, stopped")
    assert quick == pool.Outcome([0.0])


def test_what_ends_a_worker_under_a_shared_service_is_run_again_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = "import os; os.environ.get('SHARED') == 'yes' and os._exit(3)"
    (tmp_path / "sleeper.py").write_text(SLEEPER.replace("time.sleep", f"{ends}; time.sleep"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "sleeper", raising=False)
    make = importlib.import_module("sleeper").Sleeper
    crowd = pool._Crowd([make(0.0, cost=1.0), make(0.5, cost=2.0)], None, None, None, None)
    outcomes: dict[int, pool.Outcome] = {}
    assert sorted(crowd.work([0, 1], 2, outcomes, shared={"SHARED": "yes"})) == [0, 1]
    assert outcomes == {}
    assert crowd.work([0, 1], 2, outcomes) == []
    assert outcomes == {0: pool.Outcome([0.0]), 1: pool.Outcome([0.5])}


CONTROL = """#!/bin/sh
said=$(cat)
echo "$* $said $CUDA_VISIBLE_DEVICES" >> {log}
cd "$CUDA_MPS_PIPE_DIRECTORY"
test "$said" = quit && exec rm control
touch control
while test -e control; do sleep 0.05; done
"""


@pytest.mark.parametrize("works", [True, False])
def test_a_service_of_its_own(works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(CONTROL.format(log=log))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    seen = "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '1'; "
    trial = f"{seen}assert os.path.isdir(os.environ['CUDA_MPS_PIPE_DIRECTORY']) is {works}"
    monkeypatch.setattr(mps, "_TRIAL", (sys.executable, "-c", trial))
    with mps.service() as shared:
        assert bool(shared) == works
        assert all(Path(folder).is_dir() for folder in shared.values())
    assert not any(Path(folder).exists() for folder in shared.values())
    assert [line.split() for line in log.read_text().splitlines()] == [["-f"], ["quit"]]
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp")  # that of the caller serves
    with mps.service() as shared:
        assert shared == {}
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with mps.service() as shared:
        assert shared == {}


def test_workers_end_with_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(
        SLEEPER.replace(
            "time.sleep(self", "open(__file__ + '.began', 'w').close(); time.sleep(self"
        )
    )
    script = "from sleeper import Sleeper; from warpsmith.proof import pool; " + (
        "pool.run([Sleeper(3600.0, 1.0)] * 2, jobs=2)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], env=pool.environment())
    wait_for((tmp_path / "sleeper.py.began").exists)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    workers: list[str] = []

    def both_are_there() -> bool:  # a read may miss some while others come or go
        workers[:] = children.read_text().split()
        return len(workers) == 2

    wait_for(both_are_there)
    parent.kill()
    parent.wait()
    wait_for(lambda: not living(workers), seen=lambda: living(workers))


def test_a_worker_whose_parent_is_gone_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        worker = subprocess.run(
            [*pool.COMMAND, str(gone.pid), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=pool.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            timeout=pool.STARTUP_SECONDS,
        )
    assert worker.returncode == -signal.SIGKILL, worker.stderr.decode()


@pytest.mark.parametrize("times", [1, pool.MORE])
@pytest.mark.parametrize(("gib", "jobs"), [(140, 16), (80, 8), (24, 3)])
def test_workers_cannot_take_each_others_memory(
    gib: int, jobs: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = gib * pool.GIB
    properties = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    memory = pool.Memory.of(0, jobs, times)

    def task(size: float) -> Any:
        return SimpleNamespace(bytes=size)

    ordinary, unlimited = task(pool.TASK_BYTES), task(math.inf)
    if times == 1:
        assert memory.of_task(unlimited) > 2 * memory.of_task(ordinary)
        assert memory.holds(unlimited, [ordinary] * (jobs - 1))
    else:
        assert memory.of_task(ordinary) == times * pool.TASK_BYTES
    assert not memory.holds(unlimited, [unlimited])
    for size in (pool.TASK_BYTES, 2 * pool.TASK_BYTES, total, math.inf):
        busy: list[Any] = []
        while len(busy) < jobs and memory.holds(task(size), busy):
            busy.append(task(size))
        assert busy
        taken = sum(pool.Share(0, memory.of_task(other)).fraction() * total for other in busy)
        assert taken + jobs * pool.CONTEXT_BYTES <= total
    assert pool.Share(0, math.inf).fraction() == 1.0


def test_automatic_jobs() -> None:
    assert 1 <= pool.sensible_jobs(torch.device("cpu")) <= (os.cpu_count() or 1)


def test_gpus_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["H200", "L4", "H200"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: kinds[i])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pool.visible_orders() == ["0,1,2", "2,0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,4,1")
    assert pool.visible_orders() == ["7,4,1", "1,7,4"]
    assert pool.visible_orders(spread=False) == ["1,7,4"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pool.visible_orders() == []
