"""Cuts a verification into units that processes run side by side, and joins what they find."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Op
from warpsmith.proof.pool import TASK_BYTES, CrowdedError, LostDeviceError, Outcome
from warpsmith.proof.verify.calls import (
    error_checks,
    huge_checks,
    nonfinite_checks,
    property_checks,
    public_checks,
    sample_checks,
    wrong_dtype_checks,
)
from warpsmith.proof.verify.gradients import gradient_checks
from warpsmith.proof.verify.machinery import (
    compile_checks,
    device_checks,
    graph_checks,
    opcheck_checks,
    stream_checks,
)
from warpsmith.proof.verify.run import COMPILED_DTYPES, Result, Run

Check = Callable[[Run], None]

#: Everything that an operator goes through, in this order.
CHECKS: tuple[Check, ...] = (
    sample_checks,
    huge_checks,
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
#: Those that would check something else if they were given an operator's dtypes one by one.
_UNDIVIDED = (wrong_dtype_checks, public_checks, error_checks, property_checks)
#: Those that also go sample by sample or, on a GPU, variant by variant.
_FINE = (sample_checks, opcheck_checks)
#: What they cost per kernel at one dtype, in judged calls of a small sample; others cost a few.
_OPCHECK, _HUGE, _FEW = 20.0, 100.0, 3.0
_COMPILE, _GRADIENTS = 400.0, 100.0
#: An operator that costs more than this part of what each process has to do is divided.
_COARSEST = 0.25


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def guarded(run: Run, check: Check) -> None:
    """A sample or a reference that raises is a failure of its operator, not the end of the run."""
    try:
        check(run)
    except (LostDeviceError, CrowdedError):
        raise
    except Exception as error:
        run.blame_crowd(error)
        run.add(check.__name__.strip("_"), "could not run", False, f"{error!r}"[:2000])
        run.ensure_alive()


def report_loss(run: Run, error: LostDeviceError) -> None:
    run.add("device lost", "the CUDA context is broken", False, str(error)[:2000])


@dataclass(frozen=True)
class Unit:
    """Some checks of one operator, at all or some of its dtypes, or a part of one of `_FINE`: a
    task of `pool`.

    It emits pairs: a check's place in `CHECKS`, and a result of it.
    """

    op: str
    device: str
    kinds: frozenset[str]
    #: The dtypes of the verification, and those of this unit.
    all_dtypes: tuple[str, ...]
    dtypes: tuple[str, ...]
    #: Places in `CHECKS`.
    checks: tuple[int, ...]
    cost: float
    #: What the whole operator costs: it is done before the next, so that it is on record early.
    rank: float
    bytes: float = TASK_BYTES
    part: tuple[int, int] = (0, 1)
    #: The seed of a choice among the samples, where not all are checked.
    quick: int | None = None
    #: The rungs whose variants are verified; None is all of them.
    rungs: frozenset[str] | None = None

    def run(self, emit: Callable[[tuple[int, Result]], None], crowded: bool) -> None:
        device, place = torch.device(self.device), self.checks[0]

        def announce(result: Result) -> None:
            emit((place, result))

        with on_device(device):
            run = Run(
                catalogue.get(self.op),
                device,
                self.kinds,
                self.dtypes,
                [],
                announce,
                self.all_dtypes,
                crowded,
                self.part,
                self.quick,
                self.rungs,
            )
            try:
                for place in self.checks:
                    guarded(run, CHECKS[place])
            except LostDeviceError as error:
                report_loss(run, error)
                raise


def _cost(op: Op, check: Check, dtype: str) -> float:
    kernels = 2 + sum(variant.dtype == dtype for variant in op.variants)
    samples = op.samples_for(dtype)
    if check is sample_checks:
        return kernels * sum(not sample.huge for sample in samples)
    if check is huge_checks:
        return kernels * _HUGE * sum(sample.huge for sample in samples)
    if check is opcheck_checks:
        return kernels * _OPCHECK
    if check is compile_checks:
        return _COMPILE * (dtype in COMPILED_DTYPES)
    if check is gradient_checks:
        return _GRADIENTS * (op.backward is not None)
    return kernels * _FEW


def cost(op: Op) -> float:
    """What an operator costs at all dtypes, in judged calls of a small sample."""
    return sum(_cost(op, check, dtype) for check in CHECKS for dtype in op.dtypes)


def _paces(ops: Sequence[Op], took: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each operator's unit of cost; of those that were never timed, what is usual."""
    known = {op.name: took[op.name] / cost(op) for op in ops if took.get(op.name)}
    usual = statistics.median(known.values()) if known else 1.0
    return {op.name: known.get(op.name, usual) for op in ops}


def divide(
    ops: Sequence[Op],
    device: torch.device,
    kinds: frozenset[str],
    dtypes: Sequence[str],
    jobs: int,
    quick: Mapping[str, int] | None = None,
    took: Mapping[str, float] | None = None,
) -> list[Unit]:
    """The units of a verification: an operator each, or where one would take longer than its share
    of the time, its dtypes and what cannot be divided by dtype; where even a check at one dtype
    would, parts of it. Huge samples are units of their own on a GPU, which `pool` runs one at a
    time. The operators in `quick` are a unit each, and come last. What an operator costs is what it
    took, where that is known.
    """
    quick = quick or {}
    paces = _paces(ops, took or {})
    huge = CHECKS.index(huge_checks)
    ordinary = tuple(i for i in range(len(CHECKS)) if i != huge)
    whole = tuple(i for i in ordinary if CHECKS[i] in _UNDIVIDED)
    divisible = tuple(i for i in ordinary if i not in whole)
    finest = _FINE if device.type == "cuda" else _FINE[:1]

    def unit(
        op: Op, of: Sequence[str], checks: tuple[int, ...], part: tuple[int, int] = (0, 1)
    ) -> Unit:
        mine = tuple(d for d in op.dtypes if d in dtypes)
        pace = paces[op.name]
        cost = pace * sum(_cost(op, CHECKS[i], dtype) for i in checks for dtype in of) / part[1]
        rank = pace * sum(_cost(op, CHECKS[i], dtype) for i in ordinary for dtype in mine)
        where = (op.name, str(device), kinds, mine, tuple(of), checks)
        return Unit(*where, cost, rank, math.inf if checks == (huge,) else TASK_BYTES, part)

    def quickly(op: Op) -> Unit:
        mine = tuple(d for d in op.dtypes if d in dtypes)
        whole = unit(op, mine, ordinary)
        return replace(whole, quick=quick[op.name], rank=0.0)

    chosen = {op: tuple(d for d in op.dtypes if d in dtypes) for op in ops if op.name not in quick}
    together = [unit(op, mine, ordinary) for op, mine in chosen.items()]
    longest = _COARSEST * sum(unit.cost for unit in together) / jobs
    units: list[Unit] = []
    for (op, mine), everything in zip(chosen.items(), together, strict=True):
        if everything.cost <= longest or not mine:
            units.append(everything)
        else:
            for dtype in mine:
                share = longest / paces[op.name]
                parts = {i: math.ceil(_cost(op, CHECKS[i], dtype) / share) for i in divisible}
                fine = [i for i in divisible if CHECKS[i] in finest and parts[i] > 1]
                units += [
                    unit(op, (dtype,), (i,), (k, parts[i])) for i in fine for k in range(parts[i])
                ]
                units.append(unit(op, (dtype,), tuple(i for i in divisible if i not in fine)))
            units.append(unit(op, mine, whole))
        if device.type == "cuda":
            for dtype in mine:
                if any(sample.huge for sample in op.samples_for(dtype)):
                    units.append(unit(op, (dtype,), (huge,)))
    return units + [quickly(op) for op in ops if op.name in quick]


def join(op: Op, units: Sequence[Unit], outcomes: Sequence[Outcome]) -> list[Result]:
    """The results of an operator's units in the order in which one process would find them, then
    what stopped a unit.
    """
    pairs = list(zip(units, outcomes, strict=True))
    results = [
        result
        for place in range(len(CHECKS))
        for _, outcome in pairs
        for found, result in outcome.items
        if found == place
    ]
    for unit, outcome in pairs:
        if outcome.fault:
            after = ""
            if outcome.items:
                _, last = outcome.items[-1]
                after = f" after {last.kind} {last.label}"
            label = " ".join(unit.dtypes) + (" huge samples" if math.isinf(unit.bytes) else "")
            results.append(Result(op.name, "worker", label, False, f"{outcome.fault}{after}"))
    return results
