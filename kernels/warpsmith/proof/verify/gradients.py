"""Gradients of a call against those of the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.catalogue import DTYPES, is_fp8
from warpsmith.proof import testing
from warpsmith.proof.verify.run import (
    Run,
    as_tuple,
    empty_samples,
    expect,
    plain_samples,
    requiring,
    spread,
    usable_samples,
)
from warpsmith.spec import accuracy
from warpsmith.spec.references import written

_SAMPLES = 8


def _gradients(
    function: Callable[..., Any], args: tuple[Any, ...], seeds: Sequence[Tensor] | None, wide: Any
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Gradients of a call for the given output gradients, made here if there are none yet."""
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    outs = [o for o in as_tuple(function(*args)) if o is not None and o.requires_grad]
    if seeds is None:
        generator = torch.Generator(device=outs[0].device).manual_seed(1)
        seeds = [
            torch.randn(o.shape, generator=generator, device=o.device).to(o.dtype) for o in outs
        ]
    given = [s.to(wide) if wide is not None else s for s in seeds]
    return list(torch.autograd.grad(outs, leaves, given, allow_unused=True)), list(seeds)


def judge_gradients(
    run: Run, function: Callable[..., Any], args: tuple[Any, ...], label: str
) -> None:
    """By the accuracy rule, relative to the largest; backward kernels are judged by themselves.

    Gradients that an operator finds from its output carry the rounding of that output: PyTorch's
    are then found the same way, by the references on the CPU.

    Attention also computes its scores s again, and sets them against the log-sum-exp L of those of
    the forward pass: p = exp(s - L), whose relative error is the absolute one of s - L. As f32
    holds them (u = 2^-24) L is off by u |L|, and s by u |s| for each time that it was rounded, in
    either pass: beside scores of 1000, p by 6e-5 each. A softmax in one piece shows none of it:
    what shifts all scores of a row leaves p as it is, and of the only key that counts p is 1. Nor
    do the references, whose two passes round alike. Kernels add up products in the order that suits
    each pass, as FlashAttention's and PyTorch's own do, which keep the same L. So the gradients may
    be as far off as they move when what the derivative is given, arguments and outputs each by
    themselves, moves by u relative to its size, while the rest stays.
    """
    op = run.op
    leaves = requiring(args)
    ours, seeds = _gradients(function, leaves, None, None)
    narrow = torch.float32 if is_fp8(dispatch.first_tensor(args).dtype) else None

    def reference(dtype: torch.dtype | None) -> list[Tensor | None]:
        moved = args if dtype is None else dispatch.upcast(args, dtype)
        # PyTorch's gradient of the formula as it is written: rounded at every step, and where a
        # broadcast is summed away, the terms.
        return _gradients(written(op.reference), requiring(moved), seeds, dtype)[0]

    def from_output() -> list[Tensor | None]:
        moved = tuple(a.cpu() if isinstance(a, Tensor) else a for a in args)
        plain = getattr(torch.ops.warpsmith, op.name)
        found, _ = _gradients(plain, requiring(moved), [s.cpu() for s in seeds], None)
        return [None if g is None else g.to(seeds[0].device) for g in found]

    exact = reference(torch.float64)
    theirs = from_output() if op.starts_from_output else reference(narrow)
    wide = dispatch.upcast((*seeds, *args), torch.float64)

    def gradients(*moved: Any) -> tuple[Tensor, ...]:
        given, inputs = moved[: len(seeds)], requiring(moved[len(seeds) :])
        found, _ = _gradients(op.reference, inputs, given, torch.float64)
        return tuple(torch.zeros(()) if g is None else g for g in found)

    @functools.cache
    def floors() -> list[Tensor]:
        found = testing.conditioning(gradients, wide, gradients(*wide))
        if op.recomputes:
            again = _conditioning_of_derivative(op.name, wide[: len(seeds)], wide[len(seeds) :])
            found = [torch.maximum(a, b.to(a.device)) for a, b in zip(found, again, strict=True)]
        return found

    pairs = zip(op.argument_names, leaves, strict=True)
    names = [name for name, a in pairs if isinstance(a, Tensor) and a.requires_grad]
    for i, (name, our, wanted, their) in enumerate(zip(names, ours, exact, theirs, strict=True)):
        title = f"{op.name} [{label}] gradient of {name}"
        if our is None or wanted is None or their is None:
            zero = (our is None or not our.any()) and (wanted is None or not wanted.any())
            expect(zero, f"{title}: present in one and absent in the other")
            continue
        expect(our.shape == wanted.shape, f"{title}: shape {our.shape}, expected {wanted.shape}")
        comparison = testing.compare_tensors(
            our,
            wanted,
            their.to(our.dtype),
            elementwise=False,
            title=title,
            floor=lambda i=i: floors()[i],  # type: ignore[misc]
        )
        expect(comparison.ok, comparison.message)


def _conditioning_of_derivative(
    name: str, seeds: Sequence[Tensor], args: Sequence[Any]
) -> list[Tensor]:
    """How far exact gradients move when a tensor that the forward pass keeps moves by the unit
    roundoff of float32: in float64, by the references on the CPU.
    """
    given, moved = ([x.cpu() if isinstance(x, Tensor) else x for x in xs] for xs in (seeds, args))
    moved = requiring(moved)
    leaves = [a for a in moved if isinstance(a, Tensor) and a.requires_grad]
    kept: list[Tensor] = []
    at_hand: list[Any] = []

    def keep(x: Tensor) -> int:
        kept.append(x.detach())
        return len(kept) - 1

    with torch.autograd.graph.saved_tensors_hooks(keep, at_hand.__getitem__):
        outs = as_tuple(getattr(torch.ops.warpsmith, name)(*moved))
    outs = tuple(o for o in outs if o is not None and o.requires_grad)

    def derivative(*tensors: Tensor) -> tuple[Tensor, ...]:
        at_hand[:] = tensors
        found = torch.autograd.grad(outs, leaves, given, retain_graph=True, allow_unused=True)
        return tuple(torch.zeros(()) if g is None else g for g in found)

    return testing.conditioning(derivative, kept, derivative(*kept), accuracy.F32_EPS / 2)


def gradient_checks(run: Run) -> None:
    if not run.wants("gradients") or run.op.backward is None:
        return
    for dtype in run.dtypes:
        if not DTYPES[run.op.signature(dtype).first].is_floating_point:
            continue
        usable = usable_samples(run, dtype)
        samples = [*spread(usable, _SAMPLES), *empty_samples(run, dtype)]
        for sample, args in run.some(samples, 2, "gradients", dtype):
            with run.check("gradients", f"{dtype} {sample}"):
                judge_gradients(run, run.function(), args, f"{dtype} {sample}")
        for sample, args in plain_samples(run, dtype)[:1]:
            for variant in list(run.accepting(dtype, args))[-1:]:
                if variant.low_precision:
                    continue
                with run.check("gradients", f"{variant.name} {sample}"):
                    judge_gradients(run, run.function(variant), args, f"{variant.name} {sample}")
            with run.check("gradients", f"{dtype} one argument at a time"):
                _judge_single_gradients(run, args)


def _judge_single_gradients(run: Run, args: tuple[Any, ...]) -> None:
    """Each argument alone must get the gradient that it gets among all."""
    function = run.function()
    together, seeds = _gradients(function, requiring(args), None, None)
    slots = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
    for slot, whole in zip(slots, together, strict=True):
        alone = args[slot].detach().requires_grad_()
        moved = (*args[:slot], alone, *args[slot + 1 :])
        (part,), _ = _gradients(function, moved, seeds, None)
        name = run.op.argument_names[slot]
        if whole is None or part is None:
            expect(whole is None, f"no gradient for {name} alone")
            expect(part is None, f"a gradient for {name} alone only")
            continue
        expect(
            torch.equal(whole.float().nan_to_num(), part.float().nan_to_num()),
            f"the gradient of {name} depends on whether others are asked for",
        )
