"""The matrix product of f32 on tensor cores, which multiply TF32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.gemm import matmul_cases
from warpsmith.gemm import matmul_tf32_cases as cases
from warpsmith.gemm.ladder import on
from warpsmith.gemm.ladder_wgmma import needs_lines_for_maps, needs_wgmma, plan_wgmma
from warpsmith.gemm.matmul import (
    check_alike,
    check_operand,
    gradients,
    moved_bytes,
    operations,
    product_shape,
)
from warpsmith.gemm.problem import (
    Matrix,
    OfProblem,
    Problem,
    condition,
    needs_a_row_major,
    needs_one_product,
    needs_packs_16,
    needs_plain,
    needs_row_major,
    needs_tiles_in_grid,
    product,
)
from warpsmith.gemm.reference_in_large import among_others


def _check(a: Tensor, b: Tensor) -> None:
    op = cases.OP
    check_operand(op, "a", a, 1)
    if a.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"{op}: expected a to have dtype torch.float32, got {a.dtype}")
    check_operand(op, "b", b, 1)
    check_alike(op, "b", b, a, "a")
    product_shape(op, a, b)


def _rounded_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(cases.round_to_tf32(a), cases.round_to_tf32(b))


class _Product(torch.autograd.Function):
    """The product of what is left of the operands; its gradients are products of the same kind, as
    if nothing had been rounded.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _rounded_product(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        return gradients(a, b, (needs_a, needs_b), grad, _rounded_product)


def _reference(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b)  # type: ignore[no-untyped-call, no-any-return]


def _derivative(grad: Tensor, a: Tensor, b: Tensor, needs: Needs) -> Gradients:
    wanted = "a" in needs, "b" in needs
    grad_a, grad_b = gradients(a, b, wanted, grad, torch.ops.warpsmith.matmul_tf32)
    return {"a": grad_a, "b": grad_b}


# --- peers ----------------------------------------------------------------------------------------


def _with_tf32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch multiplies TF32 where it is told that this is precise enough."""

    def run(a: Tensor, b: Tensor) -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return function(a, b)
        finally:
            torch.set_float32_matmul_precision(before)

    return run


#: The reference, whose operands are TF32 already, as PyTorch computes it on tensor cores: they
#: truncate the sums that CUDA cores round to nearest.
_on_tensor_cores = _with_tf32(_rounded_product)


def _compiled() -> Callable[..., Tensor]:
    return _with_tf32(torch.compile(torch.matmul, dynamic=False))


# --- the operator ---------------------------------------------------------------------------------

_TILED = condition(needs_plain, needs_row_major, needs_packs_16)


def _needs_maps(p: Problem) -> str | None:
    """Of the copy engine, as `can_map` of host/tensor_map.h has it."""

    def can_map(x: Matrix, rows: int, cols: int) -> bool:
        lines, length = (rows, cols) if x.by_rows else (cols, rows)
        if x.address % 16 != 0 or max(lines, length) >= 2**31:
            return False
        pitch = x.ld * p.size
        return lines == 1 or (x.ld >= length and pitch % 16 == 0 and pitch < 2**40)

    if can_map(p.a, p.m, p.k) and can_map(p.b, p.k, p.n):
        return None
    return "needs a and b in lines that begin at multiples of 16 bytes, and sizes below 2^31"


def _suits_large(p: Problem) -> str | None:
    tiles = math.ceil(p.m / 128) * math.ceil(p.n / 128)
    large = p.m > 64 and p.n > 64 and p.k >= 256 and tiles > 64
    return None if large else "smaller tiles waste less, or fill the GPU"


LADDER = (
    Rung(
        "wmma_naive",
        "a warp per 16 x 16 tile, WMMA, any layout",
        dtypes=("f32",),
        technique="wmma_naive",
    ),
    Rung(
        "wmma_stages",
        "tiles of 128 x 128 through a ring of four stages",
        dtypes=("f32",),
        width=4,
        technique="wmma_stages",
        when=_TILED,
        seeds=(
            "sgemm_wmma_m16n16k8_mma4x2_warp2x4_stages_{dtype}",
            "sgemm_wmma_m16n16k8_mma4x2_warp2x4_stages_dsmem_{dtype}",
        ),
    ),
    Rung(
        "wmma_swizzle",
        "blocks in an order that shares operands in L2",
        dtypes=("f32",),
        width=4,
        technique="wmma_swizzle",
        when=_TILED,
        seeds=(
            "sgemm_wmma_m16n16k8_mma4x2_warp2x4_stages_swizzle_{dtype}",
            "sgemm_wmma_m16n16k8_mma4x2_warp2x4_stages_dsmem_swizzle_{dtype}",
        ),
    ),
    Rung(
        "mma",
        "mma.sync on fragments that leave swizzled tiles four values at a time, any order",
        dtypes=("f32",),
        width=4,
        technique="mma",
        when=condition(needs_plain, needs_packs_16),
    ),
    Rung(
        "mma_peak",
        "transposed products, values rounded as they are used, tiles by cost, split k, any call",
        dtypes=("f32",),
        width=4,
        technique="mma_peak",
        when=condition(needs_tiles_in_grid),
    ),
    Rung(
        "mma_tma",
        "tiles brought and rounded by the copy engine",
        dtypes=("f32",),
        width=4,
        technique="mma_tma",
        min_sm=90,
        when=condition(needs_one_product, needs_a_row_major, _needs_maps),
        suits=condition(_suits_large),
    ),
    Rung(
        "wgmma_peak",
        "wgmma, b in either order, a tile by cost",
        dtypes=("f32",),
        width=4,
        technique="wgmma_peak",
        min_sm=90,
        when=condition(needs_wgmma, needs_a_row_major, needs_lines_for_maps, needs_tiles_in_grid),
        plan=OfProblem(plan_wgmma),
    ),
)

matmul_tf32_op = catalogue.add(
    Op(
        "matmul_tf32(Tensor a, Tensor b) -> Tensor",
        family="gemm",
        reference=_reference,
        eager=_with_tf32(torch.matmul),
        ladder=tuple(on(product, rung) for rung in LADDER),
        triton="matmul_triton:matmul_tf32",
        yields=True,
        fake=lambda a, b: a.new_empty(product_shape(cases.OP, a, b)),
        check=_check,
        backward=_derivative,
        steps=True,
        alternatives=(_on_tensor_cores, functools.partial(among_others, _on_tensor_cores)),
        input_eps=2.0**-10,
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(
            Property("rounds its operands", cases.rounds_operands),
            Property("ignores what it cuts off", cases.ignores_what_it_cuts_off),
            Property("whole numbers are exact", matmul_cases.whole_numbers),
            Property("deterministic", matmul_cases.deterministic),
        ),
        cost=Cost(bytes=moved_bytes, flops=operations, matrix="tf32"),
        bench=cases.bench(),
        bench_dtypes=("f32",),
        # A peer may cut off what is here rounded: half of its operands are an ulp of TF32 nearer to
        # zero, which costs 1e-3 of the largest result at any k. What PyTorch's product of f32
        # loses depends on how it slices k: for n(0, 1), k from 256 to 65536 and 1 to 128 slices the
        # ratio of the two lies between 90 and 3000 in a simulation.
        peer_error_ratio=4096.0,
        peers={"compile": _compiled},
    )
)
dispatch.register(matmul_tf32_op)
_matmul_tf32 = dispatch.public(matmul_tf32_op)
_matmul_tf32_into = into.register(matmul_tf32_op)


def matmul_tf32(
    a: Tensor, b: Tensor, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """The matrix product on tensor cores, which multiply TF32: 10 bits of mantissa, 8 of exponent.

    Each operand is rounded to nearest on its way to the multiplication, ties away from zero or to
    even as comes cheapest; the operands in memory are not written. Products are exact, sums are
    held in f32. The same inputs give the same bits on every run. Differentiable in a and b, by
    products of the same kind.

    Args:
        a: [..., m, k], or [k] for a row; f32 (f64 by the reference, rounded alike), any strides.
        b: [..., k, n], or [k] for a column; of the dtype and device of a, any strides. Row-major
            and column-major operands are read as they lie, in any combination. The dimensions
            before the last two are broadcast.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "f32x4_mma".

    Returns:
        A contiguous tensor [..., m, n] of the dtype of a; without m where a is a vector, without n
        where b is one.

    Raises:
        RuntimeError: an operand is not f32, or has no dimension; the dtypes, devices or shapes do
            not fit; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.matmul` under `torch.set_float32_matmul_precision("high")`, but for how the operands
        are rounded.
    """
    if out is not None:
        return _matmul_tf32_into(out, variant, a, b)  # type: ignore[no-any-return]
    return _matmul_tf32(variant, a, b)
