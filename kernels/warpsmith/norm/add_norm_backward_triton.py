"""The gradients of the residual norms in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable

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
from warpsmith.norm.norms_triton import (
    Branch,
    affine,
    branched,
    floats,
    mean_of,
    of_branch,
    or_other,
    reciprocal_rms,
    share_of,
)
from warpsmith.spec.triton.philox import NOT_SPECIALISED


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def add_norm_backward_persistent_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    row_scale_ptr,  # [rows]
    dh_ptr,  # [rows, cols]
    dx_ptr,  # [rows, cols]
    dw_ptr,  # [programs, cols] f32
    db_ptr,  # [programs, cols] f32
    rows,
    cols,
    grad_stride,
    grad_h_stride,
    h_stride,
    eps,
    seed,
    offset,
    last_dropped,
    keep_scale,
    LAYER: tl.constexpr,
    HAS_GRAD_H: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SEPARATE_X: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program walks over rows, ROWS at a time, keeping its sums of dw and db in registers."""
    program, step = tl.program_id(0).to(tl.int64), tl.num_programs(0) * ROWS
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, rows, step):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < rows) & in_row
        h = tl.load(h_ptr + row * h_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        g = affine(grad, weight_ptr, weight_ptr, col, in_row, HAS_WEIGHT, False, ZERO_CENTERED)
        if LAYER:
            h = tl.where(valid, h - mean_of(tl.sum(share_of(h), axis=1, keep_dims=True), cols), 0.0)
        scale = reciprocal_rms(tl.sum(h * h, axis=1, keep_dims=True), cols, eps)
        xhat = h * scale
        dh = g - xhat * (tl.sum(g * xhat, axis=1, keep_dims=True) / cols)
        if LAYER:
            dh -= tl.sum(g, axis=1, keep_dims=True) / cols
        dh *= scale
        if HAS_GRAD_H:
            grad_h = tl.load(grad_h_ptr + row * grad_h_stride + col, mask=valid, other=0.0)
            dh += grad_h.to(tl.float32)
        tl.store(dh_ptr + row * cols + col, dh.to(dh_ptr.dtype.element_ty), mask=valid)
        if SEPARATE_X:
            if BRANCHES:
                dh = branched(
                    dh, row_scale_ptr, row, rows, 0, cols, seed, offset, last_dropped, keep_scale,
                    HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
                )  # fmt: skip
            tl.store(dx_ptr + row * cols + col, dh.to(dx_ptr.dtype.element_ty), mask=valid)
        if HAS_WEIGHT:
            dw += tl.where(valid, grad * xhat, 0.0)
        if HAS_BIAS:
            db += grad
    if HAS_WEIGHT:
        tl.store(dw_ptr + program * cols + col, tl.sum(dw, axis=0)[None, :], mask=in_row)
    if HAS_BIAS:
        tl.store(db_ptr + program * cols + col, tl.sum(db, axis=0)[None, :], mask=in_row)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def add_norm_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    row_scale_ptr,  # [rows]
    dh_ptr,  # [rows, cols]
    dx_ptr,  # [rows, cols]
    statistics_ptr,  # [2, rows] f32: mean and 1 / standard deviation
    rows,
    cols,
    grad_stride,
    grad_h_stride,
    h_stride,
    eps,
    seed,
    offset,
    last_dropped,
    keep_scale,
    LAYER: tl.constexpr,
    HAS_GRAD_H: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SEPARATE_X: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dh of a row per program, in two sweeps, or three for layer norm."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], dtype=tl.int64)
    mean = tl.zeros([1, 1], dtype=tl.float32)
    if LAYER:
        total = tl.zeros([1, BLOCK], dtype=tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)[None, :]
            h = tl.load(h_ptr + row * h_stride + col, mask=col < cols, other=0.0)
            total += share_of(h.to(tl.float32))
        mean = mean_of(tl.sum(total, axis=1, keep_dims=True), cols)
    squares = tl.zeros([1, BLOCK], dtype=tl.float32)
    products = tl.zeros([1, BLOCK], dtype=tl.float32)
    plain = tl.zeros([1, BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        in_row = col < cols
        h = tl.load(h_ptr + row * h_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = affine(g, weight_ptr, weight_ptr, col, in_row, HAS_WEIGHT, False, ZERO_CENTERED)
        h = tl.where(in_row, h - mean, 0.0)
        squares += h * h
        products += g * h
        plain += g
    scale = reciprocal_rms(tl.sum(squares, axis=1, keep_dims=True), cols, eps)
    slope = scale * tl.sum(products, axis=1, keep_dims=True) / cols
    shift = tl.sum(plain, axis=1, keep_dims=True) / cols if LAYER else 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        in_row = col < cols
        h = tl.load(h_ptr + row * h_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = affine(g, weight_ptr, weight_ptr, col, in_row, HAS_WEIGHT, False, ZERO_CENTERED)
        dh = scale * (g - shift - (h - mean) * scale * slope)
        if HAS_GRAD_H:
            grad_h = tl.load(grad_h_ptr + row * grad_h_stride + col, mask=in_row, other=0.0)
            dh += grad_h.to(tl.float32)
        tl.store(dh_ptr + row * cols + col, dh.to(dh_ptr.dtype.element_ty), mask=in_row)
        if SEPARATE_X:
            if BRANCHES:
                dh = branched(
                    dh, row_scale_ptr, row, rows, start, cols, seed, offset, last_dropped,
                    keep_scale, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
                )  # fmt: skip
            tl.store(dx_ptr + row * cols + col, dh.to(dx_ptr.dtype.element_ty), mask=in_row)
    tl.store(statistics_ptr + row, mean)
    tl.store(statistics_ptr + rows + row, scale)


@triton.jit
def add_norm_backward_chunks_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    statistics_ptr,  # [2, rows] f32
    dw_ptr,  # [chunks, cols] f32
    db_ptr,  # [chunks, cols] f32
    rows,
    cols,
    grad_stride,
    h_stride,
    chunk,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums dw and db over a chunk of rows for BLOCK columns."""
    index = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    end = tl.minimum((index + 1) * chunk, rows)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(index * chunk, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < end) & in_row
        h = tl.load(h_ptr + row * h_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        mean = tl.load(statistics_ptr + row, mask=row < end, other=0.0)  # [ROWS, 1]
        scale = tl.load(statistics_ptr + rows + row, mask=row < end, other=0.0)  # [ROWS, 1]
        dw += tl.where(valid, grad * ((h - mean) * scale), 0.0)
        db += grad
    if HAS_WEIGHT:
        tl.store(dw_ptr + index * cols + col, tl.sum(dw, axis=0)[None, :], mask=in_row)
    if HAS_BIAS:
        tl.store(db_ptr + index * cols + col, tl.sum(db, axis=0)[None, :], mask=in_row)


# --- the twins ------------------------------------------------------------------------------------


def _backward(
    layer: bool,
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate: bool,
    branch: Branch | None = None,
) -> tuple[Tensor, ...]:
    if is_fp8(grad.dtype):
        wide = (floats(grad_h), h.float(), floats(weight), floats(bias))
        dh, dx, dw, db = _backward(layer, grad.float(), *wide, eps, zero_centered, separate, branch)
        return (
            dh.to(h.dtype),
            dx.to(grad.dtype),
            dw.to(or_other(weight, grad).dtype),
            db.to(or_other(bias, grad).dtype),
        )
    dh = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    dx = torch.empty(h.shape if separate else 0, dtype=grad.dtype, device=h.device)
    dw, db = (
        torch.zeros(0 if t is None else t.shape, dtype=or_other(t, grad).dtype, device=h.device)
        for t in (weight, bias)
    )
    if h.numel() == 0:
        return dh, dx, dw, db
    grad, rows, cols, grad_stride = unit_stride(grad)
    h, _, _, h_stride = unit_stride(h)
    has_grad_h, has_weight, has_bias = grad_h is not None, weight is not None, bias is not None
    if grad_h is not None:
        grad_h, _, _, grad_h_stride = unit_stride(grad_h)
    else:
        grad_h, grad_h_stride = h, h_stride
    scale = or_other(weight, h)
    row_scale = or_other(None if branch is None else branch.row_scale, h)
    tensors = (grad, grad_h, h, scale, row_scale, dh, dx)
    dropout, branch_flags = of_branch(branch, cols)
    sizes = (rows, cols, grad_stride, grad_h_stride, h_stride, eps, *dropout)
    block = triton.next_power_of_2(cols)
    workers = 4 * multiprocessors(h)
    with on(h):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            count = min(triton.cdiv(rows, shared), workers)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            add_norm_backward_persistent_kernel[(count,)](
                *tensors, *partials, *sizes, layer, has_grad_h, has_weight, has_bias,
                zero_centered, separate, *branch_flags, shared, block,
                num_warps=warps_for(shared * block), enable_fp_fusion=False,
            )  # fmt: skip
        else:
            count = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            statistics = torch.empty(2, rows, dtype=torch.float32, device=h.device)
            add_norm_backward_sweeps_kernel[(rows,)](
                *tensors, statistics, *sizes, layer, has_grad_h, has_weight, zero_centered,
                separate, *branch_flags, SWEEP, num_warps=warps_for(SWEEP), enable_fp_fusion=False,
            )  # fmt: skip
            if has_weight or has_bias:
                add_norm_backward_chunks_kernel[(triton.cdiv(cols, 256), count)](
                    grad, h, statistics, *partials, rows, cols, grad_stride, h_stride,
                    triton.cdiv(rows, count), has_weight, has_bias, 8, 256, num_warps=4,
                )  # fmt: skip
        for partial, of_affine in zip(partials, (dw, db), strict=True):
            if of_affine.numel():
                sum_partials_kernel[(triton.cdiv(cols, 64),)](
                    partial, of_affine, partial.shape[0], cols, 64, 64, num_warps=8
                )
    return dh, dx, dw, db


def _twin(layer: bool, branches: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """The twin of one operator; `branches` of norms with dropout."""

    def run(
        grad: Tensor,
        grad_h: Tensor | None,
        h: Tensor,
        weight: Tensor | None,
        eps: float,
        zero_centered: bool,
        bias: Tensor | None = None,
        separate_x: bool = True,
        row_scale: Tensor | None = None,
        p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
    ) -> tuple[Tensor, ...]:
        branch = Branch(row_scale, p, seed, offset) if branches else None
        found = _backward(
            layer, grad, grad_h, h, weight, bias, eps, zero_centered, separate_x, branch
        )
        return found if layer else found[:3]

    return run


add_rms_norm_backward, add_layer_norm_backward = _twin(layer=False), _twin(layer=True)
dropout_add_rms_norm_backward = _twin(layer=False, branches=True)
dropout_add_layer_norm_backward = _twin(layer=True, branches=True)
