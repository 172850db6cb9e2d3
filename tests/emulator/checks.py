"""The catalogue's samples through the emulated kernels, judged as verification judges them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import emulator
from emulator import architectures, gpus
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Variant
from warpsmith.native import libraries
from warpsmith.proof import testing

#: The accuracy rule measures by PyTorch's own error, which on the CPU, where it adds up in double
#: and has no approximate functions, is less than on a GPU: so many times less, it is taken to be.
GPU_ERROR = 8.0


@dataclass(frozen=True)
class Result:
    variant: Variant
    sample: str
    message: str = ""  # empty where the result is right

    def __str__(self) -> str:
        return f"{self.variant.op_name} [{self.sample}]"


@functools.cache
def load(library: str, jobs: int = 2, sm: int = 90) -> None:
    """Compiles and loads a library; its rungs then take tensors of the CPU, as `op.rung`, and
    `op.auto` chooses among them. For an older architecture than sm_90, what has code of its own for
    it.

    It is loaded once: rungs of the real library would be there twice.
    """
    path = emulator.emulated(library, jobs, sm)
    if path is None:
        return
    ops = [op for op in catalogue.load().values() if op.library == library]
    for op in ops:
        gpus.register_auto(op)
    torch.ops.load_library(str(path))
    family, source_dir = ops[0].family, ops[0].source_dir
    order = dispatch.ladder_orders(family)[source_dir]
    kept = [name for name in order if is_there(family, source_dir, name, sm)]
    getattr(torch.ops.warpsmith, f"_{libraries.symbol(library)}_ladder")(
        source_dir, dispatch.as_told(ops[0], kept)
    )


#: Self tests that need a GPU, or hours: how the driver starts kernels, which of them overlap, and
#: every float there is.
ON_A_GPU = ("launch", "launch_early", "convert_fp8_every_float")


def is_there(family: str, source_dir: str, rung: str, sm: int) -> bool:
    """Whether the emulated library for `sm` has a rung."""
    if emulator.is_left_out(family, source_dir, rung):
        return False
    files = emulator.files_of(family, source_dir, rung)
    return sm == 90 or any(architectures.differs(path, sm) for path in files)


def self_tests(jobs: int = 2, sm: int = 90) -> Iterator[tuple[str, str]]:
    """Each self test of the device vocabulary: its name, and what differed, "" for nothing."""
    path = emulator.emulated("selftest", jobs, sm)
    if path is None:
        return
    torch.ops.load_library(str(path))
    for name in torch.ops.warpsmith._selftest_names().split(","):
        if name not in ON_A_GPU:
            try:
                yield name, torch.ops.warpsmith._selftest(name)
            except RuntimeError as error:
                yield name, str(error).splitlines()[0]


def _elements(args: Sequence[Any]) -> int:
    return sum(a.numel() for a in args if isinstance(a, torch.Tensor))


def results(
    op: Op, *, most: int = 20_000, seconds: float = 60.0, seed: int = 0, sm: int = 90
) -> Iterator[Result]:
    """Every variant over the operator's samples.

    Args:
        op: an operator whose library is loaded.
        most: elements of the largest sample.
        seconds: of this process, after which no more samples are taken; each variant has its share
            of them, and at least one sample that it serves.
        seed: of the samples' values.
        sm: what the family was loaded for, and the current GPU is.
    """
    variants = [
        v
        for v in op.variants
        if v.rung.min_sm <= sm and is_there(op.family, op.source_dir, v.rung.name, sm)
    ]
    for i, variant in enumerate(variants):
        began, share = time.process_time(), seconds / len(variants)
        dtype = DTYPES[variant.dtype]
        ran = False
        for sample in op.samples_for(variant.dtype):
            if ran and time.process_time() - began > share:
                break
            if _elements(sample.make(Inputs(dtype, "meta", seed))) > most:
                continue
            args = dispatch.normalise(op, sample.make(Inputs(dtype, "cpu", seed + i)))
            if dispatch.refusal(variant, args, sm) is None:
                ran = True
                yield Result(variant, str(sample), _wrong(op, variant, args, str(sample)))


def _wrong(op: Op, variant: Variant, args: tuple[Any, ...], label: str) -> str:
    rung = getattr(torch.ops.warpsmith, op.name).rung
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    function = functools.partial(rung, rung=variant.rung.name, accumulator=variant.accumulator)
    try:
        out = testing.with_written(op, function)(*args)
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    for before, after in zip(given, args, strict=True):
        if isinstance(after, torch.Tensor) and not _same_bytes(before, after):
            return "an argument was written to"
    expected = testing.Expected.of(op, args)
    for judged_by in (expected, _as_on_a_gpu(expected)):
        verdict = testing.compare(op, out, args, variant=variant, label=label, expected=judged_by)
        if verdict.ok:
            return ""
    return verdict.message.splitlines()[0]


def _as_on_a_gpu(expected: testing.Expected) -> testing.Expected:
    def less_exact(theirs: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        if not theirs.is_floating_point():
            return theirs
        error = theirs.double() - exact
        there = torch.where(error.isfinite(), exact + GPU_ERROR * error, theirs.double())
        return there.to(theirs.dtype)

    pairs = zip(expected.torch, expected.gold, strict=True)
    return replace(expected, torch=tuple(less_exact(*pair) for pair in pairs))


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    def raw(x: torch.Tensor) -> torch.Tensor:
        packed = x.clone(memory_format=torch.contiguous_format)
        return packed.view(-1).view(torch.uint8) if x.numel() else x

    return a.shape == b.shape and torch.equal(raw(a), raw(b))
