"""The residual norms in Triton, forward and backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.catalogue import DTYPE_NAMES, is_fp8
from warpsmith.dispatch import interpreting
from warpsmith.elementwise.convert_triton import encode
from warpsmith.norm.launch_triton import (
    MOST_PERSISTENT,
    MOST_RESIDENT,
    SHARED_TILE,
    SWEEP,
    multiprocessors,
    on,
    sum_partials_kernel,
    unit_stride,
    warps_for,
    workspace,
)
from warpsmith.norm.rms_norm_triton import reciprocal_rms

# --- forward --------------------------------------------------------------------------------------


@triton.jit
def mean_of(total, cols):
    return tl.div_rn(total, tl.zeros_like(total) + cols)


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


@triton.jit
def add_norm_resident_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
    rows,
    cols,
    x_stride,
    residual_stride,
    eps,
    LAYER: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in registers, ROWS of them in a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    valid = (row < rows) & in_row
    h = tl.load(x_ptr + row * x_stride + col, mask=valid, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + col, mask=valid, other=0.0)
        narrow = (h + residual.to(tl.float32)).to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + row * cols + col, narrow, mask=valid)
        h = narrow.to(tl.float32)
    if LAYER:
        h = tl.where(valid, h - mean_of(tl.sum(h, axis=1, keep_dims=True), cols), 0.0)
    y = h * reciprocal_rms(tl.sum(h * h, axis=1, keep_dims=True), cols, eps)
    y = affine(y, weight_ptr, bias_ptr, col, in_row, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED)
    y = rounded(y, scale_ptr, HAS_SCALE, FORMAT, HARDWARE, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * cols + col, y, mask=valid)


@triton.jit
def add_norm_sweeps_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    residual_ptr,  # [rows, cols], residual_stride elements from row to row
    weight_ptr,  # [cols]
    bias_ptr,  # [cols]
    scale_ptr,  # one value
    y_ptr,  # [rows, cols]
    h_ptr,  # [rows, cols]
    cols,
    x_stride,
    residual_stride,
    eps,
    LAYER: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row per program, in two sweeps, or three for layer norm."""
    row = tl.program_id(0).to(tl.int64)
    kept_ptr = h_ptr + row * cols if HAS_RESIDUAL else x_ptr + row * x_stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        h = tl.load(x_ptr + row * x_stride + col, mask=in_row, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            residual = tl.load(residual_ptr + row * residual_stride + col, mask=in_row, other=0.0)
            narrow = (h + residual.to(tl.float32)).to(h_ptr.dtype.element_ty)
            tl.store(h_ptr + row * cols + col, narrow, mask=in_row)
            h = narrow.to(tl.float32)
        total += h if LAYER else h * h
    tl.debug_barrier()  # what other threads wrote of h is read below
    mean = 0.0
    if LAYER:
        mean = mean_of(tl.sum(total, axis=0), cols)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            in_row = col < cols
            h = tl.load(kept_ptr + col, mask=in_row, other=0.0).to(tl.float32)
            h = tl.where(in_row, h - mean, 0.0)
            total += h * h
    scale = reciprocal_rms(tl.sum(total, axis=0), cols, eps)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        h = tl.load(kept_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        y = (h - mean) * scale
        y = affine(y, weight_ptr, bias_ptr, col, in_row, HAS_WEIGHT, HAS_BIAS, ZERO_CENTERED)
        y = rounded(y, scale_ptr, HAS_SCALE, FORMAT, HARDWARE, y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * cols + col, y, mask=in_row)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def add_norm_backward_persistent_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
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
    LAYER: tl.constexpr,
    HAS_GRAD_H: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SEPARATE_X: tl.constexpr,
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
            h = tl.where(valid, h - mean_of(tl.sum(h, axis=1, keep_dims=True), cols), 0.0)
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
            tl.store(dx_ptr + row * cols + col, dh.to(dx_ptr.dtype.element_ty), mask=valid)
        if HAS_WEIGHT:
            dw += tl.where(valid, grad * xhat, 0.0)
        if HAS_BIAS:
            db += grad
    if HAS_WEIGHT:
        tl.store(dw_ptr + program * cols + col, tl.sum(dw, axis=0)[None, :], mask=in_row)
    if HAS_BIAS:
        tl.store(db_ptr + program * cols + col, tl.sum(db, axis=0)[None, :], mask=in_row)


@triton.jit
def add_norm_backward_sweeps_kernel(
    grad_ptr,  # [rows, cols], grad_stride elements from row to row
    grad_h_ptr,  # [rows, cols], grad_h_stride elements from row to row
    h_ptr,  # [rows, cols], h_stride elements from row to row
    weight_ptr,  # [cols]
    dh_ptr,  # [rows, cols]
    dx_ptr,  # [rows, cols]
    statistics_ptr,  # [2, rows] f32: mean and 1 / standard deviation
    rows,
    cols,
    grad_stride,
    grad_h_stride,
    h_stride,
    eps,
    LAYER: tl.constexpr,
    HAS_GRAD_H: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SEPARATE_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dh of a row per program, in two sweeps, or three for layer norm."""
    row = tl.program_id(0).to(tl.int64)
    mean = 0.0
    if LAYER:
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            total += tl.load(h_ptr + row * h_stride + col, mask=col < cols, other=0.0)
        mean = mean_of(tl.sum(total, axis=0), cols)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    products = tl.zeros([BLOCK], dtype=tl.float32)
    plain = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        in_row = col < cols
        h = tl.load(h_ptr + row * h_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + row * grad_stride + col, mask=in_row, other=0.0).to(tl.float32)
        g = affine(g, weight_ptr, weight_ptr, col, in_row, HAS_WEIGHT, False, ZERO_CENTERED)
        h = tl.where(in_row, h - mean, 0.0)
        squares += h * h
        products += g * h
        plain += g
    scale = reciprocal_rms(tl.sum(squares, axis=0), cols, eps)
    slope = scale * tl.sum(products, axis=0) / cols
    shift = tl.sum(plain, axis=0) / cols if LAYER else 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
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


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """`other` stands in for a pointer that no kernel follows."""
    return other if tensor is None else tensor.contiguous()


def _converts_in_hardware(x: Tensor) -> bool:
    return not interpreting() and torch.cuda.get_device_capability(x.device) >= (8, 9)


def _floats(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


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
) -> tuple[Tensor, Tensor]:
    """y in `dtype`, else in that of x; h, empty without a residual."""
    if is_fp8(x.dtype):
        affine = (_floats(weight), _floats(bias), eps, zero_centered, layer)
        y, h = _forward(x.float(), _floats(residual), *affine, dtype, scale)
        return y.to(dtype or x.dtype), h.to(x.dtype if residual is None else residual.dtype)
    y = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    added = residual is not None
    h = torch.empty(x.shape if added else 0, dtype=_or(residual, x).dtype, device=x.device)
    if x.numel() == 0:
        return y, h
    x, rows, cols, x_stride = unit_stride(x)
    if residual is not None:
        residual, _, _, residual_stride = unit_stride(residual)
    else:
        residual, residual_stride = x, x_stride
    block = triton.next_power_of_2(cols)
    bytes_of_y = y if dtype is None else y.view(torch.uint8)
    tensors = (x, residual, _or(weight, x), _or(bias, x), _or(scale, x), bytes_of_y, h)
    strides = (x_stride, residual_stride)
    fp8 = "" if dtype is None else DTYPE_NAMES[dtype]
    hardware = fp8 != "" and _converts_in_hardware(x)
    given = (added, weight is not None, bias is not None)
    flags = (layer, *given, zero_centered, scale is not None, fp8, hardware)
    with on(x):
        if block <= MOST_RESIDENT:
            shared = min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))
            add_norm_resident_kernel[(triton.cdiv(rows, shared),)](
                *tensors, rows, cols, *strides, eps, *flags, shared, block,
                num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            add_norm_sweeps_kernel[(rows,)](
                *tensors, cols, *strides, eps, *flags, SWEEP, num_warps=warps_for(SWEEP)
            )
    return y, h


def _backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate: bool,
    layer: bool,
) -> tuple[Tensor, ...]:
    if is_fp8(grad.dtype):
        wide = (_floats(grad_h), h.float(), _floats(weight), _floats(bias))
        dh, dx, dw, db = _backward(grad.float(), *wide, eps, zero_centered, separate, layer)
        return (
            dh.to(h.dtype),
            dx.to(grad.dtype),
            dw.to(_or(weight, grad).dtype),
            db.to(_or(bias, grad).dtype),
        )
    dh = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    dx = torch.empty(h.shape if separate else 0, dtype=grad.dtype, device=h.device)
    dw, db = (
        torch.zeros(0 if t is None else t.shape, dtype=_or(t, grad).dtype, device=h.device)
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
    scale = _or(weight, h)
    tensors = (grad, grad_h, h, scale, dh, dx)
    sizes = (rows, cols, grad_stride, grad_h_stride, h_stride, eps)
    block = triton.next_power_of_2(cols)
    workers = 4 * multiprocessors(h)
    with on(h):
        if block <= MOST_PERSISTENT:
            shared = min(max(SHARED_TILE // 2 // block, 1), triton.next_power_of_2(rows))
            count = min(triton.cdiv(rows, shared), workers)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            add_norm_backward_persistent_kernel[(count,)](
                *tensors, *partials, *sizes, layer, has_grad_h, has_weight, has_bias,
                zero_centered, separate, shared, block, num_warps=warps_for(shared * block),
            )  # fmt: skip
        else:
            count = min(rows, max(workers * 128 // triton.cdiv(cols, 128), 1), 64)
            partials = [workspace(h, count, cols, wanted) for wanted in (has_weight, has_bias)]
            statistics = torch.empty(2, rows, dtype=torch.float32, device=h.device)
            add_norm_backward_sweeps_kernel[(rows,)](
                *tensors, statistics, *sizes, layer, has_grad_h, has_weight, zero_centered,
                separate, SWEEP, num_warps=warps_for(SWEEP),
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


def add_rms_norm_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate: bool,
) -> tuple[Tensor, ...]:
    return _backward(grad, grad_h, h, weight, None, eps, zero_centered, separate, layer=False)[:3]


def add_layer_norm_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate: bool,
) -> tuple[Tensor, ...]:
    return _backward(grad, grad_h, h, weight, bias, eps, zero_centered, separate, layer=True)
