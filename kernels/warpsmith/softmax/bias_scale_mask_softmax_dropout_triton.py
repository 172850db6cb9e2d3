"""Softmax of attention scores with bias, mask and dropout in Triton, and its backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.softmax.logits_triton import (
    MOST_RESIDENT,
    SWEEP,
    exp_below,
    live_columns,
    on,
    prepare,
    read_logits,
    reciprocal,
    shared_rows,
    warps_for,
)
from warpsmith.softmax.scaled_masked_softmax_triton import drop, forward
from warpsmith.spec.rows import as_rows
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.philox import NOT_SPECIALISED


@triton.jit
def peak_of(e, grad):
    """The gradient at the entry that holds nearly all of its row, else 0: taken off the others, it
    keeps what is left of their difference from cancelling.
    """
    peak = e > 0.75
    single = tl.sum(peak.to(tl.float32), axis=1, keep_dims=True) == 1.0
    return tl.where(single, tl.sum(tl.where(peak, grad, 0.0), axis=1, keep_dims=True), 0.0)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def dropout_backward_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    bias_ptr,
    mask_ptr,
    rows,
    cols,
    x_stride,
    queries,
    sizes,
    bias_strides,
    bias_col,
    mask_strides,
    mask_col,
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_stride,
    lse_ptr,  # [rows] f32
    grad_lse_ptr,  # [rows] f32
    dx_ptr,  # [rows, cols]
    scale,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    live = (row < rows) & (col < live_columns(row, queries, cols, CAUSAL))
    z = read_logits(
        x_ptr, bias_ptr, mask_ptr, row * x_stride, row, col, live, scale,
        sizes, bias_strides, bias_col, mask_strides, mask_col, HAS_BIAS, HAS_MASK,
    )  # fmt: skip
    grad = tl.load(grad_ptr + row * grad_stride + col, mask=live, other=0.0).to(tl.float32)
    grad *= keep_scale
    if DROPS:
        grad = drop(grad, row, 0, cols, seed, offset, last_dropped, ROWS, BLOCK, GROUPS)
    e = exp_below(z, tl.load(lse_ptr + row, mask=row < rows, other=0.0))
    reference = peak_of(e, grad)
    total = tl.sum(e, axis=1, keep_dims=True)  # [ROWS, 1]
    inverse = reciprocal(total)
    grad -= reference
    shift = -tl.sum(e * grad, axis=1, keep_dims=True) * inverse  # [ROWS, 1]
    if HAS_GRAD_LSE:
        shift += tl.load(grad_lse_ptr + row, mask=row < rows, other=0.0)
    dx = tl.where(total == 0.0, 0.0, scale * inverse * e * (grad + shift))
    if CAUSAL:
        dx = tl.where(live, dx, 0.0)
    valid = (row < rows) & (col < cols)
    tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def dropout_backward_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    bias_ptr,
    mask_ptr,
    rows,
    cols,
    x_stride,
    queries,
    sizes,
    bias_strides,
    bias_col,
    mask_strides,
    mask_col,
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_stride,
    lse_ptr,  # [rows] f32
    grad_lse_ptr,  # [rows] f32
    dx_ptr,  # [rows, cols]
    scale,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps."""
    row = tl.program_id(0).to(tl.int64)
    live = live_columns(row, queries, cols, CAUSAL)
    lse = tl.load(lse_ptr + row)
    exponentials = tl.zeros([1, BLOCK], dtype=tl.float32)
    products = tl.zeros([1, BLOCK], dtype=tl.float32)
    peaks = tl.zeros([1, BLOCK], dtype=tl.float32)
    peak_products = tl.zeros([1, BLOCK], dtype=tl.float32)
    peak_grads = tl.zeros([1, BLOCK], dtype=tl.float32)
    rest = tl.zeros([1, BLOCK], dtype=tl.float32)
    for start in range(0, live, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        z = read_logits(
            x_ptr, bias_ptr, mask_ptr, row * x_stride, row, col, col < live, scale,
            sizes, bias_strides, bias_col, mask_strides, mask_col, HAS_BIAS, HAS_MASK,
        )  # fmt: skip
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=col < live, other=0.0)
        grad = grad.to(tl.float32) * keep_scale
        if DROPS:
            grad = drop(grad, row, start, cols, seed, offset, last_dropped, 1, BLOCK, GROUPS)
        e = exp_below(z, lse)
        peak = e > 0.75
        exponentials += e
        rest += tl.where(peak, 0.0, e)
        products += tl.where(peak, 0.0, e * grad)
        peaks += tl.where(peak, 1.0, 0.0)
        peak_products += tl.where(peak, e * grad, 0.0)
        peak_grads += tl.where(peak, grad, 0.0)
    total = tl.sum(exponentials, axis=1, keep_dims=True)  # [1, 1]
    inverse = reciprocal(total)
    single = tl.sum(peaks, axis=1, keep_dims=True) == 1.0
    reference = tl.where(single, tl.sum(peak_grads, axis=1, keep_dims=True), 0.0)
    held = tl.sum(peak_products, axis=1, keep_dims=True)
    apart = reference * tl.sum(rest, axis=1, keep_dims=True)
    shift = (tl.where(single, apart, -held) - tl.sum(products, axis=1, keep_dims=True)) * inverse
    if HAS_GRAD_LSE:
        shift += tl.load(grad_lse_ptr + row)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        dx = tl.zeros([1, BLOCK], dtype=tl.float32)
        if start < live:
            z = read_logits(
                x_ptr, bias_ptr, mask_ptr, row * x_stride, row, col, col < live, scale,
                sizes, bias_strides, bias_col, mask_strides, mask_col, HAS_BIAS, HAS_MASK,
            )  # fmt: skip
            grad = tl.load(grad_ptr + row * grad_stride + col, mask=col < live, other=0.0)
            grad = grad.to(tl.float32) * keep_scale
            if DROPS:
                grad = drop(grad, row, start, cols, seed, offset, last_dropped, 1, BLOCK, GROUPS)
            dx = scale * inverse * exp_below(z, lse) * ((grad - reference) + shift)
            dx = tl.where(total == 0.0, 0.0, dx)
            if CAUSAL:
                dx = tl.where(col < live, dx, 0.0)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=col < cols)


def _widen(tensor: Tensor | None) -> Tensor | None:
    return tensor.float() if tensor is not None and is_fp8(tensor.dtype) else tensor


def bias_scale_mask_softmax_dropout(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor]:
    if is_fp8(x.dtype):
        y, lse = bias_scale_mask_softmax_dropout(
            x.float(), _widen(bias), mask, scale, causal, p, seed, offset
        )
        return y.to(x.dtype), lse
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    lse = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return y, lse.fill_(-float("inf"))
    forward(x, bias, mask, scale, causal, y, lse, (p, seed, offset))
    return y, lse


def bias_scale_mask_softmax_dropout_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    lse: Tensor,
    grad_lse: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    seed: int,
    offset: int,
) -> Tensor:
    if is_fp8(x.dtype):
        dx = bias_scale_mask_softmax_dropout_backward(
            grad.float(), x.float(), _widen(bias), mask, lse, grad_lse,
            scale, causal, p, seed, offset,
        )  # fmt: skip
        return dx.to(x.dtype)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return dx
    logits = prepare(x, bias, mask)
    layout = as_rows(grad)
    grad = grad.contiguous() if layout.copied else grad
    lse = lse.contiguous()
    outer = lse if grad_lse is None else grad_lse.contiguous()
    drops, words = philox_triton.arguments(p, seed, offset)
    given: tuple[Any, ...] = (
        *logits.arguments, grad, layout.stride, lse, outer, dx, scale, *words,
    )  # fmt: skip
    flags = {
        "HAS_BIAS": bias is not None,
        "HAS_MASK": mask is not None,
        "HAS_GRAD_LSE": grad_lse is not None,
        "CAUSAL": causal,
        "DROPS": drops,
        "GROUPS": logits.cols % 4 == 0,
    }
    block = max(triton.next_power_of_2(logits.cols), 4)
    with on(x):
        if block <= MOST_RESIDENT // 2:
            rows = shared_rows(logits.rows, block)
            dropout_backward_resident_kernel[(triton.cdiv(logits.rows, rows),)](
                *given, **flags, ROWS=rows, BLOCK=block, num_warps=warps_for(rows * block)
            )
        else:
            dropout_backward_sweeps_kernel[(logits.rows,)](
                *given, **flags, BLOCK=SWEEP, num_warps=warps_for(SWEEP)
            )
    return dx
