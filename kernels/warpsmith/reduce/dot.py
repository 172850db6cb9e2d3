"""The dot product of two vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import (
    FLOATS,
    PACK,
    Condition,
    Cost,
    Gradients,
    Needs,
    Op,
    Property,
    Rung,
)
from warpsmith.reduce import dot_cases as cases
from warpsmith.reduce.reduce_sum import long_enough
from warpsmith.spec.checks import check_like, shape_text
from warpsmith.spec.determinism import cancelling, deterministic
from warpsmith.spec.rows import address


def _check(x: Tensor, y: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"dot: expected x to be a floating-point tensor, got {x.dtype}")
    if catalogue.is_fp8(x.dtype):
        raise RuntimeError(f"dot: expected x to have at least 16 bits an element, got {x.dtype}")
    if x.dim() != 1:
        raise RuntimeError(f"dot: expected x to be 1-D, got shape {shape_text(x)}")
    check_like("dot", "y", y, x)


#: torch.dot takes no more elements than an int counts.
_MOST = 1 << 30


def _reference(x: Tensor, y: Tensor) -> Tensor:
    if x.numel() <= _MOST:
        return torch.dot(x, y)
    parts = [torch.dot(a, b) for a, b in zip(x.split(_MOST), y.split(_MOST), strict=True)]
    return torch.stack(parts).sum()


def _derivative(grad: Tensor, x: Tensor, y: Tensor, needs: Needs) -> Gradients:
    mul = torch.ops.warpsmith.mul
    return {
        "x": mul(y, grad) if "x" in needs else None,
        "y": mul(x, grad) if "y" in needs else None,
    }


def _start(x: Tensor) -> int:
    """Where the kernel finds the values; a copy is aligned to everything."""
    return address(x) if x.is_contiguous() else 0


def _aligned_alike(width: int) -> Condition:
    def condition(x: Tensor, y: Tensor) -> str | None:
        if x.numel() == 0 or (_start(x) - _start(y)) % width == 0:
            return None
        return f"needs x and y aligned alike to {width} bytes"

    return condition


def _atomic(name: str, story: str, seed: str, **settings: Any) -> Rung:
    return Rung(
        name,
        f"{story}: neither deterministic nor precise",
        dtypes=("f16",),
        technique=name,
        accumulators=("f16",),
        seeds=(seed,),
        **settings,
    )


_HALVES = ("f16", "bf16")

dot_op = catalogue.add(
    Op(
        "dot(Tensor x, Tensor y) -> Tensor",
        family="reduce",
        reference=_reference,
        ladder=(
            Rung("scalar", "one value at a time, shuffles, a second launch for the blocks"),
            _atomic(
                "atomic_half",
                "blocks added in f16 by atomics on one half",
                "dot_product_{dtype}_by_half_atomicAdd",
            ),
            _atomic(
                "atomic_padded",
                "the half sent as a pair with a zero, which memory adds at once",
                "dot_product_{dtype}_by_fastAtomicAdd",
            ),
            _atomic(
                "atomic_half2",
                "both halves of the pair carry a sum",
                "dot_product_{dtype}_by_half2_packed_atomicAdd",
                width=2,
                when=_aligned_alike(4),
            ),
            Rung(
                "x2", "two 16-bit values an access", dtypes=_HALVES, width=2, when=_aligned_alike(4)
            ),
            Rung("unroll", "four or eight loads of each operand in flight", width=PACK),
            Rung(
                "pack",
                "128-bit accesses, four of each operand in flight",
                width=PACK,
                pack=True,
                when=_aligned_alike(16),
            ),
            Rung(
                "one_pass",
                "a single launch: the last block adds the others up, in a fixed order",
                width=PACK,
                pack=True,
                technique="one_pass",
                when=_aligned_alike(16),
            ),
            Rung(
                "two_pass",
                "two launches, each of which starts while what comes before it ends",
                width=PACK,
                pack=True,
                technique="two_pass",
                min_sm=90,
                when=_aligned_alike(16),
                suits=long_enough,
            ),
        ),
        triton="dot_triton:dot",
        fake=lambda x: x.new_empty(()),
        check=_check,
        backward=_derivative,
        accumulates=True,
        terms=lambda x, y: x * y,
        aliases=("dot_product",),
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property(
                "deterministic",
                deterministic(lambda i: (cancelling(i, 1_000_003), i.plain(1_000_003, salt=1))),
            ),
            Property("whole numbers are exact", cases.whole_numbers),
            Property("symmetric", cases.symmetric),
        ),
        cost=Cost(
            bytes=lambda x: 2 * x.numel() * x.element_size() + x.element_size(),
            flops=lambda x: 2 * x.numel(),
        ),
        bench=cases.BENCH,
        bench_dtypes=FLOATS,
    )
)
dispatch.register(dot_op)
_dot = dispatch.public(dot_op)


def dot(x: Tensor, y: Tensor, *, variant: str | None = None) -> Tensor:
    """The dot product: `x[0] * y[0] + x[1] * y[1] + ...`.

    The same inputs give the same bits on every run, whatever else the GPU does. A thread, or of
    short inputs a warp, adds a few products in f32, the rest is added in f64 and rounded once.
    Differentiable in x and y.

    Args:
        x: [n], f32, f16 or bf16 (f64 by the reference), any stride.
        y: [n], of the dtype and device of x, any stride.
        variant: one rung by name instead of the best one, "f16x8_pack_f32". Those with "atomic" in
            their name hold the whole sum in f16: it overflows beyond 65504, keeps 11 bits, and
            changes from run to run with the order in which blocks arrive.

    Returns:
        A tensor without dimensions of the dtype of x. The product of empty vectors is 0.

    Raises:
        RuntimeError: x is not floating-point, or fp8, or not 1-D; y has another shape, dtype or
            device; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        `torch.dot`.
    """
    return _dot(variant, x, y)
