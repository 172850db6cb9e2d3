"""RMS norm in Triton, forward and backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.catalogue import is_fp8
from warpsmith.rows import as_rows

# Elements of a tile; longer rows are walked in two sweeps.
MOST_RESIDENT = 32768
# Rows of at most this many values let a program keep its columns' share of dw in registers.
MOST_PERSISTENT = 8192
# Tile of the two-sweep kernels: 16 bytes a thread and load at 8 warps, several loads in flight.
SWEEP = 8192
# Short rows share a program, so that it has some 4096 values to load at once.
SHARED_TILE = 4096


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
    rows,
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
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
    y = x * scale
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def rms_norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    weight_ptr,  # [cols]
    y_ptr,  # [rows, cols]
    cols,
    x_stride,
    eps,
    HAS_WEIGHT: tl.constexpr,
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


@triton.jit
def sum_partials_kernel(
    partial_ptr,  # [partials, cols] f32
    dw_ptr,  # [cols]
    partials,
    cols,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(0, partials, ROWS):
        row = (first + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        sums += tl.load(partial_ptr + row * cols + col, mask=(row < partials) & in_row, other=0.0)
    dw = tl.sum(sums, axis=0)[None, :]  # [1, BLOCK]
    tl.store(dw_ptr + col, dw.to(dw_ptr.dtype.element_ty), mask=in_row)


def _warps(values: int) -> int:
    """Warps for a tile: 16 values a thread, which is two 128-bit loads of 16-bit values."""
    return min(max(values // 512, 4), 16)


def _multiprocessors(x: Tensor) -> int:
    if x.device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def _unit_stride(x: Tensor) -> tuple[Tensor, int, int, int]:
    """`x` (or a copy), its rows, columns, and the stride between rows."""
    layout = as_rows(x)
    return x.contiguous() if layout.copied else x, layout.rows, layout.cols, layout.stride


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if is_fp8(x.dtype):
        wide = None if weight is None else weight.float()
        return rms_norm(x.float(), wide, eps).to(x.dtype)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    x, rows, cols, stride = _unit_stride(x)
    scale = x if weight is None else weight.contiguous()
    has_weight = weight is not None
    block = triton.next_power_of_2(cols)
    with _on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            rms_norm_resident_kernel[(triton.cdiv(rows, shared),)](
                x, scale, y, rows, cols, stride, eps, has_weight, shared, block,
                num_warps=_warps(shared * block),
            )  # fmt: skip
        else:
            rms_norm_sweeps_kernel[(rows,)](
                x, scale, y, cols, stride, eps, has_weight, SWEEP, num_warps=_warps(SWEEP)
            )
    return y


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
    x, rows, cols, x_stride = _unit_stride(x)
    grad, _, _, grad_stride = _unit_stride(grad)
    scale = x if weight is None else weight.contiguous()
    has_weight = weight is not None
    block = triton.next_power_of_2(cols)
    workers = 4 * _multiprocessors(x)
    with _on(x):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            programs = min(triton.cdiv(rows, shared), workers)
            partial = _workspace(x, programs, cols, has_weight)
            rms_norm_backward_persistent_kernel[(programs,)](
                grad, x, scale, dx, partial, rows, cols, grad_stride, x_stride, eps,
                has_weight, shared, block, num_warps=_warps(shared * block),
            )  # fmt: skip
        else:
            chunks = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partial = _workspace(x, chunks, cols, has_weight)
            rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
            rms_norm_backward_sweeps_kernel[(rows,)](
                grad, x, scale, dx, rstd, cols, grad_stride, x_stride, eps,
                has_weight, SWEEP, num_warps=_warps(SWEEP),
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


def _workspace(x: Tensor, partials: int, cols: int, has_weight: bool) -> Tensor:
    size = (partials, cols) if has_weight else (0, cols)
    return torch.empty(size, dtype=torch.float32, device=x.device)


def _on(x: Tensor) -> torch.cuda.device:
    """Launches go to the current device: make it that of the tensor."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)
