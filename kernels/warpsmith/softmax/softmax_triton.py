"""Softmax, log_softmax and their gradients in Triton.

A maximum starts at the lowest finite number instead of -inf, so that subtracting it from -inf gives
-inf and never NaN; a row of nothing but -inf then ends in 0 / 0, which is what PyTorch answers.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.softmax.slices import Slices, as_slices

# Elements of a tile; longer rows are walked in two sweeps. A gradient holds two tiles.
MOST_RESIDENT = 32768
MOST_RESIDENT_BACKWARD = 16384
# Tile of the two-sweep kernels: 16 bytes a thread and load at 8 warps, several loads in flight.
SWEEP = 8192
# Short rows share a program, so that it has some 4096 values to load at once.
SHARED_TILE = 4096
# Along other dimensions: columns of a tile (128 bytes of 16-bit data at least), and its elements.
MOST_COLUMNS = 64
COLUMN_TILE = 4096

LOWEST = tl.constexpr(-3.4028234663852886e38)


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def answer(x, maximum, total, LOG: tl.constexpr):
    if LOG:
        return (x - maximum) - tl.log(total)
    else:
        return tl.exp(x - maximum) * tl.div_rn(tl.zeros_like(total) + 1.0, total)


@triton.jit
def softmax_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    y_ptr,  # [rows, cols]
    rows,
    cols,
    x_stride,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    valid = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=valid, other=float("-inf")).to(tl.float32)
    maximum = tl.maximum(tl.max(x, axis=1, keep_dims=True), LOWEST)  # [ROWS, 1]
    total = tl.sum(tl.exp(x - maximum), axis=1, keep_dims=True)  # [ROWS, 1]
    y = answer(x, maximum, total, LOG)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def softmax_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    y_ptr,  # [rows, cols]
    cols,
    x_stride,
    LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps; every lane keeps a maximum and a sum of its own."""
    row = tl.program_id(0).to(tl.int64)
    most = tl.zeros([BLOCK], dtype=tl.float32) + LOWEST
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(most, x)
        sums = sums * tl.exp(most - larger) + tl.exp(x - larger)
        most = larger
    maximum = tl.max(most, axis=0)
    total = tl.sum(sums * tl.exp(most - maximum), axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        x = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        y = answer(x, maximum, total, LOG)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def softmax_columns_kernel(
    x_ptr,  # [outer, cols, inner], strides x_stride, col_stride, 1
    y_ptr,  # [outer, cols, inner]
    cols,
    inner,
    x_stride,
    col_stride,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK neighbours of inner per program, ROWS of their values at a time, in two sweeps."""
    blocks = tl.cdiv(inner, BLOCK)
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    # [1, BLOCK]
    at = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    x_ptr += outer * x_stride + at
    y_ptr += outer * cols * inner + at
    most = tl.zeros([ROWS, BLOCK], dtype=tl.float32) + LOWEST
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, cols, ROWS):
        col = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        valid = (col < cols) & (at < inner)
        x = tl.load(x_ptr + col * col_stride, mask=valid, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(most, x)
        sums = sums * tl.exp(most - larger) + tl.exp(x - larger)
        most = larger
    maximum = tl.max(most, axis=0, keep_dims=True)  # [1, BLOCK]
    total = tl.sum(sums * tl.exp(most - maximum), axis=0, keep_dims=True)  # [1, BLOCK]
    for start in range(0, cols, ROWS):
        col = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        valid = (col < cols) & (at < inner)
        x = tl.load(x_ptr + col * col_stride, mask=valid, other=0.0).to(tl.float32)
        y = answer(x, maximum, total, LOG)
        tl.store(y_ptr + col * inner, y.to(y_ptr.dtype.element_ty), mask=valid)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def term(grad, y, LOG: tl.constexpr):
    """What a value contributes to the sum of its row."""
    if LOG:
        return grad
    else:
        return grad * y


@triton.jit
def gradient(grad, y, total, LOG: tl.constexpr):
    if LOG:
        return grad - tl.exp(y) * total
    else:
        return y * (grad - total)


@triton.jit
def softmax_backward_resident_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    y_ptr,  # [rows, cols], y_stride elements from row to row
    dx_ptr,  # [rows, cols]
    rows,
    cols,
    grad_stride,
    y_stride,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    valid = (row < rows) & (col < cols)
    grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * y_stride + col, mask=valid, other=0.0).to(tl.float32)
    total = tl.sum(term(grad, y, LOG), axis=1, keep_dims=True)  # [ROWS, 1]
    dx = gradient(grad, y, total, LOG)
    tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=valid)


@triton.jit
def softmax_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    y_ptr,  # [rows, cols], y_stride elements from row to row
    dx_ptr,  # [rows, cols]
    cols,
    grad_stride,
    y_stride,
    LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * y_stride + col, mask=in_row, other=0.0).to(tl.float32)
        sums += term(grad, y, LOG)
    total = tl.sum(sums, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * y_stride + col, mask=in_row, other=0.0).to(tl.float32)
        dx = gradient(grad, y, total, LOG)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def softmax_backward_columns_kernel(
    grad_ptr,  # [outer, cols, inner], strides grad_stride, grad_columns, 1
    y_ptr,  # [outer, cols, inner], strides y_stride, y_columns, 1
    dx_ptr,  # [outer, cols, inner]
    cols,
    inner,
    grad_stride,
    y_stride,
    grad_columns,
    y_columns,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK neighbours of inner per program, ROWS of their values at a time, in two sweeps."""
    blocks = tl.cdiv(inner, BLOCK)
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    # [1, BLOCK]
    at = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    grad_ptr += outer * grad_stride + at
    y_ptr += outer * y_stride + at
    dx_ptr += outer * cols * inner + at
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, cols, ROWS):
        col = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        valid = (col < cols) & (at < inner)
        grad = tl.load(grad_ptr + col * grad_columns, mask=valid, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + col * y_columns, mask=valid, other=0.0).to(tl.float32)
        sums += term(grad, y, LOG)
    total = tl.sum(sums, axis=0, keep_dims=True)  # [1, BLOCK]
    for start in range(0, cols, ROWS):
        col = (start + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        valid = (col < cols) & (at < inner)
        grad = tl.load(grad_ptr + col * grad_columns, mask=valid, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + col * y_columns, mask=valid, other=0.0).to(tl.float32)
        dx = gradient(grad, y, total, LOG)
        tl.store(dx_ptr + col * inner, dx.to(dx_ptr.dtype.element_ty), mask=valid)


# --- launches -------------------------------------------------------------------------------------


def _warps(values: int) -> int:
    """Warps for a tile: 16 values a thread, which is two 128-bit loads of 16-bit values."""
    return min(max(values // 512, 4), 16)


def _on(x: Tensor) -> torch.cuda.device:
    """Launches go to the current device: make it that of the tensor."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)


def _unit_stride(x: Tensor, dim: int) -> tuple[Tensor, Slices]:
    """`x` (or a copy) and how it lies."""
    layout = as_slices(x, dim)
    return x.contiguous() if layout.copied else x, layout


def _column_tile(layout: Slices) -> tuple[int, int, int]:
    """Programs, rows and columns of a tile along a dimension that is not the last."""
    block = min(triton.next_power_of_2(layout.inner), MOST_COLUMNS)
    rows = min(triton.next_power_of_2(layout.cols), COLUMN_TILE // block)
    return layout.outer * triton.cdiv(layout.inner, block), rows, block


def _forward(x: Tensor, dim: int, log: bool) -> Tensor:
    if is_fp8(x.dtype):
        return _forward(x.float(), dim, log).to(x.dtype)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    x, layout = _unit_stride(x, dim)
    rows, cols, stride = layout.outer, layout.cols, layout.stride
    block = triton.next_power_of_2(cols)
    with _on(x):
        if layout.inner > 1:
            programs, tile, columns = _column_tile(layout)
            softmax_columns_kernel[(programs,)](
                x, y, cols, layout.inner, stride, layout.col_stride, log, tile, columns,
                num_warps=_warps(tile * columns),
            )  # fmt: skip
        elif block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            softmax_resident_kernel[(triton.cdiv(rows, shared),)](
                x, y, rows, cols, stride, log, shared, block, num_warps=_warps(shared * block)
            )
        else:
            softmax_sweeps_kernel[(rows,)](x, y, cols, stride, log, SWEEP, num_warps=_warps(SWEEP))
    return y


def _backward(grad: Tensor, y: Tensor, dim: int, log: bool) -> Tensor:
    if is_fp8(y.dtype):
        return _backward(grad.float(), y.float(), dim, log).to(y.dtype)
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if y.numel() == 0:
        return dx
    y, layout = _unit_stride(y, dim)
    grad, given = _unit_stride(grad, dim)
    rows, cols = layout.outer, layout.cols
    block = triton.next_power_of_2(cols)
    with _on(y):
        if layout.inner > 1:
            programs, tile, columns = _column_tile(layout)
            softmax_backward_columns_kernel[(programs,)](
                grad, y, dx, cols, layout.inner, given.stride, layout.stride, given.col_stride,
                layout.col_stride, log, tile, columns, num_warps=_warps(tile * columns),
            )  # fmt: skip
        elif block <= MOST_RESIDENT_BACKWARD:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            softmax_backward_resident_kernel[(triton.cdiv(rows, shared),)](
                grad, y, dx, rows, cols, given.stride, layout.stride, log, shared, block,
                num_warps=_warps(shared * block),
            )  # fmt: skip
        else:
            softmax_backward_sweeps_kernel[(rows,)](
                grad, y, dx, cols, given.stride, layout.stride, log, SWEEP, num_warps=_warps(SWEEP)
            )
    return dx


def softmax(x: Tensor, dim: int) -> Tensor:
    return _forward(x, dim, False)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    return _forward(x, dim, True)


def softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return _backward(grad, y, dim, False)


def log_softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return _backward(grad, y, dim, True)
