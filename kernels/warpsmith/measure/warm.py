"""Compiles what a benchmark compares with (torch.compile, Triton twins, peers) before it is timed.

Workers call every implementation but PyTorch's and our CUDA kernels once, on the arguments that
will be timed, and so fill the caches on disk of Inductor and Triton. The benchmark itself stays one
process, finds the compiled code there, and times nothing that was not run by itself. What Inductor
chose among several configurations of a kernel it measured beside other workers, so the choice is
forgotten: it is made again where it is timed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op, Sample
from warpsmith.measure import bench
from warpsmith.measure.bench import Case, Plan
from warpsmith.native import finding
from warpsmith.proof import pool

#: Never compiled here.
_READY = ("auto", "torch")
#: Arguments and what implementations allocate beside them, relative to the arguments.
_ROOM = 4


@dataclass(frozen=True)
class Warming:
    """One case of an operator: a task of `pool`. It emits the name of each implementation that it
    calls.
    """

    op: str
    dtype: str
    sample: int
    plan: Plan
    bytes: float
    cost: float = 1.0
    rank: float = 0.0

    def run(self, emit: Callable[[str], None], crowded: bool) -> None:
        op = catalogue.get(self.op)
        sample = op.bench[self.sample]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = dispatch.normalise(op, sample.make(op.inputs(self.dtype, "cuda")))
            case = Case(op, self.dtype, sample, [args], cold=False)
            functions = bench.implementations(case, self.plan, False, lambda message: None)
            for name, function in functions.items():
                if name not in _READY:
                    emit(name)
                    _call(function, args, crowded)


def _call(function: bench.Function, args: tuple[object, ...], crowded: bool) -> None:
    """What is wrong with an implementation is for the benchmark to say."""
    try:
        function(*args)
    except torch.cuda.OutOfMemoryError:
        if crowded:
            raise
    except Exception:
        torch.cuda.synchronize()  # raises where the call broke the context: this one is to blame


def _bytes(op: Op, dtype: str, sample: Sample) -> int:
    args = sample.make(op.inputs(dtype, "meta"))
    return sum(a.numel() * a.element_size() for a in args if isinstance(a, Tensor))


def tasks(ops: Sequence[Op], plan: Plan) -> list[Warming]:
    """A task per case that will be timed beside something to compile."""
    bare = replace(plan, variants="none")
    found = []
    for op in ops:
        if not any(plan.wants(name) for name in ("triton", "compile", *op.peers)):
            continue
        for dtype in bench.bench_dtypes(op, plan):
            for sample in bench.bench_cases(op, dtype, plan):
                needed = max(pool.TASK_BYTES, _ROOM * _bytes(op, dtype, sample))
                found.append(Warming(op.name, dtype, op.bench.index(sample), bare, needed))
    return found


def forget_choices(folder: Path) -> None:
    """Removes the best configurations that Inductor noted in its cache; the code stays."""
    # Not rglob, which fails where another process removes a folder meanwhile.
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".best_config"):
                Path(parent, name).unlink(missing_ok=True)


def warm(
    ops: Sequence[Op],
    plan: Plan,
    *,
    jobs: int,
    say: bench.Progress,
    step: Callable[[], None],
    timeout: float = 180.0,
) -> Plan:
    """Compiles in worker processes what `bench(ops, plan)` will time.

    Args:
        ops: operators of the catalogue.
        plan: what will be measured.
        jobs: how many workers.
        say: called with each message for the user.
        step: called when a case is done.
        timeout: seconds that one implementation may take.

    Returns:
        The plan, less what did not come to an end.
    """
    finding.prepare(op.library for op in ops)
    todo = tasks(ops, plan)
    for _ in range(bench.count_cases(ops, plan) - len(todo)):
        step()
    device = torch.device("cuda", torch.cuda.current_device())
    outcomes = pool.run(
        todo,
        jobs=jobs,
        device=device,
        timeout=timeout,
        done=lambda index, outcome: step(),
        at_once=True,
    )
    forget_choices(Path(cache_dir()))
    stuck = {}
    for task, outcome in zip(todo, outcomes, strict=True):
        if outcome.fault:
            case = f"{task.dtype} {catalogue.get(task.op).bench[task.sample].label}"
            name = outcome.items[-1] if outcome.items else "its arguments"
            say(f"{task.op} {case}: {name}: not compiled: {outcome.fault.splitlines()[0]}")
            stuck[task.op, case] = name
    return replace(plan, stuck=stuck)
