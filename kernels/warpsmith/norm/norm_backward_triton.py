"""Gradients of RMS norm and layer norm, from their inputs and from their outputs, in Triton.

CENTRED: layer norm, otherwise RMS norm. FROM_OUTPUT: x is the norm's output, rstd is given, and
xhat = (x - bias) / weight.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.norm.launch_triton import (
    MOST_PERSISTENT,
    SHARED_TILE,
    SWEEP,
    multiprocessors,
    on,
    sum_partials_kernel,
    unit_stride,
    warps_for,
    workspace,
)
from warpsmith.norm.norms_triton import mean_and_rstd, reciprocal_rms, stats_of_rows


@triton.jit
def load_columns(ptr, col, in_row, HAS: tl.constexpr, ABSENT: tl.constexpr):
    """A weight or a bias, [1, BLOCK] or [BLOCK]."""
    if HAS:
        return tl.load(ptr + col, mask=in_row, other=ABSENT).to(tl.float32)
    else:
        return tl.zeros_like(col).to(tl.float32) + ABSENT


@triton.jit
def divisible(weight, least):
    """Magnitudes below `least` count as `least`; NaN passes."""
    negative = weight.to(tl.int32, bitcast=True) < 0
    return tl.where(tl.abs(weight) < least, tl.where(negative, -least, least), weight)


@triton.jit
def shift_of_row(x_ptr, cols, BLOCK: tl.constexpr):
    """The mean of the first BLOCK values of a long row."""
    x = tl.load(x_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < cols, other=0.0)
    return tl.sum(x.to(tl.float32) * (1.0 / tl.minimum(BLOCK, cols)), axis=0)


@triton.jit
def norm_backward_persistent_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    rstd_ptr,  # [rows] f32
    dx_ptr,  # [rows, cols]
    partial_dw_ptr,  # [programs, cols] f32
    partial_db_ptr,  # [programs, cols] f32
    rows,
    cols,
    grad_stride,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CENTRED: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program walks over rows, ROWS at a time, with its sums of dw and db in registers."""
    program, step = tl.program_id(0).to(tl.int64), tl.num_programs(0) * ROWS
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0)
    bias = load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, rows, step):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < rows) & in_row
        x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        scaled = grad * weight
        if FROM_OUTPUT:
            rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)  # [ROWS, 1]
            weighted = x - bias
            xhat = weighted / divisible(weight, eps)
            product = grad * weighted
        else:
            mean, rstd = stats_of_rows(x, valid, cols, eps, CENTRED)
            xhat = (x - mean) * rstd
            product = scaled * xhat
        inner = scaled
        if CENTRED:
            inner -= tl.sum(scaled, axis=1, keep_dims=True) / cols
        product = tl.where(valid, product, 0.0)
        inner -= xhat * (tl.sum(product, axis=1, keep_dims=True) / cols)
        dx = rstd * inner
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=valid)
        dw += tl.where(valid, grad * xhat, 0.0)
        db += grad
    if HAS_WEIGHT:
        sums = tl.sum(dw, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_dw_ptr + program * cols + col, sums, mask=in_row)
    if HAS_BIAS:
        sums = tl.sum(db, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_db_ptr + program * cols + col, sums, mask=in_row)


@triton.jit
def norm_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    rstd_ptr,  # [rows] f32: read from the output, written otherwise
    mean_ptr,  # [rows] f32, written unless from the output
    dx_ptr,  # [rows, cols]
    cols,
    grad_stride,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CENTRED: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx of a row per program, in two sweeps; leaves what the row's xhat takes for dw."""
    row = tl.program_id(0).to(tl.int64)
    shift = tl.zeros([], dtype=tl.float32)
    if CENTRED and not FROM_OUTPUT:
        shift = shift_of_row(x_ptr + row * x_stride, cols, BLOCK)
    deviations = tl.zeros([BLOCK], dtype=tl.float32)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    totals = tl.zeros([BLOCK], dtype=tl.float32)
    products = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        scaled = grad * load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0)
        totals += scaled
        if FROM_OUTPUT:
            products += grad * (x - load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0))
        else:
            d = tl.where(in_row, x - shift, 0.0)
            deviations += d
            squares += d * d
            products += scaled * d
    total = tl.sum(totals, axis=0)
    product = tl.sum(products, axis=0)
    if FROM_OUTPUT:
        rstd = tl.load(rstd_ptr + row)
        mean = shift
    else:
        square = tl.sum(squares, axis=0)
        if CENTRED:
            mean, rstd = mean_and_rstd(shift, tl.sum(deviations, axis=0), square, cols, eps)
        else:
            mean, rstd = shift, reciprocal_rms(square, cols, eps)
        product = rstd * (product - (mean - shift) * total)  # now of grad * weight * xhat
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0)
        if FROM_OUTPUT:
            bias = load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0)
            xhat = (x - bias) / divisible(weight, eps)
        else:
            xhat = (x - mean) * rstd
        inner = grad * weight
        if CENTRED:
            inner -= total / cols
        dx = rstd * (inner - xhat * (product / cols))
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def norm_backward_chunks_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    rstd_ptr,  # [rows] f32
    mean_ptr,  # [rows] f32
    partial_dw_ptr,  # [chunks, cols] f32
    partial_db_ptr,  # [chunks, cols] f32
    rows,
    cols,
    grad_stride,
    x_stride,
    eps,
    chunk,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums dw and db over a chunk of rows for BLOCK columns."""
    index = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    end = tl.minimum((index + 1) * chunk, rows)
    weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0)
    bias = load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(index * chunk, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < end) & in_row
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
            if FROM_OUTPUT:
                xhat = (x - bias) / divisible(weight, eps)
            else:
                mean = tl.load(mean_ptr + row, mask=row < end, other=0.0)  # [ROWS, 1]
                xhat = (x - mean) * tl.load(rstd_ptr + row, mask=row < end, other=0.0)
            dw += tl.where(valid, grad * xhat, 0.0)
        db += grad
    if HAS_WEIGHT:
        sums = tl.sum(dw, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_dw_ptr + index * cols + col, sums, mask=in_row)
    if HAS_BIAS:
        sums = tl.sum(db, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_db_ptr + index * cols + col, sums, mask=in_row)


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    return _backward(grad, x, weight, None, None, eps, centred=False)[:2]


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(grad, x, weight, bias, None, eps, centred=True)


def layer_norm_backward_from_output(
    grad: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(grad, y, weight, bias, rstd, eps, centred=True)


def rms_norm_backward_from_output(
    grad: Tensor, y: Tensor, weight: Tensor | None, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _backward(grad, y, weight, None, rstd, eps, centred=False)[:2]


def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fp8(x.dtype):
        w, b = (None if p is None else p.float() for p in (weight, bias))
        dx, *sums = _backward(grad.float(), x.float(), w, b, rstd, eps, centred)
        like = (x.dtype if p is None else p.dtype for p in (weight, bias))
        dw, db = (s.to(dtype) for s, dtype in zip(sums, like, strict=True))
        return dx.to(x.dtype), dw, db
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dw, db = (x.new_zeros(0) if p is None else p.new_zeros(p.shape) for p in (weight, bias))
    if x.numel() == 0:
        return dx, dw, db
    x, rows, cols, x_stride = unit_stride(x)
    grad, _, _, grad_stride = unit_stride(grad)
    scale = x if weight is None else weight.contiguous()
    offset = x if bias is None else bias.contiguous()
    has_weight, has_bias, from_output = weight is not None, bias is not None, rstd is not None
    block = triton.next_power_of_2(cols)
    workers = 4 * multiprocessors(x)
    # A product rounded in one place and fused with an addition in another would not cancel.
    exact = {"enable_fp_fusion": False}
    with on(x):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            partials = min(triton.cdiv(rows, shared), workers)
            partial_dw = workspace(x, partials, cols, has_weight)
            partial_db = workspace(x, partials, cols, has_bias)
            given = x if rstd is None else rstd.contiguous()
            norm_backward_persistent_kernel[(partials,)](
                grad, x, scale, offset, given, dx, partial_dw, partial_db,
                rows, cols, grad_stride, x_stride, eps,
                has_weight, has_bias, centred, from_output, shared, block,
                num_warps=warps_for(shared * block), **exact,
            )  # fmt: skip
        else:
            partials = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partial_dw = workspace(x, partials, cols, has_weight)
            partial_db = workspace(x, partials, cols, has_bias)
            mean = torch.empty(0 if from_output else rows, dtype=torch.float32, device=x.device)
            given = torch.empty_like(mean) if rstd is None else rstd.contiguous()
            norm_backward_sweeps_kernel[(rows,)](
                grad, x, scale, offset, given, mean, dx, cols, grad_stride, x_stride, eps,
                has_weight, has_bias, centred, from_output, SWEEP,
                num_warps=warps_for(SWEEP), **exact,
            )  # fmt: skip
            if has_weight or has_bias:
                norm_backward_chunks_kernel[(triton.cdiv(cols, 256), partials)](
                    grad, x, scale, offset, given, mean, partial_dw, partial_db,
                    rows, cols, grad_stride, x_stride, eps, triton.cdiv(rows, partials),
                    has_weight, has_bias, from_output, 8, 256, num_warps=4,
                )  # fmt: skip
        for out, partial in ((dw, partial_dw), (db, partial_db)):
            if out.numel():
                sum_partials_kernel[(triton.cdiv(cols, 64),)](
                    partial, out, partials, cols, 64, 64, num_warps=8
                )
    return dx, dw, db
