"""Gradients of a layer's weight and bias in one pass over the gradient of its result."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, Property
from warpsmith.gemm import weight_gradient_cases as cases
from warpsmith.gemm.fused_problem import ladder, of_weight_gradient
from warpsmith.gemm.matmul import check_alike, check_operand, moved_bytes, operations
from warpsmith.spec.checks import shape_text

_OP = "linear_weight_gradient"


def _check(grad: Tensor, x: Tensor) -> None:
    for name, operand in (("grad", grad), ("x", x)):
        check_operand(_OP, name, operand, 2)
    for name, operand in (("grad", grad), ("x", x)):
        if operand.dim() != 2:
            raise RuntimeError(f"{_OP}: expected {name} to be 2-D, got shape {shape_text(operand)}")
    check_alike(_OP, "x", x, grad, "grad")
    if x.shape[0] != grad.shape[0]:
        raise RuntimeError(
            f"{_OP}: expected x to have as many rows as grad, got shapes {shape_text(x)} and "
            f"{shape_text(grad)}"
        )


def _bias_dtype(grad: Tensor, wide_bias: bool) -> torch.dtype:
    return torch.promote_types(grad.dtype, torch.float32) if wide_bias else grad.dtype


def _eager(grad: Tensor, x: Tensor, wide_bias: bool) -> tuple[Tensor, Tensor]:
    """As PyTorch users write it."""
    return torch.matmul(grad.t(), x), grad.sum(0, dtype=_bias_dtype(grad, wide_bias))


def _fake(grad: Tensor, x: Tensor, wide_bias: bool) -> tuple[Tensor, Tensor]:
    n = grad.shape[1]
    bias = grad.new_empty((n,), dtype=_bias_dtype(grad, wide_bias))
    return grad.new_empty((n, x.shape[1])), bias


def _derivative(
    grad_weight_grad: Tensor | None,
    grad_bias_grad: Tensor | None,
    grad: Tensor,
    x: Tensor,
    needs: Needs,
) -> Gradients:
    found: dict[str, Tensor | None] = {}
    if "grad" in needs:
        of_sum = None if grad_bias_grad is None else grad_bias_grad.to(grad.dtype)
        if grad_weight_grad is not None:
            found["grad"] = torch.ops.warpsmith.linear(x, grad_weight_grad, of_sum)
        elif of_sum is not None:
            found["grad"] = of_sum.expand(grad.shape)
    if "x" in needs and grad_weight_grad is not None:
        found["x"] = torch.ops.warpsmith.matmul(grad, grad_weight_grad)
    return found


linear_weight_gradient_op = catalogue.add(
    Op(
        "linear_weight_gradient(Tensor grad, Tensor x, bool wide_bias=False) "
        "-> (Tensor weight_grad, Tensor bias_grad)",
        family="gemm",
        source="fused_linear",
        reference=_eager,
        ladder=ladder(of_weight_gradient),
        triton="fused_linear_triton:linear_weight_gradient",
        fake=_fake,
        check=_check,
        backward=_derivative,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers", cases.whole_numbers),
            Property("deterministic", cases.deterministic),
        ),
        cost=Cost(
            bytes=lambda grad, x: moved_bytes(grad.t(), x) + grad.shape[1] * grad.element_size(),
            flops=lambda grad, x: operations(grad.t(), x),
        ),
        bench=cases.bench(),
        bench_dtypes=("f16", "bf16"),
    )
)
dispatch.register(linear_weight_gradient_op)
