"""Cross-entropy in Triton: the loss, its gradient, and both at once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.loss.checks import wide_dtype
from warpsmith.spec.rows import as_rows

# Elements of a tile: short rows share one, long rows are walked over.
TILE = 4096
# Of a long row at a time: 16 bytes a thread and load at 16 warps, two loads of bf16 in flight.
SWEEP = 8192


@triton.jit
def row_sums(
    logits_ptr, row, valid, cols, logits_stride, SMOOTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Maximum, sum of exponentials relative to it, and plain sum of ROWS rows, each [ROWS, 1]."""
    most = tl.full([ROWS, 1], float("-inf"), dtype=tl.float32)
    exps = tl.zeros([ROWS, 1], dtype=tl.float32)
    total = tl.zeros([ROWS, 1], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        there = valid & (col < cols)
        x = tl.load(logits_ptr + row * logits_stride + col, mask=there, other=float("-inf"))
        x = x.to(tl.float32)  # [ROWS, BLOCK]
        joint = tl.maximum(most, tl.max(x, axis=1, keep_dims=True))
        base = tl.where(joint == float("-inf"), 0.0, joint)
        exps = exps * tl.exp(most - base) + tl.sum(tl.exp(x - base), axis=1, keep_dims=True)
        if SMOOTH:
            total += tl.sum(tl.where(there, x, 0.0), axis=1, keep_dims=True)
        most = joint
    return most, exps, total


@triton.jit
def write_loss(
    logits_ptr, loss_ptr, lse_ptr, row, valid, target, ignored, most, exps, total, cols,
    logits_stride, smoothing, z_loss, SMOOTH: tl.constexpr,
):  # fmt: skip
    """Loss and lse of rows from their sums; returns lse, [ROWS, 1]."""
    is_class = (target >= 0) & (target < cols)
    at_target = logits_ptr + row * logits_stride + target
    logit = tl.load(at_target, mask=valid & is_class, other=float("nan")).to(tl.float32)
    log_exps = tl.log(exps)
    lse = most + log_exps
    loss = most - logit + log_exps
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (lse - total / cols)
    loss = tl.where(z_loss == 0.0, loss, loss + z_loss * lse * lse)
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss), mask=valid)
    tl.store(lse_ptr + row, tl.where(ignored, 0.0, lse), mask=valid)
    return lse


@triton.jit
def write_gradient(
    logits_ptr, dlogits_ptr, row, valid, target, ignored, base, factor, every, at_target, start,
    cols, logits_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    """exp(x - base) * factor - every, less at_target for the target, of BLOCK columns."""
    col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    there = valid & (col < cols)
    x = tl.load(logits_ptr + row * logits_stride + col, mask=there, other=0.0).to(tl.float32)
    gradient = tl.exp(x - base) * factor - every
    gradient = tl.where(col == target, gradient - at_target, gradient)
    gradient = tl.where(ignored, 0.0, gradient)
    to = dlogits_ptr + row * cols + col
    tl.store(to, gradient.to(dlogits_ptr.dtype.element_ty), mask=there)


@triton.jit
def cross_entropy_forward_kernel(
    logits_ptr,  # [rows, cols], logits_stride elements from row to row
    target_ptr,  # [rows], target_stride apart
    loss_ptr,  # [rows] f32
    lse_ptr,  # [rows] f32
    rows,
    cols,
    logits_stride,
    target_stride,
    ignore_index,
    smoothing,
    z_loss,
    SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    valid = row < rows
    target = tl.load(target_ptr + row * target_stride, mask=valid, other=0).to(tl.int64)
    most, exps, total = row_sums(logits_ptr, row, valid, cols, logits_stride, SMOOTH, ROWS, BLOCK)
    write_loss(
        logits_ptr, loss_ptr, lse_ptr, row, valid, target, target == ignore_index, most, exps,
        total, cols, logits_stride, smoothing, z_loss, SMOOTH,
    )  # fmt: skip


@triton.jit
def cross_entropy_with_grad_kernel(
    logits_ptr,  # [rows, cols], logits_stride elements from row to row
    target_ptr,  # [rows], target_stride apart
    grad_loss_ptr,  # [rows], grad_loss_stride apart
    loss_ptr,  # [rows] f32
    lse_ptr,  # [rows] f32
    dlogits_ptr,  # [rows, cols]
    rows,
    cols,
    logits_stride,
    target_stride,
    grad_loss_stride,
    ignore_index,
    smoothing,
    z_loss,
    SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Two sweeps; the second finds short rows in registers or L1, and long ones in L2."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    valid = row < rows
    target = tl.load(target_ptr + row * target_stride, mask=valid, other=0).to(tl.int64)
    grad_loss = tl.load(grad_loss_ptr + row * grad_loss_stride, mask=valid, other=0.0)
    ignored = target == ignore_index
    most, exps, total = row_sums(logits_ptr, row, valid, cols, logits_stride, SMOOTH, ROWS, BLOCK)
    lse = write_loss(
        logits_ptr, loss_ptr, lse_ptr, row, valid, target, ignored, most, exps, total, cols,
        logits_stride, smoothing, z_loss, SMOOTH,
    )  # fmt: skip
    base = tl.where(most == float("-inf"), 0.0, most)
    factor = tl.where(z_loss == 0.0, grad_loss, grad_loss * (1.0 + 2.0 * z_loss * lse)) / exps
    factor = tl.where((target >= 0) & (target < cols), factor, float("nan"))
    every = grad_loss * smoothing / cols
    at_target = grad_loss * (1.0 - smoothing)
    for start in range(0, cols, BLOCK):
        write_gradient(
            logits_ptr, dlogits_ptr, row, valid, target, ignored, base, factor, every, at_target,
            start, cols, logits_stride, BLOCK,
        )  # fmt: skip


@triton.jit
def cross_entropy_backward_kernel(
    logits_ptr,  # [rows, cols], logits_stride elements from row to row
    target_ptr,  # [rows], target_stride apart
    lse_ptr,  # [rows], contiguous
    grad_loss_ptr,  # [rows], grad_loss_stride apart
    grad_lse_ptr,  # [rows], grad_lse_stride apart
    dlogits_ptr,  # [rows, cols]
    rows,
    cols,
    logits_stride,
    target_stride,
    lse_stride,
    grad_loss_stride,
    grad_lse_stride,
    ignore_index,
    smoothing,
    z_loss,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows and BLOCK columns per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    valid = row < rows
    target = tl.load(target_ptr + row * target_stride, mask=valid, other=0).to(tl.int64)
    lse = tl.load(lse_ptr + row * lse_stride, mask=valid, other=0.0)
    grad_loss = tl.load(grad_loss_ptr + row * grad_loss_stride, mask=valid, other=0.0)
    grad_lse = tl.load(grad_lse_ptr + row * grad_lse_stride, mask=valid, other=0.0)
    factor = grad_loss * (1.0 + 2.0 * z_loss * lse) + grad_lse
    factor = tl.where((target >= 0) & (target < cols), factor, float("nan"))
    every = grad_loss * smoothing / cols
    at_target = grad_loss * (1.0 - smoothing)
    write_gradient(
        logits_ptr, dlogits_ptr, row, valid, target, target == ignore_index, lse, factor, every,
        at_target, tl.program_id(1) * BLOCK, cols, logits_stride, BLOCK,
    )  # fmt: skip


def _tile(rows: int, cols: int) -> tuple[int, int, int]:
    """Rows and columns of a program, and its warps."""
    block = triton.next_power_of_2(cols)
    if block > TILE:
        return 1, min(block, SWEEP), 16
    shared = min(max(TILE // 2 // block, 1), triton.next_power_of_2(rows))
    return shared, block, min(max(shared * block // 512, 4), 8)


def _unit_stride(logits: Tensor) -> tuple[Tensor, int]:
    """Logits with contiguous columns, and the stride between their rows."""
    layout = as_rows(logits)
    return logits.contiguous() if layout.copied else logits, layout.stride


def _spread(label_smoothing: float, cols: int) -> float:
    """Nothing over a single class, whose loss is zero then, not what rounding leaves."""
    return 0.0 if cols == 1 else label_smoothing


def cross_entropy_forward(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    if is_fp8(logits.dtype):
        logits = logits.float()
    rows, cols = logits.shape
    loss = torch.empty(rows, dtype=wide_dtype(logits), device=logits.device)
    lse = torch.empty_like(loss)
    if rows == 0:
        return loss, lse
    logits, stride = _unit_stride(logits)
    shared, block, warps = _tile(rows, cols)
    smoothing = _spread(label_smoothing, cols)
    with torch.cuda.device_of(logits):
        cross_entropy_forward_kernel[(triton.cdiv(rows, shared),)](
            logits, target, loss, lse, rows, cols, stride, target.stride(0), ignore_index,
            smoothing, z_loss, smoothing != 0.0, shared, block, num_warps=warps,
        )  # fmt: skip
    return loss, lse


def cross_entropy_with_grad(
    logits: Tensor,
    target: Tensor,
    grad_loss: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fp8(logits.dtype):
        loss, lse, dlogits = cross_entropy_with_grad(
            logits.float(), target, grad_loss, ignore_index, label_smoothing, z_loss
        )
        return loss, lse, dlogits.to(logits.dtype)
    rows, cols = logits.shape
    loss = torch.empty(rows, dtype=wide_dtype(logits), device=logits.device)
    lse = torch.empty_like(loss)
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if rows == 0:
        return loss, lse, dlogits
    if grad_loss is None:
        grad_loss = torch.ones(1, dtype=loss.dtype, device=loss.device).expand(rows)
    logits, stride = _unit_stride(logits)
    shared, block, warps = _tile(rows, cols)
    smoothing = _spread(label_smoothing, cols)
    with torch.cuda.device_of(logits):
        cross_entropy_with_grad_kernel[(triton.cdiv(rows, shared),)](
            logits, target, grad_loss, loss, lse, dlogits, rows, cols, stride, target.stride(0),
            grad_loss.stride(0), ignore_index, smoothing, z_loss, smoothing != 0.0,
            shared, block, num_warps=warps,
        )  # fmt: skip
    return loss, lse, dlogits


def cross_entropy_backward(
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    if is_fp8(logits.dtype):
        wide = logits.float()
        options = (ignore_index, label_smoothing, z_loss)
        return cross_entropy_backward(wide, target, lse, grad_loss, grad_lse, *options).to(
            logits.dtype
        )
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    rows, cols = logits.shape
    if rows == 0:
        return dlogits
    logits, stride = _unit_stride(logits)
    shared, block, warps = _tile(rows, cols)
    smoothing = _spread(label_smoothing, cols)
    block = min(block, TILE)
    with torch.cuda.device_of(logits):
        cross_entropy_backward_kernel[(triton.cdiv(rows, shared), triton.cdiv(cols, block))](
            logits, target, lse, grad_loss, grad_lse, dlogits, rows, cols, stride,
            target.stride(0), lse.stride(0), grad_loss.stride(0), grad_lse.stride(0),
            ignore_index, smoothing, z_loss, shared, block, num_warps=min(warps, 8),
        )  # fmt: skip
    return dlogits
