"""Nearest upsampling in Triton, and its gradient: a value a lane, in the order of memory."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.vision.upsample_nearest2d import channels_last, empty_image, scale_of, sources

BLOCK = 1024
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _place(i, rows, cols, inner):
    """Of the elements of [outer, rows, cols, inner]."""
    pixel = i // inner
    line = pixel // cols
    outer = line // rows
    return outer, line - outer * rows, pixel - line * cols, i - pixel * inner


@triton.jit
def _source(i, scale, size):
    return tl.minimum(tl.floor(i.to(tl.float32) * scale).to(tl.int64), size - 1)


@triton.jit
def upsample_nearest2d_kernel(
    x_ptr,  # [outer, h, w, inner]
    y_ptr,  # [outer, out_h, out_w, inner]
    n, h, w, out_h, out_w, inner,
    scale_h, scale_w,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    outer, row, col, at = _place(i, out_h, out_w, inner)
    row, col = _source(row, scale_h, h), _source(col, scale_w, w)
    x = tl.load(x_ptr + ((outer * h + row) * w + col) * inner + at, mask=i < n)
    tl.store(y_ptr + i, x, mask=i < n)


@triton.jit
def upsample_nearest2d_backward_kernel(
    grad_ptr,  # [outer, out_h, out_w, inner]
    dx_ptr,  # [outer, h, w, inner]
    rows_ptr,  # [h + 1]: where the rows begin that come from each
    cols_ptr,  # [w + 1]
    n, h, w, out_h, out_w, inner, most_h, most_w,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    outer, row, col, at = _place(i, h, w, inner)
    first_row = tl.load(rows_ptr + row, mask=there, other=0)
    end_row = tl.load(rows_ptr + row + 1, mask=there, other=0)
    first_col = tl.load(cols_ptr + col, mask=there, other=0)
    end_col = tl.load(cols_ptr + col + 1, mask=there, other=0)
    sum = tl.zeros([BLOCK], dtype=tl.float32)
    for r in range(most_h):
        for c in range(most_w):
            valid = there & (first_row + r < end_row) & (first_col + c < end_col)
            place = ((outer * out_h + first_row + r) * out_w + first_col + c) * inner + at
            sum += tl.load(grad_ptr + place, mask=valid, other=0.0).to(tl.float32)
    tl.store(dx_ptr + i, sum.to(dx_ptr.dtype.element_ty), mask=there)


def _dense(x: Tensor) -> tuple[Tensor, int, int]:
    """What is read, and outer and inner of it."""
    if channels_last(x):
        return x, x.shape[0], x.shape[1]
    return x.contiguous(), x.shape[0] * x.shape[1], 1


def upsample_nearest2d(x: Tensor, size: Sequence[int], factor_h: float, factor_w: float) -> Tensor:
    y = empty_image(x, size)
    if y.numel() == 0:
        return y
    images, _, inner = _dense(x)
    h, w = x.shape[2:]
    integer = INTEGERS[x.element_size()]
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        upsample_nearest2d_kernel[(triton.cdiv(y.numel(), BLOCK),)](
            images.view(integer), y.view(integer), y.numel(), h, w, *size, inner,
            scale_of(factor_h, h, size[0]), scale_of(factor_w, w, size[1]), BLOCK, num_warps=4,
        )  # fmt: skip
    return y


def _bounds(factor: float, size: int, out_size: int, device: torch.device) -> tuple[Tensor, int]:
    """Where the rows begin that come from each, and how many come from one at most."""
    places = sources(factor, size, out_size, device)
    wanted = torch.arange(size + 1, device=device)
    bounds = torch.searchsorted(places, wanted)
    # at most so many, without asking the GPU
    scale = scale_of(factor, size, out_size)
    most = min(int(1 / scale) + 2, out_size)
    return bounds, max(most, out_size - int((size - 1) / scale) + 2)


def upsample_nearest2d_backward(
    grad: Tensor, size: Sequence[int], factor_h: float, factor_w: float
) -> Tensor:
    if is_fp8(grad.dtype):
        wide = upsample_nearest2d_backward(grad.float(), size, factor_h, factor_w)
        return empty_image(grad, size).copy_(wide)
    dx = empty_image(grad, size)
    if dx.numel() == 0:
        return dx
    images, _, inner = _dense(grad)
    out_h, out_w = grad.shape[2:]
    rows, most_h = _bounds(factor_h, size[0], out_h, grad.device)
    cols, most_w = _bounds(factor_w, size[1], out_w, grad.device)
    with torch.cuda.device(grad.device if grad.device.type == "cuda" else -1):
        upsample_nearest2d_backward_kernel[(triton.cdiv(dx.numel(), BLOCK),)](
            images, dx, rows, cols, dx.numel(), *size, out_h, out_w, inner, most_h, most_w, BLOCK,
            num_warps=4,
        )  # fmt: skip
    return dx
