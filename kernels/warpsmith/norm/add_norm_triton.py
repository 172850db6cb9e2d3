"""The residual norms in Triton; their gradients are in add_norm_backward_triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, is_fp8
from warpsmith.core.dispatch import interpreting
from warpsmith.norm.launch_triton import (
    MOST_RESIDENT,
    SHARED_TILE,
    SWEEP,
    on,
    unit_stride,
    warps_for,
)
from warpsmith.norm.rms_norm_triton import reciprocal_rms
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.convert import encode
from warpsmith.spec.triton.philox import NOT_SPECIALISED, keeps, keeps_groups


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
    x *= keep_scale
    if HAS_ROW_SCALE:
        x *= tl.load(row_scale_ptr + row, mask=row < rows, other=0.0)
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


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def add_norm_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    row_scale_ptr,  # [rows]
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
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
    h = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
    if BRANCHES:
        h = branched(
            h, row_scale_ptr, row, rows, 0, cols, seed, offset, last_dropped, keep_scale,
            HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
        )  # fmt: skip
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + col, mask=valid, other=0.0)
        h += residual.to(tl.float32)
    if HAS_RESIDUAL or BRANCHES:
        narrow = h.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + row * cols + col, narrow, mask=valid)
        h = narrow.to(tl.float32)
    if LAYER:
        h = tl.where(valid, h - mean_of(tl.sum(share_of(h), axis=1, keep_dims=True), cols), 0.0)
    y = h * reciprocal_rms(tl.sum(h * h, axis=1, keep_dims=True), cols, eps)
    y = affine(y, weight_ptr, bias_ptr, col, in_row, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED)
    y = rounded(y, scale_ptr, HAS_SCALE, FORMAT, HARDWARE, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * cols + col, y, mask=valid)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def add_norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    row_scale_ptr,  # [rows]
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
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
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_ROW_SCALE: tl.constexpr,
    DROPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps, or three for layer norm."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], dtype=tl.int64)
    kept_ptr = h_ptr + row * cols if HAS_RESIDUAL or BRANCHES else x_ptr + row * x_stride
    total = tl.zeros([1, BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        if BRANCHES:
            h = branched(
                h, row_scale_ptr, row, rows, start, cols, seed, offset, last_dropped, keep_scale,
                HAS_ROW_SCALE, DROPS, GROUPS, BLOCK,
            )  # fmt: skip
        if HAS_RESIDUAL:
            residual = tl.load(residual_ptr + row * residual_stride + col, mask=in_row, other=0.0)
            h += residual.to(tl.float32)
        if HAS_RESIDUAL or BRANCHES:
            narrow = h.to(h_ptr.dtype.element_ty)
            tl.store(h_ptr + row * cols + col, narrow, mask=in_row)
            h = narrow.to(tl.float32)
        total += share_of(h) if LAYER else h * h
    tl.debug_barrier()  # what other threads wrote of h is read below
    mean = 0.0
    if LAYER:
        mean = mean_of(tl.sum(total, axis=1, keep_dims=True), cols)
        total = tl.zeros([1, BLOCK], dtype=tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
            in_row = col < cols
            h = tl.load(kept_ptr + col, mask=in_row, other=0.0).to(tl.float32)
            h = tl.where(in_row, h - mean, 0.0)
            total += h * h
    scale = reciprocal_rms(tl.sum(total, axis=1, keep_dims=True), cols, eps)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
        in_row = col < cols
        h = tl.load(kept_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        y = (h - mean) * scale
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
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    layer: bool,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
    branch: Branch | None = None,
) -> tuple[Tensor, Tensor]:
    """y in `dtype`, else in that of x; h, empty where it would be x."""
    if is_fp8(x.dtype):
        wide = (floats(residual), floats(weight), floats(bias))
        y, h = _forward(x.float(), *wide, eps, zero_centered, layer, dtype, scale, branch)
        return y.to(dtype or x.dtype), h.to(x.dtype if residual is None else residual.dtype)
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    added = residual is not None
    has_h = added or branch is not None
    h = torch.empty(x.shape if has_h else 0, dtype=or_other(residual, x).dtype, device=x.device)
    if x.numel() == 0:
        return y, h
    x, rows, cols, x_stride = unit_stride(x)
    if residual is not None:
        residual, _, _, residual_stride = unit_stride(residual)
    else:
        residual, residual_stride = x, x_stride
    block = triton.next_power_of_2(cols)
    bytes_of_y = y if dtype is None else y.view(torch.uint8)
    row_scale = or_other(None if branch is None else branch.row_scale, x)
    factors = (or_other(weight, x), or_other(bias, x), or_other(scale, x))
    tensors = (x, residual, *factors, row_scale, bytes_of_y, h)
    dropout, branch_flags = of_branch(branch, cols)
    sizes = (rows, cols, x_stride, residual_stride, eps, *dropout)
    fp8 = "" if dtype is None else DTYPE_NAMES[dtype]
    hardware = fp8 != "" and _converts_in_hardware(x)
    given = (added, weight is not None, bias is not None)
    flags = (layer, *given, zero_centered, scale is not None, fp8, hardware, *branch_flags)
    with on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            add_norm_resident_kernel[(triton.cdiv(rows, shared),)](
                *tensors, *sizes, *flags, shared, block, num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            add_norm_sweeps_kernel[(rows,)](
                *tensors, *sizes, *flags, SWEEP, num_warps=warps_for(SWEEP)
            )
    return y, h


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    return _forward(x, residual, weight, None, eps, zero_centered, layer=False)


def add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    return _forward(x, residual, weight, bias, eps, zero_centered, layer=True)


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> Tensor:
    return _forward(x, None, weight, None, eps, zero_centered, False, dtype, scale)[0]


def add_rms_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    return _forward(x, residual, weight, None, eps, zero_centered, False, dtype, scale)


def layer_norm_fp8(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> Tensor:
    return _forward(x, None, weight, bias, eps, zero_centered, True, dtype, scale)[0]


def add_layer_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    return _forward(x, residual, weight, bias, eps, zero_centered, True, dtype, scale)


def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    row_scale: Tensor | None,
    p: float,
    seed: int,
    offset: int,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    branch = Branch(row_scale, p, seed, offset)
    return _forward(x, residual, weight, None, eps, zero_centered, False, branch=branch)


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    row_scale: Tensor | None,
    p: float,
    seed: int,
    offset: int,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    branch = Branch(row_scale, p, seed, offset)
    return _forward(x, residual, weight, bias, eps, zero_centered, True, branch=branch)
