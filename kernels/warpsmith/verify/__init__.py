"""Runs every implementation of every operator and judges it: what `warpsmith verify` does.

On a GPU each operator goes through its own choice of kernel, every variant and the Triton twin, at
every sample and dtype, with outputs poisoned and inputs watched; then through opcheck,
torch.compile, CUDA graphs, side streams, a second GPU where there is one, its bad calls, its
properties and its gradients. On a CPU the same checks run where they have a meaning there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from warpsmith import build, catalogue
from warpsmith.catalogue import DTYPES, Op
from warpsmith.verify.calls import (
    error_checks,
    nonfinite_checks,
    property_checks,
    public_checks,
    sample_checks,
    wrong_dtype_checks,
)
from warpsmith.verify.gradients import gradient_checks
from warpsmith.verify.machinery import (
    compile_checks,
    device_checks,
    graph_checks,
    opcheck_checks,
    stream_checks,
)
from warpsmith.verify.run import CUDA_KINDS, KINDS, LostDeviceError, Progress, Result, Run
from warpsmith.verify.sanitizer import (
    SANITIZER_TOOLS,
    find_sanitizer,
    run_sanitizer,
    sanitizer_calls,
)

__all__ = [
    "CUDA_KINDS",
    "KINDS",
    "SANITIZER_TOOLS",
    "LostDeviceError",
    "Progress",
    "Result",
    "find_sanitizer",
    "run_sanitizer",
    "self_tests",
    "verify",
]

_CHECKS: tuple[Callable[[Run], None], ...] = (
    sample_checks,
    wrong_dtype_checks,
    nonfinite_checks,
    public_checks,
    opcheck_checks,
    compile_checks,
    graph_checks,
    stream_checks,
    device_checks,
    error_checks,
    property_checks,
    gradient_checks,
)


def verify(
    ops: Sequence[Op | str],
    *,
    device: str | torch.device = "cuda",
    sanitizer: bool = False,
    progress: Progress | None = None,
    kinds: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
) -> list[Result]:
    """Verifies operators on a device.

    Args:
        ops: operators, or their names.
        device: "cuda", one GPU ("cuda:1"), or "cpu" for the checks that mean something there.
        sanitizer: only call every variant at its small samples, without judging the answers: what
            `run_sanitizer` runs under compute-sanitizer.
        progress: called with each result as it is known.
        kinds: a selection from `KINDS`; all by default.
        dtypes: a selection of dtype names; every dtype of each operator by default.

    Returns:
        One result per check. After a kernel has broken the CUDA context the list ends with a
        failure that says so.

    Raises:
        ValueError: for an unknown operator or kind.
    """
    chosen = [catalogue.get(op) if isinstance(op, str) else op for op in ops]
    where = torch.device(device)
    if unknown := set(kinds or ()) - set(KINDS):
        raise ValueError(f"unknown kinds {sorted(unknown)}; known: {', '.join(KINDS)}")
    wanted = frozenset(kinds or KINDS)
    if where.type == "cuda":
        where = torch.device("cuda", where.index or 0)
    else:
        wanted -= set(CUDA_KINDS)
    results: list[Result] = []
    with torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext():
        for op in chosen:
            run = Run(op, where, wanted, tuple(dtypes or DTYPES), results, progress)
            if run.on_gpu and not run.compiled:
                run.add("build", op.family, False, build.why_not(op.family))
            try:
                for check in (sanitizer_calls,) if sanitizer else _CHECKS:
                    _guarded(run, check)
            except LostDeviceError as error:
                run.add("device lost", "the CUDA context is broken", False, str(error)[:2000])
                return results
        if where.type == "cuda" and len(chosen) == len(catalogue.load()) and kinds is None:
            results += self_tests(progress)
    return results


def _guarded(run: Run, check: Callable[[Run], None]) -> None:
    """A sample or a reference that raises is a failure of its operator, not the end of the run."""
    try:
        check(run)
    except LostDeviceError:
        raise
    except Exception as error:
        run.add(check.__name__.strip("_"), "could not run", False, f"{error!r}"[:2000])
        run.ensure_alive()


def self_tests(progress: Progress | None = None) -> list[Result]:
    """The tests of the device vocabulary, compiled as a family of their own."""
    results: list[Result] = []
    if not (build.CSRC / "selftest").is_dir():
        return results
    path = build.library("selftest")
    if path is None:
        results.append(Result("selftest", "build", "selftest", False, build.why_not("selftest")))
    else:
        torch.ops.load_library(str(path))
        for name in filter(None, torch.ops.warpsmith._selftest_names().split(",")):
            try:
                detail = torch.ops.warpsmith._selftest(name)
            except RuntimeError as error:
                detail = str(error)
            results.append(Result("selftest", "device", name, not detail, detail))
    for result in results:
        if progress is not None:
            progress(result)
    return results
