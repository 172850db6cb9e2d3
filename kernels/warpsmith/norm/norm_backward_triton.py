"""Gradients of the row-wise normalisations in Triton: three kernels and compile-time flags.

LAYER: layer norm, otherwise RMS norm. FROM_OUTPUT: h is the norm's output, rstd is given, and
xhat = (h - bias) / weight. ADDED: h is a sum, whose own gradient is added to that of the norm, and
of which x may get a gradient apart, in its dtype and through dropout.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    branched,
    floats,
    mean_and_rstd,
    of_branch,
    or_other,
    reciprocal_rms,
    stats_of_rows,
)
from warpsmith.spec.triton.philox import NOT_SPECIALISED


@triton.jit
def load_columns(ptr, col, in_row, HAS: tl.constexpr, ABSENT: tl.constexpr, CENTRED: tl.constexpr):
    """A weight, stored as its distance from one if CENTRED, or a bias, [1, BLOCK]."""
    if HAS:
        values = tl.load(ptr + col, mask=in_row, other=ABSENT).to(tl.float32)
        return values + 1.0 if CENTRED else values
    else:
        return tl.zeros_like(col).to(tl.float32) + ABSENT


@triton.jit
def divisible(weight, least):
    """Magnitudes below `least` count as `least`; NaN passes."""
    negative = weight.to(tl.int32, bitcast=True) < 0
    return tl.where(tl.abs(weight) < least, tl.where(negative, -least, least), weight)


@triton.jit
def shift_of_row(x_ptr, cols, BLOCK: tl.constexpr):
    """The mean of the first BLOCK values of a long row, [1, 1]."""
    col = tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    return tl.sum(x * (1.0 / tl.minimum(BLOCK, cols)), axis=1, keep_dims=True)


@triton.jit
def hand_out(
    dh,
    grad_h_ptr,
    row_scale_ptr,
    dh_ptr,
    dx_ptr,
    row,
    start,
    rows,
    cols,
    grad_h_stride,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_GRAD_H: tl.constexpr,
    SEPARATE_X: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds the gradient that h has already, and writes that of h, and of x."""
    col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    valid = (row < rows) & (col < cols)
    if HAS_GRAD_H:
        dh += tl.load(grad_h_ptr + row * grad_h_stride + col, mask=valid, other=0.0).to(tl.float32)
    tl.store(dh_ptr + row * cols + col, dh.to(dh_ptr.dtype.element_ty), mask=valid)
    if SEPARATE_X:
        if BRANCHES:
            dh = branched(
                dh, row_scale_ptr, row, rows, start, cols, seed, offset, last_dropped, keep_scale,
                HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
            )  # fmt: skip
        tl.store(dx_ptr + row * cols + col, dh.to(dx_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def norm_backward_persistent_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    row_scale_ptr,  # [rows]
    rstd_ptr,  # [rows] f32: read from the output
    mean_ptr,  # [rows] f32, not used
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
    FROM_OUTPUT: tl.constexpr,
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
    """Each program walks over rows, ROWS at a time, with its sums of dw and db in registers."""
    program, step = tl.program_id(0).to(tl.int64), tl.num_programs(0) * ROWS
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0, ZERO_CENTERED)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, rows, step):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < rows) & in_row
        h = tl.load(h_ptr + row * h_stride + col, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        scaled = grad * weight
        if FROM_OUTPUT:
            rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)  # [ROWS, 1]
            weighted = h - load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0, False)
            xhat = weighted / divisible(weight, eps)
            product = grad * weighted
        else:
            mean, rstd = stats_of_rows(h, valid, cols, eps, LAYER)
            xhat = (h - mean) * rstd
            product = scaled * xhat
        inner = scaled
        if LAYER:
            inner -= tl.sum(scaled, axis=1, keep_dims=True) / cols
        product = tl.where(valid, product, 0.0)
        inner -= xhat * (tl.sum(product, axis=1, keep_dims=True) / cols)
        hand_out(
            rstd * inner, grad_h_ptr, row_scale_ptr, dh_ptr, dx_ptr, row, 0, rows, cols,
            grad_h_stride, seed, offset, last_dropped, keep_scale,
            HAS_GRAD_H, SEPARATE_X, BRANCHES, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip
        dw += tl.where(valid, grad * xhat, 0.0)
        db += grad
    if HAS_WEIGHT:
        tl.store(dw_ptr + program * cols + col, tl.sum(dw, axis=0)[None, :], mask=in_row)
    if HAS_BIAS:
        tl.store(db_ptr + program * cols + col, tl.sum(db, axis=0)[None, :], mask=in_row)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def norm_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    row_scale_ptr,  # [rows]
    rstd_ptr,  # [rows] f32: read from the output, written otherwise
    mean_ptr,  # [rows] f32, written unless from the output
    dh_ptr,  # [rows, cols]
    dx_ptr,  # [rows, cols]
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
    FROM_OUTPUT: tl.constexpr,
    HAS_GRAD_H: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SEPARATE_X: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dh of a row per program, in two sweeps; leaves what the row's xhat takes for dw."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], dtype=tl.int64)
    shift = tl.zeros([1, 1], dtype=tl.float32)
    if LAYER and not FROM_OUTPUT:
        shift = shift_of_row(h_ptr + row * h_stride, cols, BLOCK)
    deviations = tl.zeros([1, BLOCK], dtype=tl.float32)
    squares = tl.zeros([1, BLOCK], dtype=tl.float32)
    totals = tl.zeros([1, BLOCK], dtype=tl.float32)
    products = tl.zeros([1, BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = tl.load(h_ptr + row * h_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        scaled = grad * load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0, ZERO_CENTERED)
        totals += scaled
        if FROM_OUTPUT:
            products += grad * (h - load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0, False))
        else:
            d = tl.where(in_row, h - shift, 0.0)
            deviations += d
            squares += d * d
            products += scaled * d
    total = tl.sum(totals, axis=1, keep_dims=True)
    product = tl.sum(products, axis=1, keep_dims=True)
    mean = shift
    if FROM_OUTPUT:
        rstd = tl.load(rstd_ptr + row)
    else:
        square = tl.sum(squares, axis=1, keep_dims=True)
        if LAYER:
            distance = tl.sum(deviations, axis=1, keep_dims=True)
            mean, rstd = mean_and_rstd(shift, distance, square, cols, eps)
        else:
            rstd = reciprocal_rms(square, cols, eps)
        product = rstd * (product - (mean - shift) * total)  # now of grad * weight * xhat
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = tl.load(h_ptr + row * h_stride + col, mask=in_row, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0, ZERO_CENTERED)
        if FROM_OUTPUT:
            bias = load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0, False)
            xhat = (h - bias) / divisible(weight, eps)
        else:
            xhat = (h - mean) * rstd
        inner = grad * weight
        if LAYER:
            inner -= total / cols
        hand_out(
            rstd * (inner - xhat * (product / cols)), grad_h_ptr, row_scale_ptr, dh_ptr, dx_ptr,
            row, start, rows, cols, grad_h_stride, seed, offset, last_dropped, keep_scale,
            HAS_GRAD_H, SEPARATE_X, BRANCHES, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip


@triton.jit
def norm_backward_chunks_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    rstd_ptr,  # [rows] f32
    mean_ptr,  # [rows] f32
    partial_dw_ptr,  # [chunks, cols] f32
    partial_db_ptr,  # [chunks, cols] f32
    rows,
    cols,
    grad_stride,
    h_stride,
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
    weight = load_columns(weight_ptr, col, in_row, HAS_WEIGHT, 1.0, False)
    bias = load_columns(bias_ptr, col, in_row, HAS_BIAS, 0.0, False)
    dw = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    db = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(index * chunk, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        valid = (row < end) & in_row
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=valid, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            h = tl.load(h_ptr + row * h_stride + col, mask=valid, other=0.0).to(tl.float32)
            if FROM_OUTPUT:
                xhat = (h - bias) / divisible(weight, eps)
            else:
                mean = tl.load(mean_ptr + row, mask=row < end, other=0.0)  # [ROWS, 1]
                xhat = (h - mean) * tl.load(rstd_ptr + row, mask=row < end, other=0.0)
            dw += tl.where(valid, grad * xhat, 0.0)
        db += grad
    if HAS_WEIGHT:
        sums = tl.sum(dw, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_dw_ptr + index * cols + col, sums, mask=in_row)
    if HAS_BIAS:
        sums = tl.sum(db, axis=0)[None, :]  # [1, BLOCK]
        tl.store(partial_db_ptr + index * cols + col, sums, mask=in_row)


# --- the twins ------------------------------------------------------------------------------------


def _backward(
    layer: bool,
    grad: Tensor,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rstd: Tensor | None = None,
    grad_h: Tensor | None = None,
    zero_centered: bool = False,
    separate: bool = False,
    branch: Branch | None = None,
) -> tuple[Tensor, ...]:
    """dh, dx, empty unless it is separate, dw and db, empty where there is no weight or bias."""
    if is_fp8(grad.dtype):
        wide = (h.float(), floats(weight), floats(bias), eps, rstd, floats(grad_h))
        dh, dx, dw, db = _backward(layer, grad.float(), *wide, zero_centered, separate, branch)
        like = (or_other(weight, grad).dtype, or_other(bias, grad).dtype)
        return dh.to(h.dtype), dx.to(grad.dtype), dw.to(like[0]), db.to(like[1])
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
    from_output, has_grad_h = rstd is not None, grad_h is not None
    has_weight, has_bias = weight is not None, bias is not None
    if grad_h is not None:
        grad_h, _, _, grad_h_stride = unit_stride(grad_h)
    else:
        grad_h, grad_h_stride = h, h_stride
    row_scale = or_other(None if branch is None else branch.row_scale, h)
    statistics = torch.empty(2, rows, dtype=torch.float32, device=h.device)
    given = (or_other(rstd, statistics[0]), statistics[1])
    tensors = (grad, grad_h, h, or_other(weight, h), or_other(bias, h), row_scale, *given, dh, dx)
    dropout, branch_flags = of_branch(branch, cols)
    sizes = (rows, cols, grad_stride, grad_h_stride, h_stride, eps, *dropout)
    flags = (layer, from_output, has_grad_h, has_weight, has_bias, zero_centered, separate)
    block = triton.next_power_of_2(cols)
    workers = 4 * multiprocessors(h)
    # A product rounded in one place and fused with an addition in another would not cancel.
    exact = {"enable_fp_fusion": False}
    with on(h):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            count = min(triton.cdiv(rows, shared), workers)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            norm_backward_persistent_kernel[(count,)](
                *tensors, *partials, *sizes, *flags, *branch_flags, shared, block,
                num_warps=warps_for(shared * block), **exact,
            )  # fmt: skip
        else:
            count = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            norm_backward_sweeps_kernel[(rows,)](
                *tensors, *sizes, *flags, *branch_flags, SWEEP, num_warps=warps_for(SWEEP), **exact
            )
            if has_weight or has_bias:
                norm_backward_chunks_kernel[(triton.cdiv(cols, 256), count)](
                    grad, h, tensors[3], tensors[4], *given, *partials,
                    rows, cols, grad_stride, h_stride, eps, triton.cdiv(rows, count),
                    has_weight, has_bias, from_output, 8, 256, num_warps=4,
                )  # fmt: skip
        for partial, of_affine in zip(partials, (dw, db), strict=True):
            if of_affine.numel():
                sum_partials_kernel[(triton.cdiv(cols, 64),)](
                    partial, of_affine, partial.shape[0], cols, 64, 64, num_warps=8
                )
    return dh, dx, dw, db


def _twin(layer: bool, added: bool = False, branches: bool = False) -> Callable[..., Any]:
    """The twin of one operator: `added` of residual norms, `branches` of those with dropout."""

    def run(
        grad: Tensor,
        weight: Tensor | None,
        eps: float,
        x: Tensor | None = None,
        y: Tensor | None = None,
        h: Tensor | None = None,
        bias: Tensor | None = None,
        rstd: Tensor | None = None,
        grad_h: Tensor | None = None,
        zero_centered: bool = False,
        separate_x: bool = True,
        row_scale: Tensor | None = None,
        p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
    ) -> tuple[Tensor, ...]:
        rows = next(t for t in (x, y, h) if t is not None)
        branch = Branch(row_scale, p, seed, offset) if branches else None
        separate = added and separate_x
        dh, dx, *of_affine = _backward(
            layer, grad, rows, weight, bias, eps, rstd, grad_h, zero_centered, separate, branch
        )
        return dh, *([dx] if added else []), *of_affine[: 1 + layer]

    return run


rms_norm_backward = rms_norm_backward_from_output = _twin(layer=False)
layer_norm_backward = layer_norm_backward_from_output = _twin(layer=True)
add_rms_norm_backward, add_layer_norm_backward = _twin(False, added=True), _twin(True, added=True)
dropout_add_rms_norm_backward = _twin(layer=False, added=True, branches=True)
dropout_add_layer_norm_backward = _twin(layer=True, added=True, branches=True)
