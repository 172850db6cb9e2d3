"""A matrix product added to f32 sums: gradients of weights over many steps."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Op, Property
from warpsmith.gemm import fused_cases as cases
from warpsmith.gemm.fused_problem import FusedProblem, ladder, of_sum
from warpsmith.gemm.matmul import check_alike, check_operand, operations
from warpsmith.spec.checks import check_device, shape_text
from warpsmith.spec.memory import check_own_memory

_OP = "accumulate_matmul"


def _check(a: Tensor, b: Tensor, total: Tensor) -> None:
    check_operand(_OP, "a", a, 2)
    check_operand(_OP, "b", b, 2)
    for name, x in (("a", a), ("b", b)):
        if x.dim() != 2:
            raise RuntimeError(f"{_OP}: expected {name} to be 2-D, got shape {shape_text(x)}")
    check_alike(_OP, "b", b, a, "a")
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(f"{_OP}: cannot multiply shapes {shape_text(a)} and {shape_text(b)}")
    check_device(_OP, "total", total, a, "a")
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    if total.dtype != wide:
        raise RuntimeError(f"{_OP}: expected total to have dtype {wide}, got {total.dtype}")
    wanted = (a.shape[0], b.shape[1])
    if total.shape != wanted:
        raise RuntimeError(
            f"{_OP}: expected total to have shape {wanted}, that of the product, "
            f"got {shape_text(total)}"
        )
    if not total.is_contiguous():
        raise RuntimeError(f"{_OP}: expected total to be contiguous")
    for name, x in (("a", a), ("b", b)):
        check_own_memory(_OP, "total", total, name, x)


def _reference(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    return total + torch.matmul(a.to(total.dtype), b.to(total.dtype))


def _eager(a: Tensor, b: Tensor, total: Tensor) -> None:
    """As PyTorch users write it."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _by_tensor_cores(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """PyTorch's product of 16 bits, which adds up in f32 as its tensor cores do."""
    if a.is_cuda and a.dtype != total.dtype:
        return torch.addmm(total, a, b, out_dtype=total.dtype)
    return _reference(a, b, total)


def _problem(a: Tensor, b: Tensor, total: Tensor) -> FusedProblem:
    return of_sum(a, b, total)


accumulate_matmul_op = catalogue.add(
    Op(
        "accumulate_matmul(Tensor a, Tensor b, Tensor(a!) total) -> ()",
        family="gemm",
        source="fused_linear",
        reference=_reference,
        eager=_eager,
        alternatives=(_by_tensor_cores,),
        ladder=ladder(_problem),
        triton="fused_linear_triton:accumulate_matmul",
        fake=lambda: None,
        check=_check,
        samples=cases.sum_samples(),
        errors=cases.SUM_ERRORS,
        properties=(Property("adds to what is there", cases.adds),),
        cost=Cost(
            bytes=lambda a, b, total: (
                (a.numel() + b.numel()) * a.element_size() + 2 * 4 * total.numel()
            ),
            flops=lambda a, b: operations(a, b),
        ),
        bench=cases.sum_bench(),
        bench_dtypes=("bf16",),
    )
)
dispatch.register(accumulate_matmul_op)
_run = dispatch.public(accumulate_matmul_op)


def accumulate_matmul(a: Tensor, b: Tensor, total: Tensor, *, variant: str | None = None) -> None:
    """Adds a matrix product to sums in f32: `total += a b`.

    The product's own sums are held in f32, too; nothing is rounded to 16 bits. The same inputs give
    the same bits on every run. Not differentiable.

    Args:
        a: [m, k], f32, f16 or bf16, any strides; best column-major, the transposed gradient of a
            layer's output.
        b: [k, n], of the dtype and device of a, any strides; best row-major, the layer's input.
        total: [m, n], f32 (f64 beside f64), contiguous: the gradient of the layer's weight so far.
        variant: one rung by name instead of the best one, "bf16_wgmma".

    Returns:
        Nothing: `total` is written to.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8, or not 2-D; the dtypes, devices or
            shapes do not fit; total is not contiguous, or shares memory with a or b; the variant
            cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        `torch.addmm(total, a, b, out_dtype=torch.float32)`.
    """
    _run(variant, a, b, total)
