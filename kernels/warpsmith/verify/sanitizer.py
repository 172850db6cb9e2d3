"""Runs operators under compute-sanitizer."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpsmith import build, catalogue, dispatch, pool
from warpsmith.catalogue import DTYPES, Inputs, Op, Sample, Variant
from warpsmith.verify.run import Complete, Progress, Result, Run, small_samples

SANITIZER_TOOLS: tuple[str, ...] = ("memcheck", "racecheck", "initcheck")
#: Where an operator has many more small samples, each variant takes about so many, not the same.
MOST_SAMPLES = 48
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


def fair_share(samples: int) -> int:
    """How many of so many samples each variant takes."""
    return samples // max(1, round(samples / MOST_SAMPLES))


def taken(variant: Variant, accepted: Sequence[Sample], count: int) -> list[Sample]:
    """So many of the samples that a variant accepts, each variant others."""
    return sorted(accepted, key=lambda sample: zlib.crc32(f"{variant.name} {sample}".encode()))[
        :count
    ]


def sanitizer_calls(run: Run) -> None:
    """Calls `auto` at every small sample, and every variant at its share of those it accepts. Of
    `auto` and the variants those that are the run's part.
    """
    mine, parts = run.part
    for dtype in run.dtypes:
        samples = small_samples(run.op, dtype)
        args = {
            sample: _copied_exactly(
                dispatch.normalise(run.op, sample.make(Inputs(DTYPES[dtype], "cpu"))), run.device
            )
            for sample in samples
        }
        for variant in [None, *run.variants(dtype)][mine::parts]:
            share = samples
            if variant is not None:
                accepted = [
                    s for s in samples if dispatch.refusal(variant, args[s], run.sm) is None
                ]
                share = taken(variant, accepted, fair_share(len(samples)))
            name = variant.name if variant else "auto"
            for sample in share:
                with run.check("sanitizer", f"{name} {dtype} {sample}"), torch.no_grad():
                    run.function(variant)(*args[sample])
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
    complete: Complete | None = None,
) -> list[Result]:
    """Runs the small samples of every variant under compute-sanitizer.

    Args:
        ops: operators, or their names.
        tools: which of the sanitizer's tools.
        progress: called with what a tool found in an operator at a dtype, as it is known.
        timeout: seconds that one process may take.
        jobs: how many processes run side by side. Each takes some operators at one dtype, or a part
            of a large one's calls; where a tool finds something in several operators, each gets a
            process of its own.
        complete: called with all results of an operator when they are known.

    Returns:
        One result per operator and tool, which is its `label`; `detail` says what the tool found.
    """
    chosen = [catalogue.get(op) if isinstance(op, str) else op for op in ops]
    found: list[Result] = []
    sanitizer = find_sanitizer()
    if sanitizer is None:
        why = "compute-sanitizer is neither on PATH nor in the CUDA toolkit"
        found = [Result(op.name, "sanitizer", tool, False, why) for op in chosen for tool in tools]
        if progress is not None:
            for result in found:
                progress(result)
        return found
    runs = [
        ToolRun(sanitizer, tool, hand, timeout) for tool in tools for hand in _deal(chosen, jobs)
    ]
    left = {op.name: sum(op.name in run.hand.ops for run in runs) for op in chosen}

    def done(index: int, outcome: pool.Outcome) -> None:
        run = runs[index]
        told = {result.op for result in outcome.items}
        found.extend(outcome.items)
        found.extend(run.result(n, False, outcome.fault) for n in run.hand.ops if n not in told)
        for name in run.hand.ops:
            left[name] -= 1
            if not left[name] and complete is not None:
                complete([_joined(catalogue.get(name), tool, found) for tool in tools])

    if jobs == 1:
        for index, run in enumerate(runs):
            outcome = pool.Outcome()

            def emit(result: Result, into: list[Any] = outcome.items) -> None:
                into.append(result)
                if progress is not None:
                    progress(result)

            run.run(emit, crowded=False)
            done(index, outcome)
    else:
        for family in dict.fromkeys(op.family for op in chosen):
            build.library(family)
        pool.run(runs, jobs=jobs, progress=progress, done=done)
    return [_joined(op, tool, found) for op in chosen for tool in tools]


def cost(op: Op, dtype: str) -> int:
    """So many calls, if every variant accepts every sample."""
    samples = len(small_samples(op, dtype))
    variants = sum(variant.dtype == dtype for variant in op.variants)
    return samples + variants * fair_share(samples)


@dataclass(frozen=True)
class Hand:
    """Operators at a dtype, or of one every n-th variant from the i-th on where `part` is (i, n):
    instrumenting a kernel costs more than many a call of it, so that no two processes share one.
    """

    dtype: str
    ops: tuple[str, ...]
    cost: float
    part: tuple[int, int] = (0, 1)


def _deal(ops: Sequence[Op], count: int) -> list[Hand]:
    """Deals operators out in about so many hands of about the same cost; the order is kept."""
    costs = {(op.name, dtype): cost(op, dtype) for op in ops for dtype in op.dtypes}
    fair = max(1, sum(costs.values()) / count)
    hands: list[Hand] = []
    for dtype in dict.fromkeys(dtype for _, dtype in costs):
        mine = {op.name: costs[op.name, dtype] for op in ops if costs.get((op.name, dtype))}
        for name, calls in list(mine.items()):
            parts = min(
                round(calls / fair), calls // len(small_samples(catalogue.get(name), dtype))
            )
            if parts > 1:
                hands += [Hand(dtype, (name,), calls / parts, (i, parts)) for i in range(parts)]
                del mine[name]
        hands += [
            Hand(dtype, tuple(name for name in mine if name in pile), sum(mine[n] for n in pile))
            for pile in pool.deal(mine, math.ceil(sum(mine.values()) / fair))
        ]
    return hands


@dataclass(frozen=True)
class ToolRun:
    """A process of compute-sanitizer, with one of its tools: a task of `pool`."""

    sanitizer: Path
    tool: str
    hand: Hand
    timeout: float
    rank: float = 0.0
    bytes: float = pool.TASK_BYTES

    @property
    def cost(self) -> float:
        return self.hand.cost

    def run(self, emit: Callable[[Result], None], crowded: bool) -> None:
        ok, detail = self._examine(self.hand.ops, crowded)
        for name in self.hand.ops:
            if not ok and len(self.hand.ops) > 1:
                emit(self.result(name, *self._examine((name,), crowded)))
            else:
                emit(self.result(name, ok, detail))

    def _examine(self, names: Sequence[str], crowded: bool) -> tuple[bool, str]:
        command = [str(self.sanitizer), "--tool", self.tool, "--error-exitcode", str(_FOUND)]
        command += ["--print-limit", "20", sys.executable, "-m", "warpsmith"]
        part = "/".join(map(str, self.hand.part))
        command += ["verify", "--sanitizer", "--part", part, "--dtype", self.hand.dtype, *names]
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
            return False, f"no result after {self.timeout:.0f} s"
        report = [line for line in done.stdout.splitlines() if line.startswith(_REPORTED)]
        if done.returncode == 0:
            return True, report[-1] if report else ""
        text = "\n".join(report[:60]) or (done.stdout + done.stderr)[-3000:]
        if crowded and re.search("out of memory|too little memory", text):
            raise pool.CrowdedError(text)
        return False, f"exit status {done.returncode}\n{text}"

    def result(self, op: str, ok: bool, detail: str) -> Result:
        detail = detail if ok else f"{self.hand.dtype}: {detail}"
        return Result(op, "sanitizer", self.tool, ok, detail)


def _joined(op: Op, tool: str, found: Sequence[Result]) -> Result:
    """What one tool found in an operator, at all dtypes."""
    mine = [result for result in found if (result.op, result.label) == (op.name, tool)]
    bad = [result.detail for result in mine if not result.ok]
    details = bad or list(dict.fromkeys(result.detail for result in mine))
    if not mine:
        return Result(op.name, "sanitizer", tool, False, "none of its samples is small")
    return Result(op.name, "sanitizer", tool, not bad, "\n".join(details))
