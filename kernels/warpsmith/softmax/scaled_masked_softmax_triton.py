"""Softmax of attention scores in Triton, without and with dropout; its backward from the output."""

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
from warpsmith.spec.rows import as_rows
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.philox import NOT_SPECIALISED, keeps, keeps_groups


@triton.jit
def drop(
    y, row, start, cols, seed, offset, last_dropped, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """Zeroes the dropped elements of y [ROWS, BLOCK]. GROUPS: columns come in groups of four."""
    if GROUPS:
        group = (row * cols + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
        kept = keeps_groups(group, seed, offset, last_dropped)
    else:
        element = row * cols + start + tl.arange(0, BLOCK)[None, :]
        kept = keeps(element, seed, offset, last_dropped)
    return tl.where(kept, y, 0.0)


@triton.jit
def write_lse(lse_ptr, row, most, total, has_nan, valid):
    """log(sum of e^z) of each row: infinite where a logit is, unless one is NaN."""
    infinite = (most == float("inf")) & (has_nan == 0)
    lse = tl.where(infinite, most, most + tl.log(total))
    tl.store(lse_ptr + row, lse, mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def scaled_masked_softmax_resident_kernel(
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
    y_ptr,  # [rows, cols]
    lse_ptr,  # [rows] f32
    scale,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_LSE: tl.constexpr,
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
    most = tl.max(z, axis=1, keep_dims=True)  # [ROWS, 1]
    y = exp_below(z, most)
    total = tl.sum(y, axis=1, keep_dims=True)  # [ROWS, 1]
    if HAS_LSE:
        has_nan = tl.max((z != z).to(tl.int32), axis=1, keep_dims=True)
        write_lse(lse_ptr, row, most, total, has_nan, row < rows)
    y *= reciprocal(total) * keep_scale
    if CAUSAL:
        y = tl.where(live, y, 0.0)  # NaN stays on its side of the diagonal
    if DROPS:
        y = drop(y, row, 0, cols, seed, offset, last_dropped, ROWS, BLOCK, GROUPS)
    valid = (row < rows) & (col < cols)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def scaled_masked_softmax_sweeps_kernel(
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
    y_ptr,  # [rows, cols]
    lse_ptr,  # [rows] f32
    scale,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_LSE: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program: maximum and sum in one sweep, the write in another."""
    row = tl.program_id(0).to(tl.int64)
    live = live_columns(row, queries, cols, CAUSAL)
    most = tl.full([1, BLOCK], -float("inf"), dtype=tl.float32)
    total = tl.zeros([1, BLOCK], dtype=tl.float32)
    nans = tl.zeros([1, BLOCK], dtype=tl.int32)
    for start in range(0, live, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        z = read_logits(
            x_ptr, bias_ptr, mask_ptr, row * x_stride, row, col, col < live, scale,
            sizes, bias_strides, bias_col, mask_strides, mask_col, HAS_BIAS, HAS_MASK,
        )  # fmt: skip
        if HAS_LSE:
            nans = tl.maximum(nans, (z != z).to(tl.int32))
        larger = tl.maximum(most, z)
        total = total * exp_below(most, larger) + exp_below(z, larger)
        most = larger
    row_most = tl.max(most, axis=1, keep_dims=True)  # [1, 1]
    row_total = tl.sum(total * exp_below(most, row_most), axis=1, keep_dims=True)
    if HAS_LSE:
        has_nan = tl.max(nans, axis=1, keep_dims=True)
        rows_of = row + tl.zeros([1, 1], dtype=tl.int64)
        write_lse(lse_ptr, rows_of, row_most, row_total, has_nan, rows_of < rows)
    factor = reciprocal(row_total) * keep_scale
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        y = tl.zeros([1, BLOCK], dtype=tl.float32)
        if start < live:
            z = read_logits(
                x_ptr, bias_ptr, mask_ptr, row * x_stride, row, col, col < live, scale,
                sizes, bias_strides, bias_col, mask_strides, mask_col, HAS_BIAS, HAS_MASK,
            )  # fmt: skip
            y = exp_below(z, row_most) * factor
            if CAUSAL:
                y = tl.where(col < live, y, 0.0)
            if DROPS:
                y = drop(y, row, start, cols, seed, offset, last_dropped, 1, BLOCK, GROUPS)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def scaled_masked_softmax_backward_resident_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    y_ptr,  # [rows, cols], y_stride elements from row to row
    dx_ptr,  # [rows, cols]
    rows,
    cols,
    grad_stride,
    y_stride,
    queries,
    scale,
    CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    live = (row < rows) & (col < live_columns(row, queries, cols, CAUSAL))
    grad = tl.load(grad_ptr + row * grad_stride + col, mask=live, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * y_stride + col, mask=live, other=0.0).to(tl.float32)
    dx = y * (scale * (grad - tl.sum(grad * y, axis=1, keep_dims=True)))
    if CAUSAL:
        dx = tl.where(live, dx, 0.0)
    valid = (row < rows) & (col < cols)
    tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=valid)


@triton.jit
def scaled_masked_softmax_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    y_ptr,  # [rows, cols], y_stride elements from row to row
    dx_ptr,  # [rows, cols]
    cols,
    grad_stride,
    y_stride,
    queries,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps."""
    row = tl.program_id(0).to(tl.int64)
    live = live_columns(row, queries, cols, CAUSAL)
    products = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, live, BLOCK):
        col = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=col < live, other=0.0)
        y = tl.load(y_ptr + row * y_stride + col, mask=col < live, other=0.0)
        products += grad.to(tl.float32) * y.to(tl.float32)
    total = tl.sum(products, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=col < live, other=0.0)
        y = tl.load(y_ptr + row * y_stride + col, mask=col < live, other=0.0)
        dx = y.to(tl.float32) * (scale * (grad.to(tl.float32) - total))
        if CAUSAL:
            dx = tl.where(col < live, dx, 0.0)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=col < cols)


def forward(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    y: Tensor,
    lse: Tensor | None,
    dropout: tuple[float, int, int] = (0.0, 0, 0),
) -> None:
    """Fills y, and lse where there is one. dropout: p, seed, offset."""
    logits = prepare(x, bias, mask)
    drops, words = philox_triton.arguments(*dropout)
    given: tuple[Any, ...] = (*logits.arguments, y, y if lse is None else lse, scale, *words)
    flags = {
        "HAS_BIAS": bias is not None,
        "HAS_MASK": mask is not None,
        "HAS_LSE": lse is not None,
        "CAUSAL": causal,
        "DROPS": drops,
        "GROUPS": logits.cols % 4 == 0,
    }
    block = max(triton.next_power_of_2(logits.cols), 4)
    with on(x):
        if block <= MOST_RESIDENT:
            rows = shared_rows(logits.rows, block)
            scaled_masked_softmax_resident_kernel[(triton.cdiv(logits.rows, rows),)](
                *given, **flags, ROWS=rows, BLOCK=block, num_warps=warps_for(rows * block)
            )
        else:
            scaled_masked_softmax_sweeps_kernel[(logits.rows,)](
                *given, **flags, BLOCK=SWEEP, num_warps=warps_for(SWEEP)
            )


def scaled_masked_softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    if is_fp8(x.dtype):
        wide = mask.float() if mask is not None and is_fp8(mask.dtype) else mask
        return scaled_masked_softmax(x.float(), wide, scale, causal).to(x.dtype)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    excludes = mask is not None and mask.dtype == torch.bool
    forward(x, None if excludes else mask, mask if excludes else None, scale, causal, y, None)
    return y


def scaled_masked_softmax_backward(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    if is_fp8(y.dtype):
        return scaled_masked_softmax_backward(grad.float(), y.float(), scale, causal).to(y.dtype)
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if y.numel() == 0:
        return dx
    queries = y.shape[-2] if y.dim() > 1 else 1
    layout, grad_layout = as_rows(y), as_rows(grad)
    y = y.contiguous() if layout.copied else y
    grad = grad.contiguous() if grad_layout.copied else grad
    rows, cols = layout.rows, layout.cols
    block = triton.next_power_of_2(cols)
    with on(y):
        if block <= MOST_RESIDENT:
            shared = shared_rows(rows, block)
            scaled_masked_softmax_backward_resident_kernel[(triton.cdiv(rows, shared),)](
                grad, y, dx, rows, cols, grad_layout.stride, layout.stride, queries, scale,
                causal, shared, block, num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            scaled_masked_softmax_backward_sweeps_kernel[(rows,)](
                grad, y, dx, cols, grad_layout.stride, layout.stride, queries, scale,
                causal, SWEEP, num_warps=warps_for(SWEEP),
            )  # fmt: skip
    return dx
