"""RMS norm in Triton, forward and backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.norm.launch_triton import (
    MOST_PERSISTENT,
    MOST_RESIDENT,
    SHARED_TILE,
    SWEEP,
    empty_rstd,
    multiprocessors,
    on,
    sum_partials_kernel,
    unit_stride,
    warps_for,
    workspace,
)


@triton.jit
def reciprocal_rms(sum_of_squares, cols, eps):
    """1 / sqrt(mean + eps) within an ulp, which the approximate instructions are not."""
    zero = tl.zeros_like(sum_of_squares)
    mean = tl.div_rn(sum_of_squares, zero + cols)
    return tl.div_rn(zero + 1.0, tl.sqrt_rn(mean + eps))


@triton.jit
def rms_norm_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    y_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    rows,
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
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
    scale = reciprocal_rms(tl.sum(x * x, axis=1, keep_dims=True), cols, eps)  # [ROWS, 1]
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, scale, mask=row < rows)
    y = x * scale
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def rms_norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    y_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    KEEP_RSTD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + col, mask=col < cols, other=0.0).to(tl.float32)
        squares += x * x
    scale = reciprocal_rms(tl.sum(squares, axis=0), cols, eps)
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, scale)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        y = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32) * scale
        if HAS_WEIGHT:
            y *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def rms_norm_backward_persistent_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    dx_ptr,  # [rows, cols]
    partial_ptr,  # [programs, cols] f32
    rows,
    cols,
    grad_stride,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program walks over rows, ROWS at a time, and keeps its sum of dw in registers."""
    program, step = tl.program_id(0).to(tl.int64), tl.num_programs(0) * ROWS
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, rows, step):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < rows) & in_row
        x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        scaled_grad = grad
        if HAS_WEIGHT:
            scaled_grad *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        scale = reciprocal_rms(tl.sum(x * x, axis=1, keep_dims=True), cols, eps)
        xhat = x * scale
        mean = tl.sum(scaled_grad * xhat, axis=1, keep_dims=True) / cols
        dx = scale * (scaled_grad - xhat * mean)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=valid)
        if HAS_WEIGHT:
            dw += tl.where(valid, grad * xhat, 0.0)
    if HAS_WEIGHT:
        sums = tl.sum(dw, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_ptr + program * cols + col, sums, mask=in_row)


@triton.jit
def rms_norm_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    dx_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    cols,
    grad_stride,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx of a row per program, in two sweeps; leaves the row's 1 / rms for dw."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    products = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            grad *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        squares += x * x
        products += grad * x
    scale = reciprocal_rms(tl.sum(squares, axis=0), cols, eps)
    mean = scale * tl.sum(products, axis=0) / cols
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            grad *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        dx = scale * (grad - x * scale * mean)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=in_row)
    tl.store(rstd_ptr + row, scale)


@triton.jit
def rms_norm_backward_chunks_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    x_ptr,  # [rows, cols], x_stride elements from row to row
    rstd_ptr,  # [rows] f32
    partial_ptr,  # [chunks, cols] f32
    rows,
    cols,
    grad_stride,
    x_stride,
    chunk,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums dw over a chunk of rows for BLOCK columns."""
    index = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    end = tl.minimum((index + 1) * chunk, rows)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(index * chunk, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < end) & in_row
        x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        scale = tl.load(rstd_ptr + row, mask=row < end, other=0.0)  # [ROWS, 1]
        dw += tl.where(valid, grad * (x * scale), 0.0)
    sums = tl.sum(dw, axis=0)[None, :]  # [1, BLOCK]
    tl.store(partial_ptr + index * cols + col, sums, mask=in_row)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return _forward(x, weight, eps, keep_rstd=False)[0]


def rms_norm_with_rstd(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return _forward(x, weight, eps, keep_rstd=True)


def _forward(
    x: Tensor, weight: Tensor | None, eps: float, keep_rstd: bool
) -> tuple[Tensor, Tensor]:
    if is_fp8(x.dtype):
        wide = None if weight is None else weight.float()
        y, rstd = _forward(x.float(), wide, eps, keep_rstd)
        return y.to(x.dtype), rstd
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = empty_rstd(x, keep_rstd)
    if x.numel() == 0:
        return y, rstd.zero_()
    x, rows, cols, stride = unit_stride(x)
    scale = x if weight is None else weight.contiguous()
    has_weight = weight is not None
    block = triton.next_power_of_2(cols)
    with on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            rms_norm_resident_kernel[(triton.cdiv(rows, shared),)](
                x, scale, y, rstd, rows, cols, stride, eps, has_weight, keep_rstd, shared, block,
                num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            rms_norm_sweeps_kernel[(rows,)](
                x, scale, y, rstd, cols, stride, eps, has_weight, keep_rstd, SWEEP,
                num_warps=warps_for(SWEEP),
            )  # fmt: skip
    return y, rstd


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if is_fp8(x.dtype):
        wide = None if weight is None else weight.float()
        dx, dw = rms_norm_backward(grad.float(), x.float(), wide, eps)
        return dx.to(x.dtype), dw.to(x.dtype if weight is None else weight.dtype)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    like = x if weight is None else weight
    dw = torch.zeros(0 if weight is None else x.shape[-1], dtype=like.dtype, device=x.device)
    if x.numel() == 0:
        return dx, dw
    x, rows, cols, x_stride = unit_stride(x)
    grad, _, _, grad_stride = unit_stride(grad)
    scale = x if weight is None else weight.contiguous()
    has_weight = weight is not None
    block = triton.next_power_of_2(cols)
    workers = 4 * multiprocessors(x)
    with on(x):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            programs = min(triton.cdiv(rows, shared), workers)
            partial = workspace(x, programs, cols, has_weight)
            rms_norm_backward_persistent_kernel[(programs,)](
                grad, x, scale, dx, partial, rows, cols, grad_stride, x_stride, eps,
                has_weight, shared, block, num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            chunks = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partial = workspace(x, chunks, cols, has_weight)
            rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
            rms_norm_backward_sweeps_kernel[(rows,)](
                grad, x, scale, dx, rstd, cols, grad_stride, x_stride, eps,
                has_weight, SWEEP, num_warps=warps_for(SWEEP),
            )  # fmt: skip
            if has_weight:
                rms_norm_backward_chunks_kernel[(triton.cdiv(cols, 256), chunks)](
                    grad, x, rstd, partial, rows, cols, grad_stride, x_stride,
                    triton.cdiv(rows, chunks), 8, 256, num_warps=4,
                )  # fmt: skip
        if has_weight:
            sum_partials_kernel[(triton.cdiv(cols, 64),)](
                partial, dw, partial.shape[0], cols, 64, 64, num_warps=8
            )
    return dx, dw
