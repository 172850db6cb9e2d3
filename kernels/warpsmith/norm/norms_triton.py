"""The row-wise normalisations in Triton: source x norm x sink, by flags of two kernels.

Gradients are in `norm_backward_triton`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.norm.launch_triton import (
    MOST_RESIDENT,
    SHARED_TILE,
    SWEEP,
    empty_rstd,
    on,
    unit_stride,
    warps_for,
)
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.convert import encode
from warpsmith.spec.triton.philox import NOT_SPECIALISED, keeps, keeps_groups

# --- parts ----------------------------------------------------------------------------------------


@triton.jit
def reciprocal_rms(sum_of_squares, cols, eps):
    """1 / sqrt(mean + eps) within an ulp, which the approximate instructions are not."""
    zero = tl.zeros_like(sum_of_squares)
    mean = tl.div_rn(sum_of_squares, zero + cols)
    return tl.div_rn(zero + 1.0, tl.sqrt_rn(mean + eps))


@triton.jit
def mean_and_rstd(shift, deviations, squares, cols, eps):
    """From the sums of x - shift and (x - shift)^2, for a shift near the mean."""
    count = tl.zeros_like(shift) + cols
    distance = tl.div_rn(deviations, count)
    variance = tl.div_rn(squares, count) - distance * distance
    variance = tl.where(variance < 0.0, 0.0, variance)  # NaN passes
    return shift + distance, tl.div_rn(tl.zeros_like(shift) + 1.0, tl.sqrt_rn(variance + eps))


@triton.jit
def stats_of_rows(x, valid, cols, eps, LAYER: tl.constexpr):
    """Mean and rstd of whole rows, [ROWS, 1]; each pass corrects what the one before was off by.
    RMS norm has no mean.
    """
    if LAYER:
        # shares of the mean, as the sum of x leaves the range where the mean does not
        share = 1.0 / cols
        shift = tl.sum(x * share, axis=1, keep_dims=True)
        shift += tl.sum(tl.where(valid, x - shift, 0.0) * share, axis=1, keep_dims=True)
        d = tl.where(valid, x - shift, 0.0)
        deviations = tl.sum(d, axis=1, keep_dims=True)
        return mean_and_rstd(shift, deviations, tl.sum(d * d, axis=1, keep_dims=True), cols, eps)
    else:
        return 0.0, reciprocal_rms(tl.sum(x * x, axis=1, keep_dims=True), cols, eps)


@triton.jit
def share_of(x):
    """What x adds to a sum from which `mean_of` makes the mean: a sum of x leaves the range where
    the mean does not. A power of two changes no digit.
    """
    return x * (1.0 / (1 << 24))


@triton.jit
def mean_of(total, cols):
    return tl.div_rn(total, share_of(tl.zeros_like(total) + cols))


@triton.jit
def affine(
    y,
    weight_ptr,
    bias_ptr,
    col,
    in_row,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
):
    """y * weight + bias, for the columns of y."""
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        y *= weight + 1.0 if ZERO_CENTERED else weight
    if HAS_BIAS:
        y += tl.load(bias_ptr + col, mask=in_row, other=0.0).to(tl.float32)
    return y


@triton.jit
def branched(
    x,
    row_scale_ptr,
    row,
    rows,
    start,
    cols,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dropout(x) * row_scale for x [ROWS, BLOCK] from column `start` on, of rows [ROWS, 1]. GROUPS:
    columns come in groups of four.
    """
    factor = keep_scale  # of both, which may bring back what one alone sends past f32
    if HAS_ROW_SCALE:
        factor *= tl.load(row_scale_ptr + row, mask=row < rows, other=0.0)
    x *= factor
    if DROPS:
        if GROUPS:
            group = (row * cols + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
            kept = keeps_groups(group, seed, offset, last_dropped)
        else:
            element = row * cols + start + tl.arange(0, BLOCK)[None, :]
            kept = keeps(element, seed, offset, last_dropped)
        x = tl.where(kept, x, 0.0)
    return x


@triton.jit
def gathered(
    x_ptr,
    residual_ptr,
    row_scale_ptr,
    h_ptr,
    row,
    start,
    rows,
    cols,
    x_stride,
    residual_stride,
    seed,
    offset,
    last_dropped,
    keep_scale,
    HAS_RESIDUAL: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What is normalised, [ROWS, BLOCK] of rows [ROWS, 1] from column `start` on: x in f32, or a
    sum in the dtype of h.
    """
    col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    valid = (row < rows) & (col < cols)
    h = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
    if BRANCHES:
        h = branched(
            h, row_scale_ptr, row, rows, start, cols, seed, offset, last_dropped, keep_scale,
            HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + col, mask=valid, other=0.0)
        h += residual.to(tl.float32)
    if HAS_RESIDUAL or BRANCHES:
        return h.to(h_ptr.dtype.element_ty)
    else:
        return h


@triton.jit
def rounded(
    y,
    scale_ptr,
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """`y` as `ELEMENT`, or quantised to an fp8 `FORMAT` with saturation, as bytes."""
    if FORMAT == "":
        return y.to(ELEMENT)
    else:
        if HAS_SCALE:
            y *= tl.load(scale_ptr)
        LARGEST: tl.constexpr = 448.0 if FORMAT == "e4m3" else 57344.0
        y = tl.where(y > LARGEST, LARGEST, y)  # NaN passes
        y = tl.where(y < -LARGEST, -LARGEST, y)
        return encode(y, FORMAT, HARDWARE, ELEMENT)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def norm_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    row_scale_ptr,  # [rows]
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    rows,
    cols,
    x_stride,
    residual_stride,
    eps,
    seed,
    offset,
    last_dropped,
    keep_scale,
    LAYER: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    KEEP_RSTD: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    valid = (row < rows) & in_row
    h = gathered(
        x_ptr, residual_ptr, row_scale_ptr, h_ptr, row, 0, rows, cols, x_stride, residual_stride,
        seed, offset, last_dropped, keep_scale,
        HAS_RESIDUAL, BRANCHES, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
    )  # fmt: skip
    if HAS_RESIDUAL or BRANCHES:
        tl.store(h_ptr + row * cols + col, h, mask=valid)
    h = h.to(tl.float32)
    mean, rstd = stats_of_rows(h, valid, cols, eps, LAYER)
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)
    y = (h - mean) * rstd
    y = affine(y, weight_ptr, bias_ptr, col, in_row, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED)
    y = rounded(y, scale_ptr, HAS_SCALE, FORMAT, HARDWARE, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * cols + col, y, mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    row_scale_ptr,  # [rows]
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
    rstd_ptr,  # [rows] f32
    rows,
    cols,
    x_stride,
    residual_stride,
    eps,
    seed,
    offset,
    last_dropped,
    keep_scale,
    LAYER: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    KEEP_RSTD: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps: one for the sums, around a shift near the mean, and one to
    normalise.
    """
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], dtype=tl.int64)
    shift = tl.zeros([1, 1], dtype=tl.float32)
    if LAYER:
        first = gathered(
            x_ptr, residual_ptr, row_scale_ptr, h_ptr, row, 0, rows, cols, x_stride,
            residual_stride, seed, offset, last_dropped, keep_scale,
            HAS_RESIDUAL, BRANCHES, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip
        share = 1.0 / tl.minimum(BLOCK, cols)
        shift = tl.sum(first.to(tl.float32) * share, axis=1, keep_dims=True)
    deviations = tl.zeros([1, BLOCK], dtype=tl.float32)
    squares = tl.zeros([1, BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = gathered(
            x_ptr, residual_ptr, row_scale_ptr, h_ptr, row, start, rows, cols, x_stride,
            residual_stride, seed, offset, last_dropped, keep_scale,
            HAS_RESIDUAL, BRANCHES, HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip
        if HAS_RESIDUAL or BRANCHES:
            tl.store(h_ptr + row * cols + col, h, mask=in_row)
        d = h.to(tl.float32)
        if LAYER:
            d = tl.where(in_row, d - shift, 0.0)
            deviations += d
        squares += d * d
    if HAS_RESIDUAL or BRANCHES:
        tl.debug_barrier()  # what other threads wrote of h is read below
    kept_ptr = h_ptr + row * cols if HAS_RESIDUAL or BRANCHES else x_ptr + row * x_stride
    total = tl.sum(squares, axis=1, keep_dims=True)
    mean = shift
    if LAYER:
        distance = tl.sum(deviations, axis=1, keep_dims=True)
        mean, rstd = mean_and_rstd(shift, distance, total, cols, eps)
    else:
        rstd = reciprocal_rms(total, cols, eps)
    if KEEP_RSTD:
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = tl.load(kept_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        y = (h - mean) * rstd
        y = affine(y, weight_ptr, bias_ptr, col, in_row, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED)
        y = rounded(y, scale_ptr, HAS_SCALE, FORMAT, HARDWARE, y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * cols + col, y, mask=in_row)


# --- the twins ------------------------------------------------------------------------------------


def or_other(tensor: Tensor | None, other: Tensor) -> Tensor:
    """`other` stands in for a pointer that no kernel follows."""
    return other if tensor is None else tensor.contiguous()


def _converts_in_hardware(x: Tensor) -> bool:
    return not interpreting() and torch.cuda.get_device_capability(x.device) >= (8, 9)


def floats(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


@dataclass(frozen=True)
class Branch:
    """What becomes of x before the addition."""

    row_scale: Tensor | None
    p: float
    seed: int
    offset: int


def of_branch(branch: Branch | None, cols: int) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """Arguments and flags of the kernels."""
    if branch is None:
        return (0, 0, 0, 1.0), (False, False, False, False)
    drops, arguments = philox_triton.arguments(branch.p, branch.seed, branch.offset)
    return arguments, (True, branch.row_scale is not None, drops, cols % 4 == 0)


def _forward(
    layer: bool,
    keep_rstd: bool,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    zero_centered: bool = False,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
    branch: Branch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y in `dtype`, else in that of x; h, empty where it would be x; rstd, if it is kept."""
    if is_fp8(x.dtype):
        parameters = (floats(weight), eps, floats(bias), floats(residual))
        y, h, rstd = _forward(
            layer, keep_rstd, x.float(), *parameters, zero_centered, dtype, scale, branch
        )
        h_dtype = x.dtype if residual is None else residual.dtype
        return y.to(dtype or x.dtype), h.to(h_dtype), rstd
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    added = residual is not None
    has_h = added or branch is not None
    h = torch.empty(x.shape if has_h else 0, dtype=or_other(residual, x).dtype, device=x.device)
    rstd = empty_rstd(x, keep_rstd)
    if x.numel() == 0:
        return y, h, rstd.zero_()
    x, rows, cols, x_stride = unit_stride(x)
    if residual is not None:
        residual, _, _, residual_stride = unit_stride(residual)
    else:
        residual, residual_stride = x, x_stride
    block = triton.next_power_of_2(cols)
    bytes_of_y = y if dtype is None else y.view(torch.uint8)
    row_scale = or_other(None if branch is None else branch.row_scale, x)
    factors = (or_other(weight, x), or_other(bias, x), or_other(scale, x))
    tensors = (x, residual, *factors, row_scale, bytes_of_y, h, rstd)
    dropout, branch_flags = of_branch(branch, cols)
    sizes = (rows, cols, x_stride, residual_stride, eps, *dropout)
    fp8 = "" if dtype is None else DTYPE_NAMES[dtype]
    sink = (keep_rstd, scale is not None, fp8, fp8 != "" and _converts_in_hardware(x))
    given = (added, weight is not None, bias is not None)
    flags = (layer, *given, zero_centered, *sink, *branch_flags)
    with on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            norm_resident_kernel[(triton.cdiv(rows, shared),)](
                *tensors, *sizes, *flags, shared, block, num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            norm_sweeps_kernel[(rows,)](*tensors, *sizes, *flags, SWEEP, num_warps=warps_for(SWEEP))
    return y, h, rstd


def _twin(layer: bool, also: str = "", branches: bool = False) -> Callable[..., Any]:
    """A twin that returns y, and `also` "h" or "rstd"; `branches` of norms with dropout."""

    def run(
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        zero_centered: bool = False,
        dtype: torch.dtype | None = None,
        scale: Tensor | None = None,
        row_scale: Tensor | None = None,
        p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
    ) -> Any:
        branch = Branch(row_scale, p, seed, offset) if branches else None
        y, h, rstd = _forward(
            layer, also == "rstd", x, weight, eps, bias, residual, zero_centered, dtype, scale,
            branch,
        )  # fmt: skip
        return (y, rstd if also == "rstd" else h) if also else y

    return run


rms_norm, layer_norm = _twin(layer=False), _twin(layer=True)
rms_norm_with_rstd, layer_norm_with_rstd = _twin(False, "rstd"), _twin(True, "rstd")
add_rms_norm, add_layer_norm = _twin(False, "h"), _twin(True, "h")
rms_norm_fp8, layer_norm_fp8 = rms_norm, layer_norm
add_rms_norm_fp8, add_layer_norm_fp8 = add_rms_norm, add_layer_norm
dropout_add_rms_norm = _twin(False, "h", branches=True)
dropout_add_layer_norm = _twin(True, "h", branches=True)
