"""The public reductions: sum, mean, amax, amin, argmax, argmin, var.

The operators of reduce_dim reduce one dimension; several, or all, are reduced as the one that they
are flattened to. Without `dim` these functions reduce all values, as PyTorch's do;
`torch.ops.warpsmith.sum` and its kin, which `which` speaks of, the last dimension.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.reduce.reduce_dim import (
    check_dtype,
    check_size,
    run_amax,
    run_amin,
    run_argmax,
    run_argmin,
    run_mean,
    run_sum,
    run_var,
)
from warpsmith.spec.checks import check_dim

#: One dimension, several, or all: None, and no dimension at all, as in PyTorch.
Dims = int | Sequence[int] | None


def _by_stride(x: Tensor, dims: Sequence[int]) -> list[int]:
    """Those of the longest stride first. Written out, as torch.compile cannot sort by sizes that
    are symbols.
    """
    order: list[int] = []
    for d in dims:
        at = 0
        while at < len(order) and x.stride(order[at]) >= x.stride(d):
            at += 1
        order.insert(at, d)
    return order


def _over(
    op: str,
    call: Callable[[Tensor, int, bool], Tensor],
    x: Tensor,
    dims: Sequence[int] | None,
    keepdim: bool,
    by_shape: bool = False,
) -> Tensor:
    """A reduction over several dimensions, as one over the dimension that they are flattened to.

    Args:
        op: names the operator in messages.
        call: the reduction along one dimension: `call(x, dim, keepdim)`.
        x: the tensor, copied where no single stride walks the dimensions together.
        dims: the dimensions, in any order; None or empty is all of them.
        keepdim: whether they stay, with size 1.
        by_shape: whether values shall meet in the order of the shape, whatever the strides.
    """
    check_dtype(op, x)
    reduced = sorted(check_dim(op, x, d) for d in dims or range(x.dim()))
    if len(set(reduced)) < len(reduced):
        raise RuntimeError(f"{op}: expected every dimension at most once in dim, got {dims}")
    if len(reduced) < 2:
        return call(x, reduced[0] if reduced else 0, keepdim)
    for d in reduced:
        check_size(op, x, d)
    kept = [d for d in range(x.dim()) if d not in reduced]
    adjacent = reduced[-1] - reduced[0] + 1 == len(reduced)
    at = reduced[0] if adjacent else len(kept)
    walked = reduced if by_shape else _by_stride(x, reduced)
    together = x.permute(*kept[:at], *walked, *kept[at:]).flatten(at, at + len(reduced) - 1)
    y = call(together, at, False)
    return y.view([1 if d in reduced else n for d, n in enumerate(x.shape)]) if keepdim else y


def _position(
    op: str, call: Callable[..., Any], variant: str | None, x: Tensor, keepdim: bool
) -> Tensor:
    """The place of an extreme of all values, counted in the order of the shape."""
    check_dtype(op, x)
    for d in range(x.dim()):
        check_size(op, x, d)
    y: Tensor = call(variant, x.flatten(), 0, False)
    return y.view([1] * x.dim()) if keepdim else y


def sum(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    batch_invariant: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: str | None = None,
) -> Tensor:
    """Sum of all values, or along dimensions, added in float32 and rounded once.

    The result is bitwise the same from run to run. Differentiable.

    Args:
        x: any shape and strides, float32, float16 or bfloat16 (float64, fp8 and integers without a
            kernel of their own).
        dim: the dimension that is summed, negative counts from the back; or several, of which each
            row is summed as one; None, or an empty sequence, is all. What lies apart in memory is
            copied first.
        keepdim: whether they stay, with size 1.
        batch_invariant: whether the sum of a row shall have the same bits whatever other rows the
            tensor holds. The order of additions then depends on the size of the dimension alone,
            and on whether it is the last one: a tensor whose strides say otherwise is copied.
        dtype: to which `x` is converted first, in a pass of its own; None leaves it as it is.
        variant: one rung by name instead of the best one, "f16x8_pack_f32".

    Returns:
        A contiguous tensor of `dtype`, else that of `x`, int64 for integers, without the
        dimensions; 0 where there is nothing to sum.

    Raises:
        RuntimeError: `x` is complex; `dim` names a dimension twice; the variant cannot take the
            call.
        IndexError: `x` has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        `torch.sum`.
    """
    x = x if dtype is None else x.to(dtype)
    if dim is None or isinstance(dim, Sequence):
        call = lambda x, d, kept: run_sum(variant, x, d, kept, batch_invariant)  # noqa: E731
        y = _over("sum", call, x, dim, keepdim, batch_invariant)
    else:
        y = run_sum(variant, x, dim, keepdim, batch_invariant)
    return y if dtype is None else y.to(dtype)  # of integers it is int64


def mean(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    batch_invariant: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: str | None = None,
) -> Tensor:
    """Mean of all values, or along dimensions, summed in float32 and rounded once.

    The result is bitwise the same from run to run. Differentiable.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`, but integers only
            with a floating `dtype`.
        dim: the dimension that is averaged, or several; None is all, as in `sum`.
        keepdim: whether they stay, with size 1.
        batch_invariant: whether the mean of a row shall have the same bits whatever other rows the
            tensor holds, as in `sum`.
        dtype: to which `x` is converted first, in a pass of its own; None leaves it as it is.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor of `dtype`, else that of `x`, without the dimensions; NaN where there is
        nothing to average.

    Raises:
        RuntimeError: neither `dtype` nor `x` is floating-point; `dim` names a dimension twice; the
            variant cannot take the call.
        IndexError: `x` has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        `torch.mean`.
    """
    x = x if dtype is None else x.to(dtype)
    if dim is None or isinstance(dim, Sequence):
        call = lambda x, d, kept: run_mean(variant, x, d, kept, batch_invariant)  # noqa: E731
        return _over("mean", call, x, dim, keepdim, batch_invariant)
    return run_mean(variant, x, dim, keepdim, batch_invariant)


def amax(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, variant: str | None = None
) -> Tensor:
    """Largest of all values, or along dimensions; NaN where there is one.

    Order does not matter to it, so the result never depends on other rows. Differentiable: values
    that share the maximum share its gradient.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`.
        dim: the dimension that is reduced, or several; None is all, as in `sum`.
        keepdim: whether they stay, with size 1.
        variant: one rung by name instead of the best one, "f16x8_pack".

    Returns:
        A contiguous tensor of the dtype of `x`, without the dimensions.

    Raises:
        RuntimeError: `x` is complex; `dim` names a dimension twice; the variant cannot take the
            call.
        IndexError: `x` has no such dimension, or it has size 0.
        ValueError: the variant does not exist.

    Reference:
        `torch.amax`.
    """
    if dim is None or isinstance(dim, Sequence):
        return _over("amax", lambda *args: run_amax(variant, *args), x, dim, keepdim)
    return run_amax(variant, x, dim, keepdim)


def amin(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, variant: str | None = None
) -> Tensor:
    """Smallest of all values, or along dimensions; NaN where there is one.

    Order does not matter to it, so the result never depends on other rows. Differentiable: values
    that share the minimum share its gradient.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`.
        dim: the dimension that is reduced, or several; None is all, as in `sum`.
        keepdim: whether they stay, with size 1.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor of the dtype of `x`, without the dimensions.

    Raises:
        RuntimeError: `x` is complex; `dim` names a dimension twice; the variant cannot take the
            call.
        IndexError: `x` has no such dimension, or it has size 0.
        ValueError: the variant does not exist.

    Reference:
        `torch.amin`.
    """
    if dim is None or isinstance(dim, Sequence):
        return _over("amin", lambda *args: run_amin(variant, *args), x, dim, keepdim)
    return run_amin(variant, x, dim, keepdim)


def argmax(
    x: Tensor, dim: int | None = None, keepdim: bool = False, *, variant: str | None = None
) -> Tensor:
    """Where the largest of all values, or along a dimension, stands: the first of equal ones, the
    first NaN.

    Order does not matter to it, so the result never depends on other rows.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`.
        dim: the dimension that is reduced; negative counts from the back. None is all values, whose
            places count as in `x.flatten()`.
        keepdim: whether it stays, with size 1.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous int64 tensor without the dimension; without any where all are reduced.

    Raises:
        RuntimeError: `x` is complex or boolean; the variant cannot take the call.
        IndexError: `x` has no such dimension, or it has size 0.
        ValueError: the variant does not exist.

    Reference:
        `torch.argmax`.
    """
    if dim is None:
        return _position("argmax", run_argmax, variant, x, keepdim)
    return run_argmax(variant, x, dim, keepdim)


def argmin(
    x: Tensor, dim: int | None = None, keepdim: bool = False, *, variant: str | None = None
) -> Tensor:
    """Where the smallest of all values, or along a dimension, stands: the first of equal ones, the
    first NaN.

    Order does not matter to it, so the result never depends on other rows.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`.
        dim: the dimension that is reduced; negative counts from the back. None is all values, whose
            places count as in `x.flatten()`.
        keepdim: whether it stays, with size 1.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous int64 tensor without the dimension; without any where all are reduced.

    Raises:
        RuntimeError: `x` is complex or boolean; the variant cannot take the call.
        IndexError: `x` has no such dimension, or it has size 0.
        ValueError: the variant does not exist.

    Reference:
        `torch.argmin`.
    """
    if dim is None:
        return _position("argmin", run_argmin, variant, x, keepdim)
    return run_argmin(variant, x, dim, keepdim)


def _scaled_var(
    x: Tensor,
    dim: Dims,
    correction: float,
    keepdim: bool,
    batch_invariant: bool,
    variant: str | None,
) -> Tensor:
    """With a correction that is no whole number: that of the values, times n / (n - correction)."""
    wide = x.float() if x.is_floating_point() and x.element_size() < 4 else x
    y = var(wide, dim, 0, keepdim, batch_invariant, variant=variant)
    count = x.numel() // builtins.max(y.numel(), 1)
    left = count - correction
    return (y * (count / left if left > 0 else math.inf)).to(x.dtype)


def var(
    x: Tensor,
    dim: Dims = None,
    correction: float = 1,
    keepdim: bool = False,
    batch_invariant: bool = False,
    *,
    variant: str | None = None,
) -> Tensor:
    """Variance of all values, or along dimensions, in one pass:
    ``sum((x - mean)^2) / max(n - correction, 0)``.

    Means and squared deviations of groups of values are joined in float32, counted from the first
    value of each row, so that a mean far from zero costs no digits. The result is bitwise the same
    from run to run. Differentiable.

    Args:
        x: any shape and strides, float32, float16 or bfloat16, as in `sum`, but no integers.
        dim: the dimension that is reduced, or several; None is all, as in `sum`.
        correction: 1 for the estimate from a sample, 0 for the variance of the values themselves;
            a fraction scales the latter, in f32.
        keepdim: whether they stay, with size 1.
        batch_invariant: whether the variance of a row shall have the same bits whatever other rows
            the tensor holds, as in `sum`.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor of the dtype of `x`, without the dimensions; NaN or infinite where
        `correction` leaves nothing to divide by.

    Raises:
        RuntimeError: `x` is not floating-point; `dim` names a dimension twice; the variant
            cannot take the call.
        IndexError: `x` has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        `torch.var`, which takes `correction` and `keepdim` by keyword only; Chan, Golub and LeVeque
        1983, "Algorithms for Computing the Sample Variance".
    """
    if isinstance(correction, float):
        if not correction.is_integer():
            return _scaled_var(x, dim, correction, keepdim, batch_invariant, variant)
        correction = int(correction)
    if dim is None or isinstance(dim, Sequence):
        call = lambda x, d, kept: run_var(variant, x, d, correction, kept, batch_invariant)  # noqa: E731
        return _over("var", call, x, dim, keepdim, batch_invariant)
    return run_var(variant, x, dim, correction, keepdim, batch_invariant)
