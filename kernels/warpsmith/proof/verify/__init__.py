"""Runs every implementation of every operator and judges it: what `warpsmith verify` does.

On a GPU each operator goes through its own choice of kernel, every variant and the Triton twin, at
every sample and dtype, with outputs poisoned and inputs watched; then through opcheck,
torch.compile, CUDA graphs, side streams, a second GPU where there is one, its bad calls, its
properties and its gradients. On a CPU the same checks run where they have a meaning there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES, Op
from warpsmith.native import csrc, finding
from warpsmith.proof import pool
from warpsmith.proof.pool import LostDeviceError
from warpsmith.proof.verify.run import CUDA_KINDS, KINDS, Complete, Progress, Result, Run
from warpsmith.proof.verify.sanitizer import (
    SANITIZER_TOOLS,
    find_sanitizer,
    run_sanitizer,
    sanitizer_calls,
)
from warpsmith.proof.verify.units import CHECKS, Unit, divide, guarded, join, on_device, report_loss

__all__ = [
    "CUDA_KINDS",
    "KINDS",
    "SANITIZER_TOOLS",
    "Complete",
    "LostDeviceError",
    "Progress",
    "Result",
    "find_sanitizer",
    "run_sanitizer",
    "self_tests",
    "verify",
]


def verify(
    ops: Sequence[Op | str],
    *,
    device: str | torch.device = "cuda",
    sanitizer: bool = False,
    progress: Progress | None = None,
    kinds: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    jobs: int = 1,
    timeout: float = 600.0,
    part: tuple[int, int] = (0, 1),
    complete: Complete | None = None,
    quick: Mapping[str, int] | None = None,
    rungs: Mapping[str, frozenset[str]] | None = None,
    took: Mapping[str, float] | None = None,
) -> list[Result]:
    """Verifies operators on a device.

    Args:
        ops: operators, or their names.
        device: "cuda", one GPU ("cuda:1"), or "cpu" for the checks that mean something there.
        sanitizer: only call every variant at its small samples, without judging the results: what
            `run_sanitizer` runs under compute-sanitizer.
        progress: called with each result as it is known.
        kinds: a selection from `KINDS`; all by default.
        dtypes: a selection of dtype names; every dtype of each operator by default.
        jobs: how many worker processes share the work. With one, or under the sanitizer, this
            process does it all.
        timeout: seconds after which a worker that finds no result is stopped.
        part: (i, n): under the sanitizer, of `auto` and the variants every n-th, from the i-th on.
        complete: called with all results of an operator when they are known.
        quick: operators, by name, of which a choice is checked instead of everything, with the
            seed of the choice: each variant, dtype and kind of check at least once, but no sample
            of several GB.
        rungs: by operator, the rungs whose variants are verified, where that is not all of them.
        took: by operator, the seconds of processes that it took before: several share it evenly.

    Returns:
        One result per check. After a kernel has broken the CUDA context the list ends with a
        failure that says so; with workers, that is the end of its operator only, and so is a crash
        or a hang.

    Raises:
        ValueError: for an unknown operator or kind, one that workers cannot find, or a part of what
            is not the sanitizer's.
    """
    chosen = [catalogue.get(op) if isinstance(op, str) else op for op in ops]
    where = torch.device(device)
    if unknown := set(kinds or ()) - set(KINDS):
        raise ValueError(f"unknown kinds {sorted(unknown)}; known: {', '.join(KINDS)}")
    if part != (0, 1) and not sanitizer:
        raise ValueError("a part of the calls is for the sanitizer: all checks make a record")
    wanted = frozenset(kinds or KINDS)
    if where.type == "cuda":
        where = torch.device("cuda", where.index or 0)
    else:
        wanted -= set(CUDA_KINDS)
    names = tuple(dtypes or DTYPES)
    with_self_tests = (
        where.type == "cuda" and len(chosen) == len(catalogue.load()) and kinds is None
    )
    if jobs > 1 and not sanitizer:
        if strangers := [op.name for op in chosen if catalogue.load().get(op.name) is not op]:
            raise ValueError(f"workers know the catalogue only, not {', '.join(strangers)}")
        units = divide(chosen, where, wanted, names, jobs, quick, took)
        units = [replace(unit, rungs=(rungs or {}).get(unit.op)) for unit in units]
        return _side_by_side(
            chosen, units, where, jobs, timeout, progress, with_self_tests, complete
        )
    results: list[Result] = []
    with on_device(where):
        for op in chosen:
            seed = (quick or {}).get(op.name)
            run = Run(op, where, wanted, names, results, progress, part=part, quick=seed)
            run.rungs = (rungs or {}).get(op.name)
            if run.on_gpu and not run.compiled:
                run.add("build", op.library, False, finding.why_not(op.library))
            try:
                for check in (sanitizer_calls,) if sanitizer else CHECKS:
                    guarded(run, check)
            except LostDeviceError as error:
                report_loss(run, error)
                return results
            if complete is not None:
                complete([result for result in results if result.op == op.name])
        if with_self_tests:
            results += self_tests(progress)
    return results


def _side_by_side(
    ops: Sequence[Op],
    units: Sequence[Unit],
    device: torch.device,
    jobs: int,
    timeout: float,
    progress: Progress | None,
    with_self_tests: bool,
    complete: Complete | None,
) -> list[Result]:
    """The same by worker processes. What they only load is compiled here, before they start."""
    announce: Progress = progress or (lambda result: None)
    missing: dict[str, str] = {}
    if device.type == "cuda":
        wanted = [*(op.library for op in ops), *(["selftest"] if with_self_tests else [])]
        finding.prepare(wanted)
        for library in dict.fromkeys(wanted):
            if finding.find(library) is None:
                missing[library] = finding.why_not(library)
    testing = with_self_tests and "selftest" not in missing
    places = {op.name: [i for i, unit in enumerate(units) if unit.op == op.name] for op in ops}
    known: dict[int, pool.Outcome] = {}

    def joined(op: Op) -> list[Result]:
        mine = places[op.name]
        return join(op, [units[i] for i in mine], [known[i] for i in mine])

    def done(index: int, outcome: pool.Outcome) -> None:
        known[index] = outcome
        if complete is None or index >= len(units):
            return
        op = catalogue.get(units[index].op)
        if op.library not in missing and known.keys() >= set(places[op.name]):
            complete(joined(op))

    outcomes = pool.run(
        [*units, *([SelfTests()] if testing else [])],
        jobs=jobs,
        device=device,
        timeout=timeout,
        progress=lambda item: announce(item[1]),
        done=done,
        at_once=True,
    )
    results: list[Result] = []
    for op in ops:
        if op.library in missing:
            results.append(Result(op.name, "build", op.library, False, missing[op.library]))
            announce(results[-1])
        results += joined(op)
    if testing:
        results += [result for _, result in outcomes[-1].items]
        if fault := outcomes[-1].fault:
            results.append(Result("selftest", "worker", "selftest", False, fault))
    elif with_self_tests:
        results += self_tests(progress)
    return results


@dataclass(frozen=True)
class SelfTests:
    """`self_tests` as a task of `pool`."""

    cost: float = 0.0
    rank: float = 0.0
    bytes: float = pool.TASK_BYTES

    def run(self, emit: Callable[[tuple[int, Result]], None], crowded: bool) -> None:
        self_tests(lambda result: emit((0, result)))


def self_tests(progress: Progress | None = None) -> list[Result]:
    """The tests of the device vocabulary, compiled as a library of their own."""
    results: list[Result] = []
    if not (csrc.CSRC / "selftest").is_dir():
        return results
    path = finding.find("selftest")
    if path is None:
        results.append(Result("selftest", "build", "selftest", False, finding.why_not("selftest")))
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
