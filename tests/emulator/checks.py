"""The catalogue's samples through the emulated kernels, judged as verification judges them."""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import emulator
from emulator import architectures, gpus
from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Variant
from warpsmith.native import libraries
from warpsmith.proof import testing
from warpsmith.proof.verify import calls

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
    emulator.load_operators(path)
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
    emulator.load_operators(path)
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
                yield Result(variant, str(sample), wrong(op, variant, args, str(sample)))


def nonfinite_results(
    op: Op, *, most: int = 20_000, seconds: float = 60.0, seed: int = 0
) -> Iterator[Result]:
    """NaN and infinities among the arguments of samples. Variants take turns, in an order that the
    seed says, each from a sample of its own on: all samples with one of these values each, then
    with the next. Arguments as those of `results`; at least one call.

    Not those that add up in f16: whether a sum may overflow cannot be told of NaN.
    """
    drawn = random.Random(f"{seed} {op.name}")
    variants = [
        v
        for v in op.variants
        if not v.low_precision and is_there(op.family, op.source_dir, v.rung.name, 90)
    ]
    began = time.process_time()
    left = deque(
        (variant, _nonfinite_calls(op, variant, most, drawn.randrange(1 << 16)))
        for variant in drawn.sample(variants, len(variants))
    )
    while left:
        variant, made = left.popleft()
        for label, args in made:
            yield Result(variant, label, wrong(op, variant, args, label))
            if time.process_time() - began > seconds:
                return
            left.append((variant, made))
            break


def _nonfinite_calls(
    op: Op, variant: Variant, most: int, first: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Those that the variant takes, with their labels, from sample number `first` on."""
    values, samples = calls.nonfinite_values(op), op.samples_for(variant.dtype)
    for turn, i in itertools.product(range(len(values)), range(len(samples))):
        sample = samples[(first + i) % len(samples)]
        value = values[(first + i + turn) % len(values)]
        if _elements(sample.make(op.inputs(variant.dtype, "meta"))) > most:
            continue
        args = calls.planted(dispatch.normalise(op, sample.make(op.inputs(variant.dtype))), value)
        if dispatch.refusal(variant, args, 90) is None:
            yield f"{sample} with {value}", args


def into_results(op: Op, *, most: int = 5_000, samples: int = 6) -> Iterator[tuple[str, str]]:
    """`op.out` over a few samples of each dtype, into tensors that lie in several ways: the bits of
    `op`, written nowhere else.
    """
    if op not in into.operators():
        return
    plain, out = (getattr(getattr(torch.ops.warpsmith, op.name), n) for n in ("auto", "auto_out"))
    for dtype in op.dtypes:
        small = [
            s
            for s in op.samples_for(dtype)
            if s.small and _elements(s.make(op.inputs(dtype, "meta"))) <= most
        ]
        for sample in small[:samples]:
            args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
            if not into.is_alone(op, args):
                continue
            found = op.results(plain(*args))[: len(into.names_of(op))]
            for how, places in into_places(found).items():
                yield (
                    f"{op.name} {dtype} [{sample}] into {how}",
                    _into(op, out, args, found, places),
                )


def _into(
    op: Op, out: Any, args: tuple[Any, ...], found: tuple[Any, ...], places: list[torch.Tensor]
) -> str:
    beside = [_beside(place) for place in places]
    gpus.forget()
    versions = [p._version for p in places]
    try:
        out(*args, **dict(zip(into.names_of(op), places, strict=True)))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    fits = all(
        p.data_ptr() % 16 == 0
        and (p.stride() == f.stride() or (op.elementwise and p.is_contiguous()))
        for p, f in zip(places, found, strict=True)
    )
    copied = versions != [p._version for p in places]  # which PyTorch counts, and kernels do not
    if fits and copied and not gpus.fell_back():
        return "copied to out, not written there"
    if any(not _same_bytes(a, b) for a, b in zip(found, places, strict=True)):
        return "another result than without out"
    same = all(torch.equal(a, _beside(b)) for a, b in zip(beside, places, strict=True))
    return "" if same else "memory beside out was written to"


def into_places(found: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Tensors for results like those: contiguous, as they lie, from an odd element on, in columns,
    with gaps.
    """

    def filled(count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.full((count,), float("nan"), dtype=torch.float32).to(like.dtype)

    def gaps(like: torch.Tensor) -> torch.Tensor:
        wide = filled(3 * max(like.numel(), 1), like)
        return wide[: 3 * like.numel()].view((*like.shape, 3))[..., 1]

    def columns(like: torch.Tensor) -> torch.Tensor:
        turned = filled(like.numel(), like).view(tuple(reversed(like.shape)))
        return turned.permute(tuple(reversed(range(like.dim()))))

    return {
        "contiguous": [filled(f.numel(), f).view(f.shape) for f in found],
        "alike": [f.new_full(f.shape, 0).as_strided(f.shape, f.stride()) for f in found],
        "odd": [filled(f.numel() + 1, f)[1:].view(f.shape) for f in found],
        "columns": [columns(f) for f in found],
        "gaps": [gaps(f) for f in found],
    }


def _beside(x: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage around a tensor, with zeros in the place of its own."""
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).clone()
    own = torch.empty(0, dtype=x.dtype).set_(
        bytes_.untyped_storage(), x.storage_offset(), x.shape, x.stride()
    )
    own.copy_(torch.zeros(x.shape).to(x.dtype))
    return bytes_


def wrong(op: Op, variant: Variant, args: tuple[Any, ...], label: str) -> str:
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
