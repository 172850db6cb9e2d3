"""Softmax along any dimension, y = exp(x - max) / sum(exp(x - max)), its logarithm, and the
gradients of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Cost, Gradients, Op, Property
from warpsmith.softmax import softmax_cases as cases
from warpsmith.softmax import softmax_ladder as ladder
from warpsmith.spec.checks import check_dim

# --- checks ---------------------------------------------------------------------------------------


def _check(op: str) -> Callable[..., None]:
    def check(x: Tensor, dim: int) -> None:
        if not x.is_floating_point():
            raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
        check_dim(op, x, dim)

    return check


def _check_backward(op: str) -> Callable[..., None]:
    def check(grad: Tensor, y: Tensor, dim: int) -> None:
        if not y.is_floating_point():
            raise RuntimeError(f"{op}: expected y to be a floating-point tensor, got {y.dtype}")
        if grad.device != y.device:
            raise RuntimeError(f"{op}: expected grad to be on {y.device} like y, got {grad.device}")
        if grad.dtype != y.dtype:
            raise RuntimeError(
                f"{op}: expected grad to have dtype {y.dtype} like y, got {grad.dtype}"
            )
        if grad.shape != y.shape:
            raise RuntimeError(
                f"{op}: expected grad to have shape {tuple(y.shape)} like y, "
                f"got {tuple(grad.shape)}"
            )
        check_dim(op, y, dim)

    return check


# --- references -----------------------------------------------------------------------------------


def _reference(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def _reference_log(x: Tensor, dim: int) -> Tensor:
    return torch.log_softmax(x, dim)


def _reference_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.ops.aten._softmax_backward_data(grad, y, dim, y.dtype)


def _reference_log_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.ops.aten._log_softmax_backward_data(grad, y, dim, y.dtype)


def _fake(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(y: Tensor) -> Tensor:
    return y.new_empty(y.shape)


def _derivative(grad_y: Tensor, y: Tensor, dim: int) -> Gradients:
    return {"x": torch.ops.warpsmith.softmax_backward(grad_y, y, dim)}


def _derivative_log(grad_y: Tensor, y: Tensor, dim: int) -> Gradients:
    return {"x": torch.ops.warpsmith.log_softmax_backward(grad_y, y, dim)}


# --- peers ----------------------------------------------------------------------------------------


def _quack() -> Callable[..., Any]:
    from quack.softmax import softmax as theirs

    def run(x: Tensor, dim: int) -> Tensor:
        _last_only(x, dim)
        return theirs(x)

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.softmax import _softmax_forward

    def run(x: Tensor, dim: int) -> Tensor:
        _last_only(x, dim)
        return _softmax_forward(x)[0]

    return run


def _quack_backward() -> Callable[..., Any]:
    from quack.softmax import softmax_bwd

    def run(grad: Tensor, y: Tensor, dim: int) -> Tensor:
        _last_only(y, dim)
        return softmax_bwd(grad, y)

    return run


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    def run(grad: Tensor, y: Tensor, dim: int) -> Tensor:
        _last_only(y, dim)
        return _softmax_backward(grad, y, *calculate_settings(y.shape[-1]), False)

    return run


def _last_only(x: Tensor, dim: int) -> None:
    if dim % x.dim() != x.dim() - 1:
        raise ValueError("works along the last dimension only")


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor) -> int:
    return 2 * x.numel() * x.element_size()


def _bytes_backward(y: Tensor) -> int:
    return 3 * y.numel() * y.element_size()


softmax_op = catalogue.add(
    Op(
        "softmax(Tensor x, int dim=-1) -> Tensor y",
        family="softmax",
        reference=_reference,
        ladder=ladder.SOFTMAX,
        triton="softmax_triton:softmax",
        yields=True,
        torch_lacks=lambda: None,
        fake=_fake,
        check=_check("softmax"),
        backward=_derivative,
        accumulates=True,
        samples=cases.samples(past=True),
        errors=cases.errors("softmax"),
        properties=(
            Property("rows sum to one", cases.rows_sum_to_one),
            Property("shift invariant", cases.shift_invariant),
            Property("keeps the order", cases.keeps_the_order),
            Property("masked out", cases.masked_out),
            Property("one outlier", cases.one_outlier),
            Property("keeps small results", cases.keeps_small_results),
            Property("batch invariant", cases.batch_invariant),
            Property("the same bits wherever a row lies", cases.same_bits_anywhere),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: 5 * x.numel()),
        bench=cases.bench(),
        peers={"quack": _quack, "liger": _liger},
    )
)

log_softmax_op = catalogue.add(
    Op(
        "log_softmax(Tensor x, int dim=-1) -> Tensor y",
        family="softmax",
        source="softmax",
        reference=_reference_log,
        ladder=ladder.LOG_SOFTMAX,
        triton="softmax_triton:log_softmax",
        yields=True,
        torch_lacks=lambda: None,
        fake=_fake,
        check=_check("log_softmax"),
        backward=_derivative_log,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.errors("log_softmax"),
        properties=(
            Property("exponentials sum to one", cases.exponentials_sum_to_one),
            Property("shift invariant", cases.shift_invariant),
            Property("keeps the order", cases.keeps_the_order),
            Property("accurate far below", cases.accurate_far_below),
            Property("batch invariant", cases.batch_invariant),
            Property("the same bits wherever a row lies", cases.same_bits_anywhere),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: 4 * x.numel()),
        bench=cases.bench(),
    )
)

softmax_backward_op = catalogue.add(
    Op(
        "softmax_backward(Tensor grad, Tensor y, int dim=-1) -> Tensor",
        family="softmax",
        source="softmax/backward",
        reference=_reference_backward,
        ladder=ladder.BACKWARD,
        triton="softmax_triton:softmax_backward",
        fake=_fake_backward,
        check=_check_backward("softmax_backward"),
        samples=cases.backward_samples(_reference, past=True),
        errors=cases.backward_errors("softmax_backward"),
        properties=(
            Property("sums to zero", cases.gradient_sums_to_zero(_reference)),
            Property("batch invariant", cases.gradient_batch_invariant),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda y: 4 * y.numel()),
        bench=cases.bench_backward(_reference),
        peers={"quack": _quack_backward, "liger": _liger_backward},
    )
)

log_softmax_backward_op = catalogue.add(
    Op(
        "log_softmax_backward(Tensor grad, Tensor y, int dim=-1) -> Tensor",
        family="softmax",
        source="softmax/backward",
        reference=_reference_log_backward,
        ladder=ladder.BACKWARD,
        triton="softmax_triton:log_softmax_backward",
        fake=_fake_backward,
        check=_check_backward("log_softmax_backward"),
        samples=cases.backward_samples(_reference_log),
        errors=cases.backward_errors("log_softmax_backward"),
        properties=(
            Property("sums to zero", cases.gradient_sums_to_zero(_reference_log)),
            Property("batch invariant", cases.gradient_batch_invariant),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda y: 4 * y.numel()),
        bench=cases.bench_backward(_reference_log),
    )
)

for _op in (softmax_op, log_softmax_op, softmax_backward_op, log_softmax_backward_op):
    dispatch.register(_op)
_softmax = dispatch.public(softmax_op)
_softmax_into = into.register(softmax_op)
_log_softmax = dispatch.public(log_softmax_op)
_log_softmax_into = into.register(log_softmax_op)


def softmax(
    x: Tensor,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Turns values into probabilities: ``y = exp(x - max) / sum(exp(x - max))`` along `dim`.

    Computed in f32. Differentiable; the backward pass needs the result only, so x is not kept. As
    in PyTorch, slices that hold a NaN, a +inf or nothing but -inf become NaN.

    Args:
        x: any shape, f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        dim: the dimension along which the results sum to one; 0 or -1 for a 0-d x.
        dtype: what x is cast to first.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "f16x8_pack_online_f32". Those named
            unsafe and fence leave the maximum out: they overflow where a value passes 88, and
            divide 0 by 0 where all of a slice lie below -88. Those named fence add in an order that
            changes from run to run.

    Returns:
        A contiguous tensor of the shape of x, in its dtype or in `dtype`.

    Raises:
        RuntimeError: x is not floating-point; the variant cannot take the input.
        IndexError: x has no such dimension.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Milakov & Gimelshein 2018, Online normalizer calculation for softmax,
        https://arxiv.org/abs/1805.02867
    """
    x = x if dtype is None else x.to(dtype)
    if out is not None:
        return _softmax_into(out, variant, x, dim)  # type: ignore[no-any-return]
    return _softmax(variant, x, dim)


def log_softmax(
    x: Tensor,
    dim: int = -1,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """The logarithm of the softmax: ``y = x - max - log(sum(exp(x - max)))`` along `dim`.

    Computed in f32, and without cancellation: very negative results are as accurate as any.
    Differentiable; the backward pass needs the result only, so x is not kept. As in PyTorch, slices
    that hold a NaN, a +inf or nothing but -inf become NaN.

    Args:
        x: any shape, f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        dim: the dimension along which the exponentials of the results sum to one; 0 or -1 for a 0-d
            x.
        dtype: what x is cast to first.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "f16x8_pack_online_f32". Those named
            unsafe and fence leave the maximum out: a slice becomes -inf where a value of it passes
            88, and +inf where all of it lie below -88 (below -104 in f32); results near 0 are off
            by an f32 ulp of x. Those named fence add in an order that changes from run to run.

    Returns:
        A contiguous tensor of the shape of x, in its dtype or in `dtype`.

    Raises:
        RuntimeError: x is not floating-point; the variant cannot take the input.
        IndexError: x has no such dimension.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.nn.functional.log_softmax`.
    """
    x = x if dtype is None else x.to(dtype)
    if out is not None:
        return _log_softmax_into(out, variant, x, dim)  # type: ignore[no-any-return]
    return _log_softmax(variant, x, dim)
