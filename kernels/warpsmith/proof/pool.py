"""Tasks in worker processes side by side, where one may crash, hang or lose its GPU and end no
other.

Every worker is a fresh interpreter (`python -m warpsmith.proof.worker`) in a session of its own,
which takes tasks one after another until one of them ends it. Tasks of a rank go from the costliest
to the cheapest. On a GPU as many run side by side as there is memory for by their own account, and
none may allocate more than it said, so that it starves no other. Tasks that want more are run again
at the end, with several times as much and so beside fewer; those that want still more, alone.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from warpsmith.native import machine
from warpsmith.proof import mps

GIB = 1 << 30
#: What an ordinary task may allocate on a GPU: several times what the largest of them needs.
TASK_BYTES = 3 * GIB
#: How many times what it said a task may allocate that wanted more.
MORE = 4
#: What a worker's CUDA context and loaded kernels take beside it.
CONTEXT_BYTES = GIB
#: Memory of the host that a worker may need.
HOST_BYTES = 4 * GIB
#: Importing PyTorch may take so long where many workers start together.
STARTUP_SECONDS = 180.0

#: How a worker is started; the numbers of this process and of a file descriptor follow. By the time
#: that a worker could look for its parent itself, another may have taken its place.
COMMAND: tuple[str, ...] = (sys.executable, "-X", "faulthandler", "-m", "warpsmith.proof.worker")

Emit = Callable[[Any], None]


class LostDeviceError(RuntimeError):
    """A kernel broke the CUDA context; nothing can run in this process any more."""


class CrowdedError(RuntimeError):
    """The GPU's memory ran out while other workers had theirs of it, which says nothing about the
    task.
    """


class Task(Protocol):
    """What a worker does at a stretch; travels there by pickle."""

    @property
    def cost(self) -> float:
        """An estimate, in any unit: of one rank the costliest are started first."""

    @property
    def rank(self) -> float:
        """The highest are started first."""

    @property
    def bytes(self) -> float:
        """What it may allocate on a GPU; infinity for as much as can be had beside ordinary tasks,
        of which kind one runs at a time.
        """

    def run(self, emit: Emit, crowded: bool) -> None:
        """Does it; hands each piece of the result to `emit` as it is known.

        Raises:
            CrowdedError: where `crowded` and the GPU's memory ran out.
            LostDeviceError: the result is complete, but the worker must end.
        """


@dataclass
class Outcome:
    """What became of a task: all that it emitted, and what ended it early, if something did."""

    items: list[Any] = field(default_factory=list)
    fault: str = ""


@dataclass(frozen=True)
class Memory:
    """What a GPU has for tasks, once the workers' contexts are there."""

    room: float
    jobs: int
    times: int = 1  # what a task said

    @staticmethod
    def of(device: int, jobs: int, times: int) -> Memory:
        total = torch.cuda.get_device_properties(device).total_memory
        return Memory(max(0.0, total - jobs * CONTEXT_BYTES), jobs, times)

    def of_task(self, task: Task) -> float:
        """What a task is promised."""
        if math.isinf(task.bytes):
            return max(TASK_BYTES, self.room - self.jobs * TASK_BYTES)
        return min(self.times * task.bytes, max(TASK_BYTES, self.room))

    def holds(self, task: Task, others: Sequence[Task]) -> bool:
        """Whether a task may start beside others."""
        if not others:
            return True
        if math.isinf(task.bytes) and any(math.isinf(other.bytes) for other in others):
            return False
        return self.of_task(task) + sum(map(self.of_task, others)) <= self.room


@dataclass(frozen=True)
class Share:
    """A GPU, and the bytes of its memory that a task may allocate."""

    device: int
    bytes: float

    def fraction(self) -> float:
        total = torch.cuda.get_device_properties(self.device).total_memory
        return min(1.0, self.bytes / total)


# --- how many -------------------------------------------------------------------------------------


def _host_memory() -> float:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return math.inf


def sensible_jobs(device: torch.device) -> int:
    """As many workers as there are cores and memory for; half of a GPU is left to large tasks."""
    count = min(machine.cores(), _host_memory() // HOST_BYTES)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        count = min(count, free // 2 // (TASK_BYTES + CONTEXT_BYTES))
    return max(1, int(count))


def visible_orders(spread: bool = True) -> list[str]:
    """A CUDA_VISIBLE_DEVICES for each GPU of the current one's kind, or for that one alone: it is
    first, and all others stay visible, as libraries are made for all that are.
    """
    count = torch.cuda.device_count()
    if count == 0:
        return []
    chosen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = chosen or [str(i) for i in range(count)]
    current = torch.cuda.current_device()
    kind = torch.cuda.get_device_name(current)
    alike = [i for i in range(count) if torch.cuda.get_device_name(i) == kind]
    return [
        ",".join([names[i], *names[:i], *names[i + 1 :]]) for i in (alike if spread else [current])
    ]


def deal(costs: Mapping[str, float], count: int) -> list[list[str]]:
    """Names in at most so many piles of about the same cost."""
    piles: list[list[str]] = [[] for _ in range(min(count, len(costs)))]
    for name in sorted(costs, key=lambda name: -costs[name]):
        min(piles, key=lambda pile: sum(costs[other] for other in pile)).append(name)
    return piles


# --- one worker -----------------------------------------------------------------------------------


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for another that is to import this same package."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **changes}


class _Worker:
    """A worker process, the task that it is at, and when it was last heard of."""

    def __init__(self, jobs: int, shared: Mapping[str, str]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.index = -1
        self.outcome = Outcome()
        self.heard = time.monotonic()
        self.started = False
        self.process = subprocess.Popen(
            [*COMMAND, str(os.getpid()), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment(
                OMP_NUM_THREADS=str(max(1, machine.cores() // jobs)),
                TORCHINDUCTOR_COMPILE_THREADS="1",
                WARPSMITH_BUILD="0",
                **shared,
            ),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()

    def give(self, index: int, task: Task, share: Share | None, crowded: bool) -> None:
        self.index, self.outcome, self.heard = index, Outcome(), time.monotonic()
        with contextlib.suppress(OSError):  # a dead worker shows when it is listened to
            self.connection.send((task, share, crowded))

    def silent(self, timeout: float | None) -> bool:
        if timeout is None:
            return False
        patience = timeout if self.started else max(timeout, STARTUP_SECONDS)
        return time.monotonic() - self.heard > patience

    def last_words(self) -> str:
        """How the process ended, and the end of what it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        status = self.process.poll()
        how = f"exit status {status}"
        if status is not None and status < 0:
            how = signal.strsignal(-status) or f"signal {-status}"
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 1500))
        return f"its process ended ({how})\n{self.log.read().decode(errors='replace')}".strip()

    def stop(self) -> None:
        """Ends the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.connection.close()
        self.log.close()


def _stop(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().stop()


# --- all of them ----------------------------------------------------------------------------------


def run(
    tasks: Sequence[Task],
    *,
    jobs: int,
    device: torch.device | None = None,
    timeout: float | None = None,
    progress: Emit | None = None,
    done: Callable[[int, Outcome], None] | None = None,
    at_once: bool = False,
) -> list[Outcome]:
    """Runs tasks in worker processes, which end with this call, however it ends.

    Workers compile no library of kernels: those that the tasks need must be there.

    Args:
        tasks: what to run.
        jobs: how many workers may run side by side.
        device: the GPU whose memory they share, if they do.
        timeout: seconds after which a worker that emits nothing is stopped; None waits for ever.
        progress: called with each item as it is emitted. What a task emitted before it ran out of
            memory beside others comes again when it is run again.
        done: called with a task's index and outcome when that is known.
        at_once: whether workers may share the GPU by `mps`. A task that ended its worker there may
            have been ended by another's: it is run again at the end without.

    Returns:
        An outcome per task, in their order.
    """
    outcomes: dict[int, Outcome] = {}
    crowd = _Crowd(tasks, device, timeout, progress, done)
    with contextlib.ExitStack() as stack:
        able = at_once and crowd.on_gpu and jobs > 1
        shared = stack.enter_context(mps.service()) if able else {}
        again = crowd.work(range(len(tasks)), jobs, outcomes, shared=shared)
    if crowd.on_gpu:
        again = crowd.work(again, jobs, outcomes, MORE)
    crowd.work(again, 1, outcomes)
    return [outcomes[index] for index in range(len(tasks))]


@dataclass(frozen=True)
class _Crowd:
    tasks: Sequence[Task]
    device: torch.device | None
    timeout: float | None
    progress: Emit | None
    done: Callable[[int, Outcome], None] | None

    @property
    def on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def work(
        self,
        indices: Sequence[int],
        jobs: int,
        outcomes: dict[int, Outcome],
        times: int = 1,
        shared: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Runs some of the tasks, each with so many times the memory that it said; returns those to
        be run again: memory was short beside others, or, where they are `shared` by `mps`, the
        worker ended.
        """
        memory = self._memory(jobs, times)
        waiting = sorted(
            indices,
            key=lambda i: (-self.tasks[i].rank, -self.tasks[i].cost, -self.tasks[i].bytes),
        )
        again: list[int] = []
        idle: list[_Worker] = []
        busy: list[_Worker] = []
        try:
            while waiting or busy:
                while len(busy) < jobs and (index := self._next(waiting, busy, memory)) is not None:
                    waiting.remove(index)
                    worker = idle.pop() if idle else _Worker(jobs, shared or {})
                    # Where nothing else can start until it is done, it may have the whole GPU.
                    alone = not busy and (
                        jobs == 1 or self._next(waiting, [], memory, index) is None
                    )
                    if alone:
                        _stop(idle)
                    share = self._share(index, None if alone else memory)
                    worker.give(index, self.tasks[index], share, crowded=not alone)
                    busy.append(worker)
                _stop(idle)  # there is nothing for them now; their memory may serve others
                ready = multiprocessing.connection.wait([w.connection for w in busy], 0.5)
                for worker in list(busy):
                    state = self._listen(worker) if worker.connection in ready else "running"
                    if state == "running":
                        if not worker.silent(self.timeout):
                            continue
                        worker.outcome.fault = f"no result for {self.timeout:.0f} s, stopped"
                        state = "ended"
                    busy.remove(worker)
                    if state == "crowded" or (state == "ended" and shared):
                        again.append(worker.index)
                    else:
                        outcomes[worker.index] = worker.outcome
                        if self.done is not None:
                            self.done(worker.index, worker.outcome)
                    if state == "ended":
                        worker.stop()
                    else:
                        idle.append(worker)
        finally:
            _stop(busy)
            _stop(idle)
        return again

    def _memory(self, jobs: int, times: int) -> Memory | None:
        if self.device is None or not self.on_gpu:
            return None
        return Memory.of(self.device.index or 0, jobs, times)

    def _share(self, index: int, memory: Memory | None) -> Share | None:
        """None of a machine without a GPU; without `memory`, all that there is."""
        if self.device is None or not self.on_gpu:
            return None
        allowed = math.inf if memory is None else memory.of_task(self.tasks[index])
        return Share(self.device.index or 0, allowed)

    def _next(
        self,
        waiting: Sequence[int],
        busy: Sequence[_Worker],
        memory: Memory | None,
        *starting: int,
    ) -> int | None:
        """The first task that may start beside what runs and starts; an unlimited one wherever
        none is running.
        """
        others = [self.tasks[i] for i in (*(worker.index for worker in busy), *starting)]
        able = [i for i in waiting if memory is None or memory.holds(self.tasks[i], others)]
        unlimited = (i for i in able if math.isinf(self.tasks[i].bytes))
        return next(unlimited, next(iter(able), None))

    def _listen(self, worker: _Worker) -> str:
        """Takes what a worker says; "running", "done", "crowded", or "ended" where it is lost."""
        try:
            while worker.connection.poll():
                kind, content = worker.connection.recv()
                worker.heard, worker.started = time.monotonic(), True
                if kind == "item":
                    worker.outcome.items.append(content)
                    if self.progress is not None:
                        self.progress(content)
                elif kind != "ready":
                    worker.outcome.fault = content
                    return str(kind)
        except (EOFError, OSError):
            worker.outcome.fault = worker.last_words()
            return "ended"
        return "running"
