"""Runs operators under compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpsmith import build, dispatch
from warpsmith.catalogue import DTYPES, Inputs, Op
from warpsmith.verify.run import Progress, Result, Run

SANITIZER_TOOLS: tuple[str, ...] = ("memcheck", "racecheck", "initcheck")
#: Exit status that compute-sanitizer is asked to give where it found something.
_FOUND = 99


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
) -> list[Result]:
    """Runs the small samples of every variant under compute-sanitizer, a process per tool.

    Args:
        ops: operators, or their names.
        tools: which of the sanitizer's tools.
        progress: called with each result as it is known.
        timeout: seconds that one tool may take.

    Returns:
        One result per tool; `op` lists the operators, `detail` what the tool found.
    """
    names = [op if isinstance(op, str) else op.name for op in ops]
    title = names[0] if len(names) == 1 else f"{len(names)} operators"
    sanitizer = find_sanitizer()
    results = []
    for tool in tools:
        if sanitizer is None:
            why = "compute-sanitizer is neither on PATH nor in the CUDA toolkit"
            result = Result(title, "sanitizer", tool, False, why)
        else:
            result = _run_tool(sanitizer, tool, names, title, timeout)
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def _run_tool(sanitizer: Path, tool: str, names: list[str], title: str, timeout: float) -> Result:
    command = [str(sanitizer), "--tool", tool, "--error-exitcode", str(_FOUND)]
    command += ["--print-limit", "20", sys.executable, "-m", "warpsmith", "verify", "--sanitizer"]
    environment = dict(os.environ)
    # Without the caching allocator every tensor is an allocation of its own, with borders to cross.
    environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (package, environment.get("PYTHONPATH")))
    )
    try:
        done = subprocess.run(
            [*command, *names],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(title, "sanitizer", tool, False, f"no result after {timeout:.0f} s")
    report = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    if done.returncode == 0:
        return Result(title, "sanitizer", tool, True, report[-1] if report else "")
    text = "\n".join(report[:60]) or (done.stdout + done.stderr)[-3000:]
    return Result(title, "sanitizer", tool, False, f"exit status {done.returncode}\n{text}")
