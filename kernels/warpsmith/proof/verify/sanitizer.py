"""Runs operators under compute-sanitizer, whose tools have to find a planted fault each."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op, Sample, Variant
from warpsmith.native import finding, toolchain
from warpsmith.proof import mps, pool
from warpsmith.proof.verify.run import Complete, Progress, Result, Run, small_samples

SANITIZER_TOOLS: tuple[str, ...] = ("memcheck", "racecheck", "initcheck")
#: Where an operator has many more small samples, each variant takes about so many, not the same.
MOST_SAMPLES = 48
#: Processes per tool and job: more of them leave more on record where a run is cut short, but each
#: takes its time to start.
_HANDS = 2
#: Calls that take as long as instrumenting what a variant launches, with its first call.
_FIRST = 200
#: Tools that watch allocations see them as they are where every tensor is one of its own, with
#: borders to cross and nothing written yet, not a piece of what PyTorch keeps.
_UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_ENVIRONMENT = {"memcheck": _UNCACHED, "initcheck": _UNCACHED}
#: Exit status that compute-sanitizer is asked to give where it found something.
_FOUND = 99
#: What the outcome of a planted fault is said to be of: no operator.
_PLANTED = "planted fault"
#: The kernel with the fault that each tool has to find (`selftest/faults.cu`).
_FAULTY = {
    "memcheck": "read_beyond_kernel",
    "initcheck": "read_unwritten_kernel",
    "racecheck": "race_kernel",
}
#: What a Python is told that plants a fault.
_COMMIT = "from warpsmith.proof.verify.sanitizer import commit_fault; commit_fault({!r})"
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
    `auto` and the variants those that are the run's part; where only some rungs are asked for, of
    theirs alone.
    """
    mine, parts = run.part
    for dtype in run.dtypes:
        samples = small_samples(run.op, dtype)
        args = {
            sample: _copied_exactly(
                dispatch.normalise(run.op, sample.make(run.op.inputs(dtype, "cpu"))), run.device
            )
            for sample in samples
        }
        whole = [None] if run.rungs is None else []
        for variant in [*whole, *run.variants(dtype)][mine::parts]:
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
    if (home := toolchain.cuda_home()) is not None:
        homes.insert(0, home)
    for home in homes:
        for place in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"):
            if (home / place).is_file():
                return home / place
    return None


def commit_fault(tool: str) -> None:
    """Does what a tool has to find: reads beyond a tensor or an unwritten one, or lets threads race
    for shared memory.
    """
    library = finding.find("selftest")
    if library is None:
        raise RuntimeError(finding.why_not("selftest"))
    torch.ops.load_library(str(library))
    x = torch.empty(1000, device="cuda")
    torch.ops.warpsmith._commit_fault(tool, x.data_ptr(), x.numel())


def run_sanitizer(
    ops: Sequence[Op | str],
    *,
    tools: Sequence[str] = SANITIZER_TOOLS,
    progress: Progress | None = None,
    timeout: float = 3600.0,
    jobs: int = 1,
    complete: Complete | None = None,
    spread: bool = True,
    rungs: Mapping[str, frozenset[str]] | None = None,
) -> list[Result]:
    """Runs the small samples of every variant under compute-sanitizer.

    Args:
        ops: operators, or their names.
        tools: which of the sanitizer's tools. One that misses the fault planted for it has found
            nothing out about any operator.
        progress: called with what a tool found in an operator, or in a part of its calls, as it is
            known.
        timeout: seconds that one process may take.
        jobs: how many processes run side by side. Each takes some operators, or a part of a large
            one's calls; where a tool finds something in several operators, each gets a process of
            its own.
        complete: called with all results of an operator when they are known.
        spread: whether the processes take all GPUs of the current one's kind in turn.
        rungs: by operator, the rungs whose variants are called, where that is not all of them.

    Returns:
        One result per operator and tool, which is its `label`; `detail` says what the tool found.

    Raises:
        ValueError: there is no compute-sanitizer.
    """
    chosen = [catalogue.get(op) if isinstance(op, str) else op for op in ops]
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise ValueError("compute-sanitizer is neither on PATH nor in the CUDA toolkit")
    hands = sorted(_deal(chosen, _HANDS * jobs, rungs or {}), key=lambda hand: -hand.cost)
    gpus: list[str | None] = [*pool.visible_orders(spread)] or [None]
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(mps.service()) if jobs > 1 else {}
        runs: list[_ToolRun] = [
            FaultRun(sanitizer, tool, timeout, gpus[i % len(gpus)], 1.0, bool(shared))
            for i, tool in enumerate(tools)
        ]
        runs += [
            HandRun(sanitizer, tool, timeout, gpus[(i + j) % len(gpus)], -float(i), hand, shared)
            for i, hand in enumerate(hands)
            for j, tool in enumerate(tools)
        ]
        findings = _Findings(chosen, tools, runs, complete)
        if jobs == 1:
            for run in runs:
                outcome = pool.Outcome()

                def emit(result: Result, into: list[Any] = outcome.items) -> None:
                    into.append(result)
                    if progress is not None:
                        progress(result)

                run.run(emit, crowded=False)
                findings.enter(run, outcome)
        else:
            finding.prepare([*(op.library for op in chosen), "selftest"])
            pool.run(
                runs,
                jobs=jobs,
                progress=progress,
                done=lambda index, outcome: findings.enter(runs[index], outcome),
            )
    return [findings.of(op, tool) for op in chosen for tool in tools]


def cost(op: Op, dtype: str, rungs: frozenset[str] | None = None) -> int:
    """About so many calls, if every variant (of these rungs) accepts every sample."""
    samples = len(small_samples(op, dtype))
    count = _callees(op, dtype, rungs)
    if rungs is not None:
        return count * (_FIRST + fair_share(samples))
    return count * _FIRST + samples + (count - 1) * fair_share(samples)


def _callees(op: Op, dtype: str, rungs: frozenset[str] | None) -> int:
    """`auto` and the variants, or the variants of these rungs."""
    of_dtype = [variant for variant in op.variants if variant.dtype == dtype]
    if rungs is None:
        return 1 + len(of_dtype)
    return sum(variant.rung.name in rungs for variant in of_dtype)


@dataclass(frozen=True)
class Hand:
    """Operators at all their dtypes; or one at some, and of these every n-th variant from the i-th
    on where `part` is (i, n): instrumenting a kernel costs more than many a call of it, so that no
    two processes share one.
    """

    ops: tuple[str, ...]
    cost: float
    dtypes: tuple[str, ...] = ()
    part: tuple[int, int] = (0, 1)
    #: By operator, where not all of its rungs are called.
    rungs: Mapping[str, frozenset[str]] = field(default_factory=dict)


def _deal(
    ops: Sequence[Op], count: int, rungs: Mapping[str, frozenset[str]] | None = None
) -> list[Hand]:
    """Deals operators out in about so many hands of about the same cost."""
    of = rungs or {}
    costs = {
        op.name: {d: calls for d in op.dtypes if (calls := cost(op, d, of.get(op.name)))}
        for op in ops
    }
    fair = max(1.0, sum(sum(mine.values()) for mine in costs.values()) / count)
    hands: list[Hand] = []
    whole: dict[str, float] = {}
    for name, mine in costs.items():
        if sum(mine.values()) <= fair:
            if mine:
                whole[name] = sum(mine.values())
            continue
        for dtype, calls in list(mine.items()):
            most = _callees(catalogue.get(name), dtype, of.get(name))
            if (parts := min(round(calls / fair), most)) > 1:
                del mine[dtype]
                hands += [Hand((name,), calls / parts, (dtype,), (i, parts)) for i in range(parts)]
        hands += [
            Hand((name,), sum(mine[dtype] for dtype in pile), tuple(pile))
            for pile in pool.deal(mine, math.ceil(sum(mine.values()) / fair))
        ]
    hands += [
        Hand(tuple(pile), sum(whole[name] for name in pile))
        for pile in pool.deal(whole, math.ceil(sum(whole.values()) / fair))
    ]
    return [replace(hand, rungs={n: of[n] for n in hand.ops if n in of}) for hand in hands]


@dataclass(frozen=True)
class _ToolRun:
    """A process of compute-sanitizer, with one of its tools: a task of `pool`."""

    sanitizer: Path
    tool: str
    timeout: float
    gpus: str | None  # that it sees; it takes the first
    rank: float

    @property
    def names(self) -> tuple[str, ...]:
        """What its results are of."""
        raise NotImplementedError

    @property
    def cost(self) -> float:
        raise NotImplementedError

    @property
    def bytes(self) -> float:
        return pool.TASK_BYTES

    def run(self, emit: Callable[[Result], None], crowded: bool) -> None:
        raise NotImplementedError

    def result(self, name: str, ok: bool, detail: str) -> Result:
        return Result(name, "sanitizer", self.tool, ok, detail)

    def _python(
        self, crowded: bool, *arguments: str, shared: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """The exit status of a Python under the tool, None where it took too long; and what was
        reported, or where nothing was and it failed, the end of all that it said.
        """
        command = [str(self.sanitizer), "--tool", self.tool, "--error-exitcode", str(_FOUND)]
        command += ["--print-limit", "20", sys.executable, *arguments]
        environment = {**_ENVIRONMENT.get(self.tool, {}), **(shared or {})}
        if self.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus
        try:
            done = subprocess.run(
                command,
                env=pool.environment(**environment),
                capture_output=True,
                text=True,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no result after {self.timeout:.0f} s"
        report = [line for line in done.stdout.splitlines() if line.startswith(_REPORTED)]
        if done.returncode == 0:
            return 0, "\n".join(report)
        text = "\n".join(report[:60]) or (done.stdout + done.stderr)[-3000:]
        if crowded and re.search("out of memory|too little memory", text):
            raise pool.CrowdedError(text)
        return done.returncode, text


@dataclass(frozen=True)
class FaultRun(_ToolRun):
    """Whether the tool finds what `commit_fault` plants for it."""

    #: Whether it has to under `mps`: in a service of its own, as the fault is everyone's there.
    served: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (_PLANTED,)

    @property
    def cost(self) -> float:
        return 0.0

    def run(self, emit: Callable[[Result], None], crowded: bool) -> None:
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(mps.service()) if self.served else {}
            status, text = self._python(crowded, "-c", _COMMIT.format(self.tool), shared=own)
        found = status == _FOUND and _FAULTY[self.tool] in text
        if self.served and not own:
            found, text = False, "no fault could be planted for it under a second MPS"
        elif status == 0:
            text = "it misses a fault that is there"
        elif not found:
            text = f"no fault could be planted for it: exit status {status}\n{text}"
        emit(self.result(_PLANTED, found, text))


@dataclass(frozen=True)
class HandRun(_ToolRun):
    """What the tool finds in a hand."""

    hand: Hand
    #: The environment of processes that share GPUs by `mps`, where they do.
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return self.hand.ops

    @property
    def cost(self) -> float:
        return self.hand.cost

    def run(self, emit: Callable[[Result], None], crowded: bool) -> None:
        ok, detail = self._examine(self.names, crowded)
        for name in self.names:
            if not ok and len(self.names) > 1:
                emit(self.result(name, *self._examine((name,), crowded)))
            else:
                emit(self.result(name, ok, detail))

    def _examine(self, names: Sequence[str], crowded: bool) -> tuple[bool, str]:
        command = ["-m", "warpsmith", "verify", "--sanitizer"]
        command += ["--part", "/".join(map(str, self.hand.part))]
        if self.hand.dtypes:
            command += ["--dtype", ",".join(self.hand.dtypes)]
        for name in set(names) & self.hand.rungs.keys():
            command += ["--rungs", f"{name}={','.join(sorted(self.hand.rungs[name]))}"]
        status, text = self._python(crowded, *command, *names, shared=self.shared)
        if status != 0 and self.shared:  # it may have been another's fault
            status, text = self._python(crowded, *command, *names)
        if status == 0:
            return True, text.splitlines()[-1] if text else ""
        return False, text if status is None else f"exit status {status}\n{text}"

    def result(self, name: str, ok: bool, detail: str) -> Result:
        if not ok and self.hand.dtypes:
            detail = f"{', '.join(self.hand.dtypes)}: {detail}"
        return super().result(name, ok, detail)


class _Findings:
    """What is known of operators so far."""

    def __init__(
        self,
        ops: Sequence[Op],
        tools: Sequence[str],
        runs: Sequence[_ToolRun],
        complete: Complete | None,
    ) -> None:
        self.ops = {op.name: op for op in ops}
        self.tools = tools
        self.complete = complete
        self.found: list[Result] = []
        self.left = Counter(name for run in runs for name in run.names)

    def enter(self, run: _ToolRun, outcome: pool.Outcome) -> None:
        told = {result.op for result in outcome.items}
        self.found += outcome.items
        self.found += [run.result(n, False, outcome.fault) for n in run.names if n not in told]
        self.left.subtract(run.names)
        if self.complete is None or self.left[_PLANTED]:
            return
        for name in self.ops if _PLANTED in run.names else run.names:
            if not self.left[name]:
                self.complete([self.of(self.ops[name], tool) for tool in self.tools])

    def of(self, op: Op, tool: str) -> Result:
        """What one tool found in an operator, at all dtypes."""

        def said(name: str) -> list[Result]:
            return [result for result in self.found if (result.op, result.label) == (name, tool)]

        mine = said(op.name)
        blind = [
            f"nothing is known from {tool}: {result.detail}"
            for result in said(_PLANTED)
            if not result.ok
        ]
        bad = blind + [result.detail for result in mine if not result.ok]
        details = bad or list(dict.fromkeys(result.detail for result in mine))
        if not mine:
            return Result(op.name, "sanitizer", tool, False, "none of its samples is small")
        return Result(op.name, "sanitizer", tool, not bad, "\n".join(details))
