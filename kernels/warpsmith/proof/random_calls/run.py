"""Makes random calls and judges them: whatever serves a call agrees with float64."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Op
from warpsmith.native import finding
from warpsmith.proof import pool, testing
from warpsmith.proof.pool import TASK_BYTES, CrowdedError, LostDeviceError
from warpsmith.proof.random_calls.call import Call
from warpsmith.proof.random_calls.draw import draw
from warpsmith.proof.verify.run import Run, elements, implementations
from warpsmith.proof.verify.units import on_device

#: Calls of one operator that a worker makes at a stretch: few, as a broken context ends it.
STRETCH = 100
#: On a GPU Triton compiles most calls of a twin anew, which takes longer than all else: so many of
#: an operator's first calls are its twin's too, and then one of so many.
TWINS_FIRST, TWINS_OF = 100, 4
#: Elements of the largest tensor that the interpreter is given.
INTERPRETED = 4000
#: Workers that are lost are replaced so often.
_MOST_LOSSES = 50


@dataclass(frozen=True)
class Failure:
    """An implementation that failed a call: the call as text, whose line can be made again."""

    implementation: str
    call: Call
    detail: str

    def __str__(self) -> str:
        """One line of JSON."""
        said = {"implementation": self.implementation, "detail": self.detail}
        return json.dumps({**json.loads(str(self.call)), **said})


@dataclass(frozen=True)
class Progress:
    """How far a stretch has come: so many calls made, of which the operator's check let so many
    pass, and what failed in them.
    """

    op: str
    made: int
    passed: int
    failures: tuple[Failure, ...] = ()


def judge(run: Run, call: Call, args: tuple[Any, ...], twin: bool) -> Iterator[Failure]:
    """Every implementation that takes the call, which stands for `args`; the `twin` where asked.

    Raises:
        LostDeviceError: after the failure that broke the CUDA context.
    """
    expected = testing.Expected.of(run.op, args)
    for name, function, variant in implementations(run, call.dtype, args):
        if name == "triton" and not (twin and (run.on_gpu or _interpretable(call, args))):
            continue
        try:
            with testing.unchanged(args), testing.poison(), torch.no_grad():
                out = function(*args)
            testing.assert_matches(run.op, out, args, name, variant=variant, expected=expected)
        except torch.cuda.OutOfMemoryError as error:
            raise CrowdedError(str(error)) from error
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else f"{error!r}"
            yield Failure(name, call, text[:1000])
            run.ensure_alive()


def _interpretable(call: Call, args: tuple[Any, ...]) -> bool:
    """Whether the interpreter has done within seconds: it runs one program after another, of which
    a group norm has one for each group.
    """
    groups = call.arguments["groups"] * len(args[0]) if "groups" in call.arguments else 0
    return elements(args) <= INTERPRETED and groups <= INTERPRETED // 64


def refused(op: Op, args: tuple[Any, ...]) -> bool:
    """Whether the operator's own check does not let the call pass."""
    try:
        op.check(*args)
    except (IndexError, RuntimeError):
        return True
    return False


def make(op: Op, device: torch.device, seed: int, indices: range) -> Iterator[Progress]:
    """Draws, makes and judges some of an operator's calls, one after another."""
    with on_device(device):
        run = Run(op, device, frozenset(), op.dtypes, [])
        for index in indices:
            twin = not run.on_gpu or index < TWINS_FIRST or index % TWINS_OF == 0
            yield from _one(run, draw(op, seed, index), twin)


def remake(calls: Sequence[Call], device: torch.device) -> Iterator[Progress]:
    """The same with calls that were written down."""
    with on_device(device):
        for call in calls:
            op = catalogue.get(call.op)
            yield from _one(Run(op, device, frozenset(), op.dtypes, []), call)


def _one(run: Run, call: Call, twin: bool = True) -> Iterator[Progress]:
    args = call.make(run.device)
    if refused(run.op, args):
        yield Progress(run.op.name, 1, 0)
        return
    found: list[Failure] = []
    try:
        found.extend(judge(run, call, args, twin))
    except LostDeviceError as error:
        found.append(Failure("the CUDA context is lost", call, str(error)[:1000]))
        yield Progress(run.op.name, 1, 1, tuple(found))
        raise
    except CrowdedError:
        raise
    except Exception as error:  # a reference, say
        found.append(Failure("reference", call, f"{error!r}"[:1000]))
        run.ensure_alive()
    yield Progress(run.op.name, 1, 1, tuple(found))


# --- side by side ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stretch:
    """Calls of one operator: a task of `pool`."""

    op: str
    device: str
    seed: int
    start: int
    stop: int
    bytes: float = TASK_BYTES

    @property
    def rank(self) -> float:
        """All operators come to their first calls before any comes to its last."""
        return -self.start

    @property
    def cost(self) -> float:
        op = catalogue.get(self.op)
        return (self.stop - self.start) * len(op.variants) / len(op.dtypes)

    def run(self, emit: Callable[[Progress], None], crowded: bool) -> None:
        calls = range(self.start, self.stop)
        for progress in make(catalogue.get(self.op), torch.device(self.device), self.seed, calls):
            emit(progress)


def random_calls(
    ops: Sequence[Op],
    count: int,
    *,
    seed: int,
    device: str | torch.device = "cuda",
    jobs: int = 1,
    timeout: float = 600.0,
    record: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[int, list[Failure]]:
    """Makes so many random calls in all, spread evenly over the operators, and goes on after a
    failure, a broken CUDA context, a crash and a hang.

    Args:
        ops: operators of the catalogue.
        count: how many calls; at least one of each operator.
        seed: of all of them: the same numbers give the same calls.
        device: "cuda", "cuda:1" or "cpu".
        jobs: how many processes share the work.
        timeout: seconds after which a process that finishes no call is stopped.
        record: a file to which every failure is added as it is found, a line of JSON each.
        progress: called after each call.

    Returns:
        How many calls the operators took, and the failures.

    Raises:
        RuntimeError: where a library of kernels is not to be had.
    """
    where = torch.device(device)
    if where.type == "cuda":
        where = torch.device("cuda", where.index or 0)
        wanted = dict.fromkeys(op.library for op in ops)
        finding.prepare(wanted)
        for library in wanted:
            if finding.find(library) is None:
                raise RuntimeError(finding.why_not(library))
    each, more = divmod(max(count, len(ops)), len(ops))
    failures: dict[str, Failure] = {}
    passed = 0

    def made(step: Progress) -> None:
        if progress is not None:
            progress(dataclasses.replace(step, failures=()))

    def enter(op: str, found: Iterable[Failure]) -> None:
        new = {str(failure): failure for failure in found if str(failure) not in failures}
        failures.update(new)
        if record is not None and new:
            with record.open("a") as file:
                file.writelines(f"{line}\n" for line in new)
        if progress is not None and new:
            progress(Progress(op, 0, 0, tuple(new.values())))

    def done(index: int, outcome: pool.Outcome) -> None:
        """Not before: where processes share a GPU, one that breaks its context breaks that of all,
        and the stretches of the others are run again.
        """
        steps: list[Progress] = outcome.items
        enter(waiting[index].op, (failure for step in steps for failure in step.failures))

    shares = {op.name: each + (i < more) for i, op in enumerate(ops)}
    waiting = [
        _Stretch(op.name, str(where), seed, start, min(start + STRETCH, shares[op.name]))
        for op in ops
        for start in range(0, shares[op.name], STRETCH)
    ]
    for _ in range(_MOST_LOSSES):
        outcomes = pool.run(
            waiting,
            jobs=jobs,
            device=where,
            timeout=timeout,
            progress=made,
            done=done,
            at_once=True,
        )
        rest = []
        for stretch, outcome in zip(waiting, outcomes, strict=True):
            reached = stretch.start + sum(step.made for step in outcome.items)
            passed += sum(step.passed for step in outcome.items)
            if outcome.fault and reached < stretch.stop:
                call = draw(catalogue.get(stretch.op), seed, reached)
                made(Progress(stretch.op, 1, 1))
                enter(stretch.op, [Failure("process", call, outcome.fault)])
                passed, reached = passed + 1, reached + 1
            if reached < stretch.stop:
                rest.append(dataclasses.replace(stretch, start=reached))
        waiting = rest
        if not waiting:
            break
    return passed, list(failures.values())
