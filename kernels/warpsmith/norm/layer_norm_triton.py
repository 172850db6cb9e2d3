"""Layer norm in Triton, alone and with the rstd of its rows."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.norm.launch_triton import (
    MOST_RESIDENT,
    SHARED_TILE,
    SWEEP,
    empty_rstd,
    on,
    unit_stride,
    warps_for,
)


@triton.jit
def mean_and_rstd(shift, deviations, squares, cols, eps):
    """From the sums of x - shift and (x - shift)^2, for a shift near the mean."""
    count = tl.zeros_like(shift) + cols
    distance = tl.div_rn(deviations, count)
    variance = tl.div_rn(squares, count) - distance * distance
    variance = tl.where(variance < 0.0, 0.0, variance)  # NaN passes
    return shift + distance, tl.div_rn(tl.zeros_like(shift) + 1.0, tl.sqrt_rn(variance + eps))


@triton.jit
def stats_of_rows(x, valid, cols, eps):
    """Mean and rstd of whole rows, [ROWS, 1]; each pass corrects what the one before was off by."""
    # shares of the mean, as the sum of x leaves the range where the mean does not
    share = 1.0 / cols
    shift = tl.sum(x * share, axis=1, keep_dims=True)
    shift += tl.sum(tl.where(valid, x - shift, 0.0) * share, axis=1, keep_dims=True)
    d = tl.where(valid, x - shift, 0.0)
    deviations = tl.sum(d, axis=1, keep_dims=True)
    return mean_and_rstd(shift, deviations, tl.sum(d * d, axis=1, keep_dims=True), cols, eps)


@triton.jit
def shift_of_row(x_ptr, cols, BLOCK: tl.constexpr):
    """The mean of the first BLOCK values of a long row."""
    x = tl.load(x_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < cols, other=0.0)
    return tl.sum(x.to(tl.float32) * (1.0 / tl.minimum(BLOCK, cols)), axis=0)


@triton.jit
def layer_norm_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    y_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    rows,
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP_RSTD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    valid = (row < rows) & in_row
    x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
    mean, rstd = stats_of_rows(x, valid, cols, eps)
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)
    y = (x - mean) * rstd
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + col, mask=in_row, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def layer_norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    y_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP_RSTD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps: one for both sums around a shift, one to normalise."""
    row = tl.program_id(0).to(tl.int64)
    shift = shift_of_row(x_ptr + row * x_stride, cols, BLOCK)
    deviations = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        d = tl.where(in_row, x - shift, 0.0)
        deviations += d
        squares += d * d
    mean, rstd = mean_and_rstd(
        shift, tl.sum(deviations, axis=0), tl.sum(squares, axis=0), cols, eps
    )
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        y = (x - mean) * rstd
        if HAS_WEIGHT:
            y *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        if HAS_BIAS:
            y += tl.load(bias_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=in_row)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return _forward(x, weight, bias, eps, keep_rstd=False)[0]


def layer_norm_with_rstd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return _forward(x, weight, bias, eps, keep_rstd=True)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, keep_rstd: bool
) -> tuple[Tensor, Tensor]:
    if is_fp8(x.dtype):
        w, b = (None if p is None else p.float() for p in (weight, bias))
        y, rstd = _forward(x.float(), w, b, eps, keep_rstd)
        return y.to(x.dtype), rstd
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = empty_rstd(x, keep_rstd)
    if x.numel() == 0:
        return y, rstd.zero_()
    x, rows, cols, stride = unit_stride(x)
    scale = x if weight is None else weight.contiguous()
    offset = x if bias is None else bias.contiguous()
    has_weight, has_bias = weight is not None, bias is not None
    block = triton.next_power_of_2(cols)
    with on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            layer_norm_resident_kernel[(triton.cdiv(rows, shared),)](
                x, scale, offset, y, rstd, rows, cols, stride, eps,
                has_weight, has_bias, keep_rstd, shared, block,
                num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            layer_norm_sweeps_kernel[(rows,)](
                x, scale, offset, y, rstd, cols, stride, eps,
                has_weight, has_bias, keep_rstd, SWEEP, num_warps=warps_for(SWEEP),
            )  # fmt: skip
    return y, rstd
