"""Runs operators under compute-sanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpsmith import build, catalogue, dispatch, pool
from warpsmith.catalogue import DTYPES, Inputs, Op
from warpsmith.verify.run import Progress, Result, Run

SANITIZER_TOOLS: tuple[str, ...] = ("memcheck", "racecheck", "initcheck")
#: Exit status that compute-sanitizer is asked to give where it found something.
_FOUND = 99
#: How a line begins that says what is wrong: the sanitizer's, and ours.
_REPORTED = ("=========", "FAILED")


def _copied_exactly(args: Sequence[Any], device: torch.device) -> tuple[Any, ...]:
    """The arguments on a GPU with the same strides and offsets, copied without launching a kernel.

    The sanitizer then spends its time on our kernels alone.
    """
    storages: dict[int, Tensor] = {}
    moved: list[Any] = []
    for a in args:
        if isinstance(a, Tensor):
            storage = a.untyped_storage()
            if storage.data_ptr() not in storages:
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                storages[storage.data_ptr()] = raw.to(device)
            there = storages[storage.data_ptr()].untyped_storage()
            empty = torch.empty(0, dtype=a.dtype, device=device)
            a = empty.set_(there, a.storage_offset(), a.shape, a.stride())
        moved.append(a)
    return tuple(moved)


def sanitizer_calls(run: Run) -> None:
    for dtype in run.dtypes:
        for sample in run.op.samples_for(dtype):
            if not sample.small or sample.huge:
                continue
            made = dispatch.normalise(run.op, sample.make(Inputs(DTYPES[dtype], "cpu")))
            args = _copied_exactly(made, run.device)
            for name, variant in [
                ("auto", None),
                *((v.name, v) for v in run.accepting(dtype, args)),
            ]:
                with run.check("sanitizer", f"{name} {dtype} {sample}"), torch.no_grad():
                    run.function(variant)(*args)
                    torch.cuda.synchronize()


def find_sanitizer() -> Path | None:
    """compute-sanitizer on PATH or in the CUDA toolkit."""
    if found := shutil.which("compute-sanitizer"):
        return Path(found)
    homes = [Path("/usr/local/cuda")]
    if (home := build.cuda_home()) is not None:
        homes.insert(0, home)
    for home in homes:
        for place in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"):
            if (home / place).is_file():
                return home / place
    return None


def run_sanitizer(
    ops: Sequence[Op | str],
    *,
    tools: Sequence[str] = SANITIZER_TOOLS,
    progress: Progress | None = None,
    timeout: float = 3600.0,
    jobs: int = 1,
) -> list[Result]:
    """Runs the small samples of every variant under compute-sanitizer.

    Args:
        ops: operators, or their names.
        tools: which of the sanitizer's tools.
        progress: called with the result of each process as it is known.
        timeout: seconds that one process may take.
        jobs: how many processes run side by side. With one, each tool gets one process for all
            operators; with more, the operators are dealt out to as many for each tool.

    Returns:
        One result per tool; `op` lists the operators, `detail` what the tool found.
    """
    chosen = [catalogue.get(op) if isinstance(op, str) else op for op in ops]
    title = chosen[0].name if len(chosen) == 1 else f"{len(chosen)} operators"
    announce: Progress = progress or (lambda result: None)
    sanitizer = find_sanitizer()
    if sanitizer is None:
        why = "compute-sanitizer is neither on PATH nor in the CUDA toolkit"
        results = [Result(title, "sanitizer", tool, False, why) for tool in tools]
        for result in results:
            announce(result)
        return results
    runs = [
        ToolRun(sanitizer, tool, tuple(op.name for op in hand), title, timeout, _cost(hand))
        for tool in tools
        for hand in _deal(chosen, jobs)
    ]
    found: list[Result] = []
    if jobs == 1:
        for tool_run in runs:
            tool_run.run(found.append, crowded=False)
            announce(found[-1])
    else:
        for family in dict.fromkeys(op.family for op in chosen):
            build.library(family)
        for tool_run, outcome in zip(
            runs, pool.run(runs, jobs=jobs, progress=announce), strict=True
        ):
            found += outcome.items or [tool_run.result(False, outcome.fault)]
    pairs = list(zip(runs, found, strict=True))
    return [_joined(tool, [pair for pair in pairs if pair[0].tool == tool]) for tool in tools]


def _cost(ops: Sequence[Op]) -> float:
    return float(
        sum(
            sum(v.dtype == dtype for v in op.variants) + 1
            for op in ops
            for dtype in op.dtypes
            for sample in op.samples_for(dtype)
            if sample.small and not sample.huge
        )
    )


def _deal(ops: Sequence[Op], hands: int) -> list[list[Op]]:
    """Deals operators out so that every hand costs about the same; in catalogue order within."""
    costs = {op: _cost([op]) for op in ops}
    dealt: list[list[Op]] = [[] for _ in range(max(1, min(hands, len(ops))))]
    for op in sorted(ops, key=lambda op: -costs[op]):
        min(dealt, key=lambda hand: sum(costs[other] for other in hand)).append(op)
    return [sorted(hand, key=ops.index) for hand in dealt]


@dataclass(frozen=True)
class ToolRun:
    """One process of compute-sanitizer, with one of its tools: a task of `pool`."""

    sanitizer: Path
    tool: str
    names: tuple[str, ...]
    title: str
    timeout: float
    cost: float
    large: bool = False

    def run(self, emit: Callable[[Result], None], crowded: bool) -> None:
        command = [str(self.sanitizer), "--tool", self.tool, "--error-exitcode", str(_FOUND)]
        command += ["--print-limit", "20", sys.executable]
        command += ["-m", "warpsmith", "verify", "--sanitizer", *self.names]
        # Without the caching allocator every tensor is an allocation of its own, with borders to
        # cross.
        environment = pool.environment(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            emit(self.result(False, f"no result after {self.timeout:.0f} s"))
            return
        report = [line for line in done.stdout.splitlines() if line.startswith(_REPORTED)]
        if done.returncode == 0:
            emit(self.result(True, report[-1] if report else ""))
            return
        text = "\n".join(report[:60]) or (done.stdout + done.stderr)[-3000:]
        if crowded and re.search("out of memory|too little memory", text):
            raise pool.CrowdedError(text)
        emit(self.result(False, f"exit status {done.returncode}\n{text}"))

    def result(self, ok: bool, detail: str) -> Result:
        return Result(self.title, "sanitizer", self.tool, ok, detail)


def _joined(tool: str, parts: Sequence[tuple[ToolRun, Result]]) -> Result:
    """What one tool found, in however many processes."""
    if len(parts) == 1:
        return parts[0][1]
    bad = [f"{', '.join(run.names)}: {result.detail}" for run, result in parts if not result.ok]
    details = bad or list(dict.fromkeys(result.detail for _, result in parts))
    return Result(parts[0][0].title, "sanitizer", tool, not bad, "\n".join(details))
